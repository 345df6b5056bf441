"""Metrics and error bars gathered chunk by chunk."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import (
    SGD,
    AdamW,
    Architecture,
    Candidate,
    Classification,
    LayerPool,
    Metric,
    ParamServer,
    Position,
    Regression,
    Relay,
    TensorSpec,
    Tokens,
)
from l2l_nas.errors import DataError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.text.perplexity import Perplexity
from l2l_nas.training import fit, tally
from l2l_nas.training.data import Batches, Split
from l2l_nas.training.fit import Trainer, evaluate_population
from l2l_nas.training.metrics import MeasuredTask
from l2l_nas.training.tally import Tally
from l2l_nas.training.task import SampleMetrics
from tests.cli.runs import ROOT, environment
from tests.training.test_metrics import Hits

CLASSES = 40


def trainer(task=None, *, executor=Relay, samples=600):
    """A pool that gives wide logits, and data to score it on."""
    choices = [Candidate(name, partial(nn.Linear, 4, CLASSES)) for name in "ab"]
    pool = LayerPool([Position("head", choices)], inputs=TensorSpec((4,)))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(samples, 4, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)
    split = Split((x,), y)
    made = executor(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    return Trainer(made, task or Classification(), Batches(split, batch_size=8, seed=0), 16), split, pool


def tally_of(task, outputs, targets, *, groups=None):
    """All samples in one chunk."""
    taken = Tally(task, torch.arange(len(targets)) if groups is None else groups, with_errors=True)
    taken.add(outputs, targets)
    return taken


def halves(taken, outputs, targets):
    middle = len(targets) // 3
    for part in (slice(None, middle), slice(middle, None)):
        taken.add(tuple(tensor[part] for tensor in outputs), targets[part])
    return taken


class Whole(Classification):
    """One that measures all outputs at once."""

    def measure(self, outputs, targets):
        return super().measure(outputs, targets)


@pytest.mark.parametrize(
    ("task", "outputs", "targets"),
    [
        (Classification(), torch.randn(200, 5), torch.arange(200) % 5),
        (Regression(), torch.randn(200, 3), torch.randn(200, 3) * 4 + 7),
        (MeasuredTask(Classification(), {}), torch.randn(200, 5), torch.arange(200) % 5),
        (
            MeasuredTask(Classification(), {"top": Metric(lambda o, t: o.max())}),
            torch.randn(200, 5),
            torch.arange(200) % 5,
        ),
        (Whole(), torch.randn(200, 5), torch.arange(200) % 5),
        (MeasuredTask(Whole(), {"hits": Metric(Hits())}), torch.randn(200, 5), torch.arange(200) % 5),
    ],
    ids=["classes", "numbers", "measured", "a metric of ones own", "a measure of ones own", "a streaming metric"],
)
def test_in_chunks_metrics_and_errors_are_those_of_all_at_once(task, outputs, targets):
    whole = tally_of(task, (outputs,), targets)
    chunked = halves(Tally(task, torch.arange(200), with_errors=True), (outputs,), targets)
    assert chunked.metrics() == pytest.approx(whole.metrics(), rel=1e-6)
    assert chunked.metrics() == pytest.approx(task.measure((outputs,), targets), rel=1e-6)
    assert chunked.score().errors == pytest.approx(whole.score().errors, rel=1e-6)
    assert set(chunked.score().errors) == set(task.metrics)


def test_errors_of_shares_and_means_are_exact():
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(333, 5, generator=generator), torch.arange(333) % 5
    score = tally_of(Classification(), (outputs,), targets).score()
    share = score.values["accuracy"]
    losses = functional.cross_entropy(outputs, targets, reduction="none").double()
    assert score.errors["accuracy"] == pytest.approx(math.sqrt(share * (1 - share) / 332), rel=1e-5)
    assert score.errors["loss"] == pytest.approx(float(losses.std()) / math.sqrt(333), rel=1e-5)
    wanted = torch.randn(333, 2, generator=generator)
    squares = ((outputs[:, :2] - wanted).double() ** 2).mean(dim=1)
    found = tally_of(Regression(), (outputs[:, :2],), wanted).score()
    assert found.errors["loss"] == pytest.approx(float(squares.std()) / math.sqrt(333), rel=1e-5)
    # nothing to do with parts that are drawn at random: nearly what leaving 50 of them out gives
    assert score.errors == pytest.approx(tally_of(Whole(), (outputs,), targets).score().errors, rel=0.3)


def test_errors_of_tokens_are_those_of_a_ratio_over_sequences():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(80, 6, 4, generator=generator)
    targets = torch.randint(4, (80, 6), generator=generator)
    targets[torch.rand(80, 6, generator=generator) < 0.4] = -1
    counts = (targets >= 0).sum(dim=1).double()
    losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    losses = losses.view(80, 6).sum(dim=1).double()
    ratio = losses.sum() / counts.sum()
    error = math.sqrt(80 / 79 * float(((losses - ratio * counts) ** 2).sum())) / float(counts.sum())
    found = tally_of(Tokens(), (logits,), targets).score()
    assert found.errors["loss"] == pytest.approx(error, rel=1e-5)
    task = Perplexity(tokens=300, words=100, num_bytes=500)
    perplexity = tally_of(task, (logits,), targets).score()
    assert perplexity.errors["token_perplexity"] == pytest.approx(float(ratio.exp()) * error, rel=1e-4)
    assert perplexity.errors["word_perplexity"] == pytest.approx(float((3 * ratio).exp()) * 3 * error, rel=1e-3)


@pytest.mark.parametrize("task", [Classification(), Whole()], ids=["figures of samples", "leaving parts out"])
def test_errors_are_over_groups_where_samples_belong_together(task):
    """Each of 40 samples comes four times: that tells no more than 40 of them."""
    outputs, targets = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 5
    once = tally_of(task, (outputs,), targets).score()
    copies, same = outputs.repeat(4, 1), targets.repeat(4)
    grouped = tally_of(task, (copies,), same, groups=torch.arange(40).repeat(4)).score()
    assert grouped.values == pytest.approx(once.values)
    assert grouped.errors == pytest.approx(once.errors, rel=1e-5)
    assert tally_of(task, (copies,), same).score().errors["accuracy"] < 0.6 * once.errors["accuracy"]
    chunked = halves(Tally(task, torch.arange(40).repeat(4), with_errors=True), (copies,), same)
    assert chunked.score().errors == pytest.approx(grouped.errors, rel=1e-6)


class OwnFigures(SampleMetrics, Classification):
    """A mean, and a sum, which more samples make larger."""

    names = ("samples", "hits")
    metrics = {"accuracy": True, "mistakes": False}

    def figures(self, outputs, targets):
        hits = (outputs[0].argmax(dim=-1) == targets).double()
        return torch.stack([torch.ones_like(hits), hits], dim=1)

    def finish(self, totals):
        samples, hits = int(totals["samples"]), int(totals["hits"])
        return {"accuracy": hits / samples, "mistakes": float(samples - hits)}


class OwnLoss(Classification):
    def loss(self, outputs, targets):
        return 2 * super().loss(outputs, targets)


def test_a_task_of_ones_own_has_the_errors_that_its_figures_give():
    outputs, targets = torch.randn(100, 5, generator=torch.Generator().manual_seed(0)), torch.arange(100) % 5
    exact = tally_of(Classification(), (outputs,), targets).score().errors
    own = tally_of(OwnFigures(), (outputs,), targets).score()
    assert own.errors == pytest.approx({"accuracy": exact["accuracy"]}, rel=1e-6)
    # nothing is known of its samples: parts are left out
    assert tally_of(OwnLoss(), (outputs,), targets).score().errors["loss"] == pytest.approx(2 * exact["loss"], rel=0.3)


def test_targets_that_do_not_vary_explain_nothing():
    constant = tally_of(Regression(), (torch.randn(30, 1),), torch.full((30, 1), 0.1))
    assert constant.metrics()["r2"] == 0


def test_outputs_are_dropped_once_they_are_summed_up(monkeypatch):
    train, split, pool = trainer()
    monkeypatch.setattr(fit, "_CHUNK_BYTES", 40 * CLASSES * 4)
    alive: list[list[weakref.ref[torch.Tensor]]] = []
    sizes = []
    real = train.executor.predict_population

    def watched(architectures, inputs, **told):
        assert all(one() is None for chunk in alive[:-1] for one in chunk)  # only the loop's last one is left
        found = real(architectures, inputs, **told)
        alive.append([weakref.ref(tensor) for batch in found for tensor in batch])
        sizes.append(len(inputs[0]))
        return found

    monkeypatch.setattr(train.executor, "predict_population", watched)
    both = [pool.architecture(["a"]), pool.architecture(["b"])]
    streamed = train.evaluate_population(both, split)
    assert set(sizes) <= {16, 600 % 16}
    sizes.clear()
    assert train.score(both[0], split).values == streamed[0]
    assert max(sizes) == 16
    monkeypatch.undo()
    for here, whole in zip(streamed, train.evaluate_population(both, split), strict=True):
        assert here == pytest.approx(whole, rel=1e-6)
    assert streamed[0] != streamed[1]


def test_what_an_executor_keeps_decides_how_many_samples_it_gets():
    train, split, pool = trainer()
    assert train.executor.sample_bytes >= CLASSES * 4
    assert fit.chunk_size(train.executor, 16) == 1024
    assert trainer(executor=ReferenceTrainer)[0].executor.sample_bytes == CLASSES * 4
    one = pool.architecture(["a"])
    (outputs,) = train.executor.predict(one, split.inputs, micro_batch=16)
    assert outputs.shape == (600, CLASSES)
    measured = evaluate_population(train.executor, [one], split, task=Classification(), micro_batch=16)
    assert measured == [Classification().measure((outputs,), split.targets)]


def test_outputs_that_would_not_fit_are_refused_at_the_first_chunk(monkeypatch):
    monkeypatch.setattr(tally, "free_memory_bytes", lambda: 2 * 600 * CLASSES * 4 - 1)
    own = {"largest": Metric(lambda outputs, targets: outputs.max())}
    train, split, pool = trainer(MeasuredTask(Classification(), own))
    with pytest.raises(
        DataError, match=r"largest: measured on the outputs of all 600 samples at once, 0\.0 GiB; derive the task"
    ):
        train.evaluate(pool.architecture(["a"]), split)
    train, split, pool = trainer()
    assert train.evaluate(pool.architecture(["a"]), split)["loss"] > 0


def test_a_streaming_metric_s_error_is_close_to_that_of_leaving_samples_out():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(5, (5000,), generator=generator)
    outputs = torch.randn(5000, 5, generator=generator) + functional.one_hot(targets, 5)
    own = {"streamed": Metric(Hits()), "function": Metric(lambda o, t: (o.argmax(dim=-1) == t).float().mean())}
    score = tally_of(MeasuredTask(Classification(), own), (outputs,), targets).score()
    assert score.values["streamed"] == score.values["accuracy"] == pytest.approx(score.values["function"])
    assert score.errors["function"] == pytest.approx(score.errors["accuracy"], rel=0.3)
    assert score.errors["streamed"] == pytest.approx(score.errors["accuracy"], rel=0.5)
    few = tally_of(MeasuredTask(Classification(), own), (outputs[:1],), targets[:1]).score()
    assert few.errors == {}


def test_streaming_metrics_let_outputs_go(monkeypatch):
    monkeypatch.setattr(tally, "free_memory_bytes", lambda: 0)
    train, split, pool = trainer(MeasuredTask(Classification(), {"hits": Metric(Hits())}))
    values = train.evaluate(pool.architecture(["a"]), split)
    assert values["hits"] == values["accuracy"]


def test_a_chunk_fits_into_the_device_budget():
    train, split, pool = trainer()
    relay = train.executor
    assert relay.evaluation_bytes is None
    one = relay.sample_bytes
    assert one == (4 + CLASSES) * 4 + CLASSES * 4  # what goes into the head, what comes out, and that on the host
    tight = Relay(relay.server, device="cpu", device_budget=relay.bank.num_bytes + 10 * one)
    assert tight.evaluation_bytes == 10 * one
    assert fit.chunk_size(tight, 4) == 8
    assert fit.chunk_size(tight, 16) == 10  # less than a micro-batch, if that is too much
    sizes = []
    real = tight.predict_population
    tight.predict_population = lambda paths, inputs, **more: sizes.append(len(inputs[0])) or real(paths, inputs, **more)
    wide = fit.evaluate(relay, pool.architecture(["a"]), split, task=Classification(), micro_batch=16)
    assert fit.evaluate(tight, pool.architecture(["a"]), split, task=Classification(), micro_batch=16) == pytest.approx(
        wide
    )
    assert set(sizes) == {10}


SCORING = """
import torch
from functools import partial
from torch import nn
from l2l_nas import (AdamW, Batches, Candidate, LayerPool, ParamServer, Position, Relay, Split, TensorSpec, Tokens,
                     Trainer)

