"""How long should a trial be, how many, and in how many rounds are finalists halved? Played with measured trainings.

    python -m benchmarks race_design --data cluttered_digits --networks 60     # train, and save
    python -m benchmarks race_design --play                                    # what the saved ones say of designs

Random networks of `image_blocks` are trained from first weights as a search trains the finalist that it returns, and
scored on the validation part on the way, and on the test part at the end. Beside that, each has a short training of its
own, of a tenth of the steps, whose learning rate rises and falls within it.

Designs are then played: so many networks are compared after so many steps, so many of them go on, and are halved. A few
dozen networks say little of the best of them, so the networks that are played with are drawn from a normal distribution
with the correlations of validations and the test figure (normal scores of the ranks: a Gaussian copula), shrunk by 3 %.
Figures are in deviations of random networks. All designs cost about as much as random search of six networks.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau, norm, rankdata

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.search.standalone import sampled_architectures
from benchmarks.timing import machine
from l2l_nas import AdamW, Architecture, Batches, Cosine, ParamServer, Problem, ReferenceTrainer, Trainer
from l2l_nas.files import write_json
from l2l_nas.nas.strategies.budget import halved
from l2l_nas.nas.strategies.division import division
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.section_settings import TrainConf

SHARES = (0.05, 1 / 15, 0.1, 0.125, 0.2, 0.25, 7 / 15, 0.4, 0.5, 0.75)  # of a whole training, where it is scored
TENTH = 10
COST = 5.75  # of a design, in whole trainings
PLAYED = 20_000

Floats = NDArray[np.float64]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="cluttered_digits", help="as data.source")
    parser.add_argument("--networks", type=at_least(1), default=60)
    parser.add_argument("--play", action="store_true", help="with all that is saved, and train nothing")


def main(arguments: argparse.Namespace) -> None:
    """Train, or play."""
    torch.set_num_threads(1)
    if arguments.play:
        play({path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("race_design_*.json"))})
    else:
        train(arguments.data, arguments.networks)


def train(data: str, networks: int) -> None:
    """Train what is missing, and save after each."""
    path = RESULTS / f"race_design_{Path(data).stem}.json"
    problem = load_problem("image_blocks", {}, source=data, validation_fraction=0.2, test_fraction=0.2)
    given = {"finalists": 8, "finalist_rounds": 3}
    batch = TrainConf().batch_size
    found = division(
        problem.pool, samples=len(problem.data.train), batch_size=batch, trial_weights="scratch", given=given
    )
    steps = found.finalist_steps
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    for architecture in sampled_architectures(problem, networks, seed=0)[len(rows) :]:
        rows.append({"architecture": " ".join(architecture.choices), **trained(problem, architecture, steps)})
        write_json(path, {"benchmark": "race_design", "steps": steps, "machine": machine(), "rows": rows})


def trained(problem: Problem, architecture: Architecture, steps: int) -> dict[str, Any]:
    """Figures of one network: validations by steps, the short training, validation and test at the end."""
    assert problem.data.test is not None
    interim = {}
    trainer = begun(problem)
    for start, end in itertools.pairwise([0, *sorted({round(share * steps) for share in SHARES}), steps]):
        trainer.fit(lambda step: architecture, start=start, steps=end - start, schedule=Cosine(rate(), steps))
        trainer.recalibrate(architecture)
        interim[end] = dict(trainer.evaluate(architecture, problem.data.validation))
    test = dict(trainer.evaluate(architecture, problem.data.test))
    short, few = begun(problem), steps // TENTH
    # on other batches than the longer one: numbers behind its steps
    short.fit(lambda step: architecture, start=steps, steps=few, schedule=Cosine(rate(), few), offset=steps)
    short.recalibrate(architecture)
    return {
        "looks": {str(end): figures for end, figures in interim.items()},
        "short": dict(short.evaluate(architecture, problem.data.validation)),
        "test": test,
    }


def begun(problem: Problem) -> Trainer:
    """A trainer on first weights, as a search has it."""
    conf = TrainConf()
    server = ParamServer(problem.pool, optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.05), seed=0)
    batches = Batches(problem.data.train, batch_size=conf.batch_size, seed=0)
    return Trainer(ReferenceTrainer(server, device="cpu", seed=0), problem.measured_task, batches, conf.micro_batch)


def rate() -> float:
    """The learning rate's peak."""
    return TrainConf().learning_rate


