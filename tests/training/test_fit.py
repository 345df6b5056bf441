from __future__ import annotations

import itertools

import pytest
import torch

from l2l_nas import AdamW, Classification, ParamServer, Relay, UniformPaths
from l2l_nas.errors import SpaceError
from l2l_nas.relay.interface import StepResult
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches, Split
from l2l_nas.training.fit import Trainer, evaluate
from l2l_nas.training.samples import SCORING, Samples
from l2l_nas.training.schedule import Cosine
from tests.nas.problems import data, pool_of


def trainer(pool):
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0))
    return relay, Trainer(relay, Classification(), Batches(data().train, batch_size=16, seed=0), 7)


def weights_of(relay):
    return {
        (key, name): tensor.clone()
        for key in relay.server.visited
        for name, tensor in relay.server.state(key).tensors().items()
    }


def test_steps_in_two_calls_are_the_steps_of_one():
    pool = pool_of("tanh", "normed", "skip", depth=3)
    results = []
    for cuts in ((0, 9), (0, 4, 9)):
        relay, train = trainer(pool)
        losses: list[float] = []
        for start, stop in itertools.pairwise(cuts):
            train.fit(
                UniformPaths(pool, seed=0).path_at,
                start=start,
                steps=stop - start,
                schedule=Cosine(0.01, 9),
                after_step=lambda step, loss, losses=losses: losses.append(loss),
            )
        results.append((losses, weights_of(relay)))
    assert results[0][0] == results[1][0]
    assert len(results[0][0]) == 9
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


def test_the_schedule_sees_the_step_less_the_offset(monkeypatch):
    pool = pool_of("tanh")
    relay, train = trainer(pool)
    rates: list[float] = []
    real = relay.train_step
    monkeypatch.setattr(relay, "train_step", lambda *args, lr, **kw: (rates.append(lr), real(*args, lr=lr, **kw))[1])
    schedule = Cosine(0.01, 5)
    train.fit(UniformPaths(pool, seed=0).path_at, start=40, steps=5, schedule=schedule, offset=40)
    assert rates == [schedule.at(step) for step in range(5)]


@pytest.mark.slow
def test_training_learns():
    pool = pool_of("tanh", depth=1)
    _, train = trainer(pool)
    path = UniformPaths(pool, seed=0).path_at(0)
    before = train.evaluate(path, data().train)["loss"]
    train.fit(lambda step: path, start=0, steps=150, schedule=Cosine(0.02, 150))
    after = train.evaluate(path, data().train)
    assert after["loss"] < before / 2
    assert after["accuracy"] > 0.9


def test_evaluation_does_not_depend_on_how_it_is_cut_and_changes_nothing():
    pool = pool_of("normed", depth=2)
    relay, train = trainer(pool)
    path = UniformPaths(pool, seed=0).path_at(0)
    generator = torch.Generator().manual_seed(0)
    split = Split((torch.randn(2500, 2, generator=generator),), torch.randint(2, (2500,), generator=generator))
    train.evaluate(path, split)
    before = weights_of(relay)
    results = [evaluate(relay, path, split, task=Classification(), micro_batch=size) for size in (64, 1000, 4096)]
    assert len({result["accuracy"] for result in results}) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(relay).items())


def test_recalibration_does_nothing_where_there_is_no_batch_norm(monkeypatch):
    pool = pool_of("tanh")
    relay, train = trainer(pool)
    monkeypatch.setattr(relay, "recalibrate", lambda *_: (_ for _ in ()).throw(AssertionError))
    train.recalibrate(UniformPaths(pool, seed=0).path_at(0))


class Recorder:
    """An executor that computes nothing, and remembers which architectures it was given."""

    def __init__(self) -> None:
        self.server = None
        self.calls: list[tuple[Architecture, Architecture | None]] = []

    def train_step(self, architecture, inputs, targets, *, upcoming, **settings) -> StepResult:
        self.calls.append((architecture, upcoming))
        return StepResult(0.0, 1)


def test_every_step_is_told_the_next_one_s_architecture_and_the_last_one_none():
    pool = pool_of("tanh", "relu", depth=4)
    paths = UniformPaths(pool, seed=0)
    asked: list[int] = []
    recorder = Recorder()
    train = Trainer(recorder, Classification(), Batches(data().train, batch_size=16, seed=0), 7)
    train.fit(lambda step: (asked.append(step), paths.path_at(step))[1], start=3, steps=4, schedule=Cosine(0.01, 9))
    chosen = [paths.path_at(step) for step in range(3, 7)]
    assert recorder.calls == list(zip(chosen, [*chosen[1:], None], strict=True))
    assert asked == [3, 4, 5, 6]
    train.fit(paths.path_at, start=7, steps=0, schedule=Cosine(0.01, 9))
    assert len(recorder.calls) == 4


class Whole(Split):
    """What does not fill a mini-batch is one of its own."""

    drops_last = False


@pytest.mark.parametrize(
    ("samples", "batch", "micro", "steps", "is_refused"),
    [
        (17, 16, 16, 1, False),  # the second step is that of one sample
        (17, 16, 16, 2, True),
        (21, 16, 4, 2, True),  # the last of 5 in micro-batches of 4
        (20, 16, 4, 4, False),
        (16, 16, 15, 1, True),
        (16, 16, 1, 1, True),
        (33, 16, 16, 1, False),
    ],
)
def test_a_layer_that_cannot_train_on_one_sample_is_refused_before_anything_runs(
    samples, batch, micro, steps, is_refused
):
    pool = pool_of("tanh", "normed", depth=2)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0))
    part = Whole((torch.randn(samples, 2),), torch.randint(2, (samples,)))
    train = Trainer(relay, Classification(), Batches(part, batch_size=batch, seed=0), micro)

    def fit(*choices: str, done: list[int]) -> None:
        train.fit(
            lambda step: Architecture(("linear", *choices, "linear")),
            start=0,
            steps=steps,
            schedule=Cosine(0.01, steps),
            after_step=lambda step, loss: done.append(step),
        )

    done: list[int] = []
    fit("tanh", "tanh", done=done)
    assert len(done) == steps
    if not is_refused:
        fit("tanh", "normed", done=done)
        assert len(done) == 2 * steps
        return
    with pytest.raises(SpaceError) as refused:
        fit("tanh", "normed", done=done)
    assert (refused.value.position, refused.value.candidate) == ("p1", "normed")
    assert len(done) == steps


class InParts(Samples):
    """Few are read together; the sizes are noted."""

    at_once = 3

    def __init__(self, whole):
        self.whole, self.sizes = whole, []

    def __len__(self):
        return len(self.whole)

    def batch(self, rows, *, key=SCORING):
        self.sizes.append(len(rows))
        return self.whole.batch(rows)


def test_an_evaluation_reads_no_more_together_than_samples_allow():
    pool = pool_of("tanh", depth=2)
    _, train = trainer(pool)
    split = data().train
    parts = InParts(split)
    assert train.evaluate(pool.original, parts) == pytest.approx(train.evaluate(pool.original, split))
    assert parts.sizes == [3] * (len(split) // 3) + [len(split) % 3] * (len(split) % 3 > 0)
    train.evaluate(pool.original, some := parts.some(torch.arange(7)))
    assert parts.sizes[-3:] == [3, 3, 1]
    assert some.at_once == 3