torch.set_num_threads(1)
vocabulary, length, samples = 50_000, 125, 100
pool = LayerPool([
    Position("embedding", Candidate("embedding", partial(nn.Embedding, vocabulary, 8))),
    Position("head", Candidate("linear", partial(nn.Linear, 8, vocabulary))),
], inputs=TensorSpec((length,), torch.int64))
tokens = torch.arange(samples * length).reshape(samples, length) % vocabulary
split = Split((tokens,), tokens)
relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
trainer = Trainer(relay, Tokens(), Batches(split, batch_size=32, seed=0), 32)
print(trainer.evaluate(pool.architecture(["embedding", "linear"]), split)["loss"])
# of this program alone: the figure of `resource` begins with what the process that started it had
print(1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.long
@pytest.mark.slow
def test_logits_of_2_gib_are_scored_within_one():
    done = subprocess.run(
        [sys.executable, "-c", SCORING], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    loss, peak = map(float, done.stdout.split())
    assert 10 < loss < 12
    assert 100 * 125 * 50_000 * 4 > 2 << 30
    assert peak < 1 << 30


class Precision:
    """NaN where nothing was predicted to be of class 1."""

    def __init__(self):
        self.hits = self.all = 0

    def update(self, outputs, targets):
        found = outputs.argmax(-1) == 1
        self.hits, self.all = self.hits + int((found & (targets == 1)).sum()), self.all + int(found.sum())

    def compute(self):
        return self.hits / self.all if self.all else float("nan")


def test_a_figure_that_some_group_lacks_has_no_error_bar():
    task = MeasuredTask(Classification(), {"precision": Metric(Precision())})
    outputs = torch.zeros(60, 2)
    outputs[0, 1] = 1.0
    found = Tally(task, torch.arange(60), with_errors=True)
    found.add((outputs,), torch.arange(60) % 2)
    score = found.score()
    assert score.values["precision"] == 0.0
    assert "precision" not in score.errors
    assert "accuracy" in score.errors


def language_model(*, outputs=None):
    """Tokens of 400 kinds, of which the head's output may go on to another position."""
    positions = [
        Position("embedding", Candidate("embed", lambda: nn.Embedding(400, 8))),
        Position("head", [Candidate("linear", lambda: nn.Linear(8, 400)), Candidate("other", lambda: Twice(8, 400))]),
    ]
    if outputs:
        positions.append(Position("scaled", Candidate("tanh", nn.Tanh), reads=("head",)))
    return LayerPool(positions, inputs={"tokens": TensorSpec((6,), torch.int64)}, outputs=outputs)


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("outputs", [None, ("head", "scaled")])
@pytest.mark.parametrize("executor", [Relay, ReferenceTrainer])
def test_logits_do_not_leave_the_device_where_figures_of_each_sample_are_enough(executor, outputs, monkeypatch):
    pool = language_model(outputs=outputs)
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0)
    tokens = torch.randint(400, (50, 7), generator=torch.Generator().manual_seed(0))
    split = Split((tokens[:, :-1],), tokens[:, 1:].where(torch.rand(50, 6) < 0.8, -1))
    tail = ("tanh",) * bool(outputs)
    both = [Architecture(("embed", name, *tail)) for name in ("linear", "other")]
    runner = executor(server, device="cpu")
    given = []
    population = type(runner).predict_population
    monkeypatch.setattr(
        type(runner), "predict_population", lambda *a, **k: given.append(population(*a, **k)) or given[-1]
    )
    found = fit.evaluate_population(runner, both, split, task=Tokens(), micro_batch=4)
    assert all(tensor.shape[1:] == (3,) for chunk in given for batch in chunk for tensor in batch)
    assert sum(len(chunk[0][0]) for chunk in given) == 50
    for architecture, values in zip(both, found, strict=True):
        plain = runner.predict(architecture, split.inputs, micro_batch=4)
        assert values == pytest.approx(Tokens().measure(plain, split.targets))
        scored = fit.score(runner, architecture, split, task=Tokens(), micro_batch=4)
        assert scored.values == values
        assert set(scored.errors) == {"accuracy", "loss"}


def test_chunks_are_larger_where_outputs_do_not_wait_and_micro_batches_hold_few_of_them():
    relay = Relay(ParamServer(language_model(), optimizer=SGD(momentum=0.0), seed=0), device="cpu")
    assert relay.reduced_bytes < relay.sample_bytes / 10
    one = 6 * 400 * 4
    relay._memory = replace(relay._memory, device_budget=relay.bank.num_bytes + 16 * one)
    size, micro_batch = fit._reduced_sizes(relay, 64)
    assert micro_batch == 4  # with what is computed of them, half of the memory
    assert size * relay.reduced_bytes <= 8 * one < (size + micro_batch) * relay.reduced_bytes
    assert size > fit.chunk_size(relay, 64)


class OwnTotals(Tokens):
    def totals(self, outputs, targets):
        assert outputs[0].shape[-1] == 400
        return super().totals(outputs, targets)


def test_a_task_with_sums_of_its_own_gets_outputs():
    server = ParamServer(language_model(), optimizer=SGD(momentum=0.0), seed=0)
    tokens = torch.randint(400, (9, 7))
    split = Split((tokens[:, :-1],), tokens[:, 1:])
    one = Architecture(("embed", "linear"))
    runner = Relay(server, device="cpu")
    own = fit.evaluate(runner, one, split, task=OwnTotals(), micro_batch=4)
    assert own == pytest.approx(fit.evaluate(runner, one, split, task=Tokens(), micro_batch=4))