class Task:
    """Correlated figures of networks of one task.

    Args:
        content: what `train` saved.
        metric: the validations compare by it, up to 0.6 of the steps; the rest by accuracy.
    """

    def __init__(self, content: Mapping[str, Any], metric: str) -> None:
        rows, whole = content["rows"], content["steps"]
        sign = -1 if metric == "loss" else 1
        self.shares = [int(end) / whole for end in rows[0]["looks"]]
        columns = [[row["test"]["accuracy"] for row in rows], [sign * row["short"][metric] for row in rows]]
        for end, share in zip(rows[0]["looks"], self.shares, strict=True):
            name, sign_of = (metric, sign) if share < 0.6 else ("accuracy", 1)
            columns.append([sign_of * row["looks"][end][name] for row in rows])
        self.test, self.short, *self.interim = (np.array(column) for column in columns)
        scores = np.array([norm.ppf(rankdata(column) / (len(rows) + 1)) for column in columns])
        self._factor = np.linalg.cholesky(0.97 * np.corrcoef(scores) + 0.03 * np.eye(len(scores)))

    def drawn(self, networks: int) -> Floats:
        """Figures of shape [searches, networks, columns]; columns: test, short, validations."""
        draws = np.random.default_rng(0).normal(size=(PLAYED, networks, len(self._factor)))
        return np.asarray(draws @ self._factor.T)

    def column(self, share: float) -> int:
        """Of the validation that is nearest to a share of the steps."""
        return 2 + min(range(len(self.shares)), key=lambda place: abs(self.shares[place] - share))

    def found(self, trials: int, first: int, rounds: Sequence[tuple[int, float]]) -> float:
        """The test figure of what is returned.

        Args:
            first: the column that trials are compared by.
            rounds: how many are in each, and the share of the steps at its end.
        """
        figures = self.drawn(trials)
        left = np.argsort(-figures[:, :, first], axis=1)[:, : rounds[0][0]]
        for (_, share), (going_on, _) in itertools.pairwise([*rounds, (1, 1.0)]):
            seen = np.take_along_axis(figures[:, :, self.column(share)], left, axis=1)
            left = np.take_along_axis(left, np.argsort(-seen, axis=1)[:, :going_on], axis=1)
        return float(np.take_along_axis(figures[:, :, 0], left, axis=1).mean())


def play(saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how well validations tell the end, and what designs find."""
    for name, content in saved.items():
        task = Task(content, "accuracy")
        print(f"{name}: {len(task.test)} networks, test {task.test.mean():.3f}, deviation {task.test.std():.3f}")
        print(f"  a short training of its own: tau {tau(task.short, task.test)}")
        for share, interim_step in zip(task.shares, task.interim, strict=True):
            print(f"  after {share:.3f} of the steps: tau {tau(interim_step, task.test)}")
    for metric in ("accuracy", "loss"):
        tasks = [Task(content, metric) for content in saved.values()]
        alone = np.array([random_search(task) for task in tasks])
        old = [(8, 1 / 15), (4, 0.2), (2, 7 / 15), (1, 1.0)]
        designs = {"36 short ones of their own, 8 from the start in 4 rounds": (36, 1, old)}
        for share, finalists, most in itertools.product(
            (0.05, 1 / 15, 0.1, 0.125, 0.2, 0.25), (4, 6, 8, 12), (1, 2, 3, 4)
        ):
            rounds, cost = cut(finalists, most, share)
            trials = round((COST - cost) / share)
            if trials > finalists:
                words = f"{trials} of {share:.3f}, {finalists} in {len(rounds)} rounds"
                designs[words] = (trials, tasks[0].column(share), rounds)
        gains = {name: np.array([task.found(*design) for task in tasks]) - alone for name, design in designs.items()}
        print(f"compared by {metric}: deviations above random search of six, by task")
        for name in sorted(gains, key=lambda name: -gains[name].mean()):
            print(f"  {gains[name].mean():.2f}  {' '.join(f'{one:5.2f}' for one in gains[name])}  {name}")


def random_search(task: Task) -> float:
    """The best of six on the validation part at the end."""
    return task.found(6, task.column(1.0), [(1, 1.0)])


def cut(finalists: int, rounds: int, done: float) -> tuple[list[tuple[int, float]], float]:
    """Rounds as a search has them, and what they cost."""
    fine = 10_000
    parts = halved(finalists, fine, rounds, done=round(done * fine))
    ends = itertools.accumulate((steps for _, steps in parts), initial=round(done * fine))
    cost = sum(count * steps for count, steps in parts) / fine
    return [(count, end / fine) for (count, _), end in zip(parts, list(ends)[1:], strict=True)], cost


def tau(one: Floats, other: Floats) -> str:
    """Kendall's."""
    return f"{kendalltau(one, other).statistic:.2f}"
