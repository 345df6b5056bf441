"""The conformance suites: our own implementations pass them, and what is broken does not."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import random
from dataclasses import replace

import optuna
import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import AdamW, Candidate, Data, LayerPool, ParamServer, Position, Problem, Relay, TensorSpec, testing
from l2l_nas.compress.blockwise import STRATEGIES
from l2l_nas.cost.catalogue import build_costs
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.optimizers.registry import OPTIMIZERS, build_optimizer
from l2l_nas.eps.storage import RamStorage
from l2l_nas.layers import Embedding, Heads, LinearAttention, SelfAttention, StateHeads, StateSpace
from l2l_nas.nas.evaluation.early_stopping import EARLY_STOPS, NeverStop
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler
from l2l_nas.testing.problems import small_data, small_pool
from l2l_nas.training.schedule import SCHEDULES
from tests.cli.runs import ROOT


def extension(name):
    spec = importlib.util.spec_from_file_location(f"extension_{name}", ROOT / "examples" / "extensions" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HIDDEN = torch.randn(2, 11, 16, generator=torch.Generator().manual_seed(0))
EXTENDING = {
    "attention": (lambda: SelfAttention(16, Heads(4, key_value=2, rotary=100.0)), HIDDEN),
    "window": (lambda: SelfAttention(16, Heads(2, window=3)), HIDDEN),
    "linear attention": (lambda: LinearAttention(16, 2), HIDDEN),
    "state space": (lambda: StateSpace(16, StateHeads(2, size=16, state=8)), HIDDEN),
    "embedding": (lambda: Embedding(9, 16, places=11), torch.arange(22).view(2, 11) % 9),
}


@pytest.mark.parametrize("name", EXTENDING)
def test_our_layers_that_go_on_token_by_token(name):
    testing.check_extend(*EXTENDING[name])


class Unplaced(SelfAttention):
    """Begins to count places anew."""

    def extend(self, x, cache):
        given, (key, value, _) = super().extend(x, cache)
        return given, (key, value, torch.tensor(0)) if cache is None else (key, value, torch.tensor(7))


class Growing(LinearAttention):
    """Writes into the cache that it was given."""

    def extend(self, x, cache):
        given, (states,) = super().extend(x, cache)
        return given, (states,) if cache is None else (cache[0].copy_(states),)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_our_samplers(name):
    testing.check_sampler(lambda seed: build_sampler(name, seed=seed, num_trials=24, num_finished=0), trials=24)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gp_hamming", "nsga2"])
def test_our_samplers_with_two_objectives(name):
    testing.check_sampler(
        lambda seed: build_sampler(name, seed=seed, num_trials=24, num_finished=0), num_goals=2, trials=24
    )


@pytest.mark.parametrize("name", sorted(EARLY_STOPS))
@pytest.mark.parametrize("num_goals", [1, 2])
def test_our_rules_of_early_stopping(name, num_goals):
    testing.check_early_stop(lambda goals: EARLY_STOPS[name](goals), num_goals=num_goals)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weights"),
    [*itertools.product(["default", "random_search"], ["shared", "scratch"]), ("blockwise", "fork")],
)
def test_our_strategies(name, weights):
    testing.check_strategy(STRATEGIES[name], trial_weights=weights, warmup_steps=4 * (weights == "shared"))


@pytest.mark.slow
def test_our_storages(tmp_path):
    testing.check_storage(lambda pool: RamStorage())
    with contextlib.closing(FileStorage(tmp_path, frames=3)) as files:
        testing.check_storage(lambda pool: files)


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_our_optimizers(name, moments):
    lr = {"lion": 0.003, "adafactor": 0.05}.get(name, 0.01)
    testing.check_optimizer(lambda: build_optimizer({"name": name, "moments": moments}), lr=lr)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_our_schedules(name):
    testing.check_schedule(name)


@pytest.mark.slow
def test_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = extension("space")
    testing.check_space(space.build)
    testing.check_cost(space.activations, space.build().pool)
    testing.check_sampler(extension("sampler").Neighbours)
    testing.check_callback(extension("callback").Table)
    testing.check_strategy(extension("strategy").blocks)
    pool = space.build().pool
    testing.check_cost(extension("cost").Depth(pool), pool)
    testing.check_storage(lambda pool: extension("storage").Packed())


@pytest.mark.parametrize("name", ["parameters", "flops", "streamed_bytes", "device_bytes"])  # what is not measured
def test_our_costs(name):
    pool = small_pool()
    with contextlib.closing(Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")) as relay:
        costs = build_costs(relay, (8,), build=lambda architecture: nn.Identity(), inputs=[torch.zeros(8, 2)])
        testing.check_cost(lambda architecture: costs.value(name, architecture), pool)


# -- what is broken ----------------------------------------------------------------------------------------------------


NUMBERS = itertools.count()


class Forgetful(optuna.samplers.RandomSampler):
    def __init__(self) -> None:
        super().__init__(seed=random.randrange(10**6))


class Changing(l2l_nas.Callback):
    """Trains a little on its own."""

    def trial(self, record, records):
        record.metrics["accuracy"] = 0.0
        torch.manual_seed(1)

    def phase(self, name, *, total, done):
        if name == "finalists":
            raise ValueError("no finalists")


class Deaf(NeverStop):
    def __init__(self) -> None:
        self.seen = 0

    def stop_reason(self, architecture, rung, values):
        self.seen += 1
        return "too late" if self.seen > 50 else None


class Twice(l2l_nas.Phase):
    """Forgets, when a search goes on, that trials are done."""

    def run(self, search):
        search.budget = replace(search.budget, trials=search.study.num_evaluated + 4)
        l2l_nas.Trials().run(search)


class Lossy(RamStorage):
    def writing(self, key, part=None):
        state = self._states[key]
        before = state.tensors()["weights." + next(iter(state.parameters()))].clone()

        @contextlib.contextmanager
        def opened():
            yield state
            state.tensors()["weights." + next(iter(state.parameters()))].copy_(before)

        return opened()


class Remembering(AdamW):
    """Keeps a tensor to itself."""

    def update(self, weights, gradients, moments, steps, *, lr):
        before = self.__dict__.setdefault("before", {})
        summed = [gradient + before.get(weight.shape, 0) for weight, gradient in zip(weights, gradients, strict=True)]
        before.update({weight.shape: gradient for weight, gradient in zip(weights, summed, strict=True)})
        super().update(weights, summed, moments, steps, lr=lr)


class Writing(AdamW):
    """Leaves gradients other than it found them."""

    def update(self, weights, gradients, moments, steps, *, lr):
        super().update(weights, gradients, moments, steps, lr=lr)
        for gradient in gradients:
            gradient.mul_(2)


class Uncounted(AdamW):
    """Does not count."""

    def update(self, weights, gradients, moments, steps, *, lr):
        super().update(weights, gradients, moments, [step.clone() for step in steps], lr=lr)


class Backwards(AdamW):
    """Climbs."""

    def update(self, weights, gradients, moments, steps, *, lr):
        super().update(weights, [-gradient for gradient in gradients], moments, steps, lr=lr)


class Tired:
    """A schedule that depends on how often it was asked."""

    def __init__(self, peak, steps):
        self.rate = peak

    def at(self, step):
        self.rate *= 0.9
        return self.rate


def noisy():
    """Other data each time."""
    pool = LayerPool([Position("a", Candidate("linear", lambda: nn.Linear(2, 2)))], inputs=TensorSpec((2,)))
    x = torch.randn(40, 2)
    return Problem(pool, Data.from_arrays(x, (x[:, 0] > 0).long()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: testing.check_sampler(lambda seed: Forgetful()), "of one seed proposed different"),
        (lambda: testing.check_callback(Changing), "no finalists"),
        (lambda: testing.check_early_stop(lambda goals: Deaf()), "what it learns of earlier trials"),
        (lambda: testing.check_strategy(lambda: [l2l_nas.WarmUp(), Twice(), l2l_nas.Finalists()]), "evaluated"),
        (lambda: testing.check_strategy(lambda: [l2l_nas.WarmUp()]), "chose nothing to return"),
        (lambda: testing.check_storage(lambda pool: Lossy()), "is not what was written"),
        (lambda: testing.check_space(noisy), "data differ"),
        (lambda: testing.check_extend(lambda: Unplaced(16, Heads(2, rotary=10.0)), HIDDEN), "differs from forward by"),
        (lambda: testing.check_extend(lambda: Growing(16, 2), HIDDEN), "changed the cache"),
        (lambda: testing.check_optimizer(Remembering), "depends on other parameters, or on itself"),
        (lambda: testing.check_optimizer(Writing), "changes gradients"),
        (lambda: testing.check_optimizer(Uncounted), "update adds 1"),
        (lambda: testing.check_optimizer(Backwards), "does not learn with lr=0.01"),
        (lambda: testing.check_schedule(Tired), "at step"),
        (lambda: testing.check_schedule(lambda peak, steps: lambda step: 0.1), "does not follow its peak"),
        (lambda: testing.check_cost(lambda one: next(NUMBERS), small_pool()), r"gave \d+ and then \d+"),
        (lambda: testing.check_cost(lambda one: float("nan"), small_pool()), "expected a finite number"),
    ],
    ids=[
        *("sampler", "callback", "early stop", "strategy", "no choice", "storage", "space", "places", "cache"),
        *("memory", "gradients", "count", "climb", "tired", "peak", "cost", "nan"),
    ],
)
def test_what_does_not_do_it_is_named(check, words):
    with pytest.raises((AssertionError, ValueError, l2l_nas.errors.L2LError), match=words):
        check()


def test_the_small_problem_has_two_classes():
    assert set(small_data().train.targets.tolist()) == {0, 1}
