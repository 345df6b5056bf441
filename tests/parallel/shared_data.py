"""One rank of several that share evaluations and mini-batches: prints what it read and what came of it.

    python -m tests.parallel.shared_data FOLDER

Without torchrun's variables it is the one process to compare with.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Clip, Data, LayerPool, Position, Relay, TensorSpec
from l2l_nas.eps import cut
from l2l_nas.eps.exchange import Alone
from l2l_nas.eps.sharded import server_of
from l2l_nas.errors import DataError
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.text.cloze import Cloze, continuations
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer, sample_figures, score, tested
from l2l_nas.training.metrics import MeasuredTask, Metric
from l2l_nas.training.schedule import Constant
from l2l_nas.training.task import Classification, SampleMetrics
from tests.text.networks import WHOLE, pool_of
from tests.training.test_lengths import PATHS, classifier, sentences

WIDTH, SAMPLES = 12, 1300  # of the first training samples; two chunks of validation


class Recorded(torch.utils.data.Dataset):
    """Samples that a transform changes at random; remembers which were read."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self.count, self.broken, self.read = count, broken, []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row):
        if row == self.broken:
            raise ValueError(f"sample {row} is broken")
        self.read.append(row)
        x = torch.sin(torch.arange(WIDTH) * (row % 97 + 1.0)) + 0.1 * torch.randn(WIDTH)
        return x, int(x.sum() > 0)


class Streamed:
    """A metric that is an object: the order of its sums counts."""

    def __init__(self) -> None:
        self.total = torch.zeros(())

    def update(self, outputs, targets) -> None:
        self.total += outputs.logsumexp(1).sum()

    def compute(self) -> float:
        return float(self.total)


class Figures(SampleMetrics, Classification):
    """Of which figures of each sample come in the place of outputs."""

    names = ("samples", "hits", "loss")

    def __init__(self, most: float = 1e9) -> None:
        self.most = most

    def figures(self, outputs, targets):
        losses = nn.functional.cross_entropy(outputs[0], targets, reduction="none").double()
        if losses.max() > self.most:
            raise DataError(f"a loss of {losses.max():.6f}")
        return torch.stack([torch.ones_like(losses), (outputs[0].argmax(1) == targets).double(), losses], 1)


def pool() -> LayerPool:
    blocks = [Candidate(name, lambda act=act: nn.Sequential(nn.Linear(WIDTH, WIDTH), act()))
              for name, act in (("tanh", nn.Tanh), ("relu", nn.ReLU))]  # fmt: skip
    positions = [Position(f"layer_{n}", blocks) for n in range(3)]
    head = Position("head", Candidate("head", lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(WIDTH, 2))))
    return LayerPool([*positions, head], inputs=TensorSpec((WIDTH,)))


def run(exchange) -> dict:
    cut.SMALL_BYTES = 0
    train, validation = Recorded(110), Recorded(SAMPLES)
    data = Data.from_dataset(train, validation)
    server = server_of(pool(), exchange, optimizer=AdamW(), seed=1)
    relay = Relay(server, chunks=4, seed=2, clip=Clip(0.5), update="exact")
    own = {"stream": Metric(Streamed()), "gathered": Metric(lambda outputs, targets: float(outputs.std()))}
    task = MeasuredTask(Classification(), own)
    trainer = Trainer(relay, task, Batches(data.train, batch_size=24, seed=3), 4)
    kinds = ("tanh", "relu")
    one, *others = [server.pool.architecture([a, b, "tanh", "head"]) for a in kinds for b in kinds]
    train.read.clear()
    losses = []
    trainer.fit(
        lambda step: (one, *others)[step % 4], start=0, steps=9, schedule=Constant(0.01, 9),
        after_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    trained = len(train.read)
    validation.read.clear()
    values = trainer.evaluate(one, data.validation)
    scored = trainer.score(one, data.validation)
    together = trainer.evaluate_population([one, *others], data.validation, max_bytes=3000)
    evaluated = len(validation.read)
    few = trainer.evaluate(one, data.validation.some(torch.arange(3)))  # fewer micro-batches than ranks
    figures = score(relay, one, data.validation, task=Figures(), micro_batch=4)
    losses_of = sample_figures(relay, one, data.validation, task=Figures(), micro_batch=4)[:, 2]
    highest = replace(trainer, task=Figures(float(losses_of.max()) - 1e-6))  # of a sample that one rank has
    problems = [
        tested(trainer, one, Data.from_dataset(train, Recorded(100, broken=90)).validation).problem,
        tested(highest, one, data.validation).problem,
    ]
    return {
        "losses": losses, "values": values, "score": [scored.values, scored.errors, scored.problem],
        "together": together, "few": few, "figures": [figures.values, figures.errors], "problems": problems,
        "trained": trained, "evaluated": evaluated, "texts": texts(exchange),
    }  # fmt: skip


def texts(exchange) -> list:
    """Figures of texts of many lengths, few micro-batches among them; and losses of training on sentences."""
    relay = Relay(server_of(pool_of(length=48), exchange, optimizer=AdamW(), seed=1), chunks=4)
    found = []
    for count in (1, 3, 21):
        rows = [(list(range(1 + row * 11 % 40)), [3, row], "") for row in range(count)]
        samples = continuations(rows, 48)
        found.append(sample_figures(relay, WHOLE, samples, task=Cloze(), micro_batch=4).tolist())
    server = server_of(classifier(dropout=0.1), exchange, optimizer=AdamW(), seed=1)
    trainer = Trainer(Relay(server, chunks=4), Classification(), Batches(sentences(40), batch_size=18, seed=3), 4)
    trainer.fit(
        lambda step: PATHS[step % 3], start=0, steps=6, schedule=Constant(0.01, 6),
        after_step=lambda step, loss: found.append(loss),
    )  # fmt: skip
    found.append(trainer.evaluate(PATHS[0], sentences(30)))
    return found


def main(exchange) -> None:
    torch.set_num_threads(1)
    (Path(sys.argv[1]) / f"{exchange.rank}.json").write_text(json.dumps(run(exchange)))


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_ranked(lambda world: main(world.exchange))
    main(Alone())
