"""What goes wrong while a layer or an objective runs: named, and nothing is trained by it."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, ParamServer, ReferenceTrainer, Relay
from l2l_nas.errors import SettingError, SpaceError
from tests.relay.steps import chain_pool, copying, tensors, train
from tests.relay.steps import relay_on_host as relay_of
from tests.toys import SquaredError

SCALE = nn.Parameter(torch.ones(()))
COUNT = itertools.count()
FACTORS = itertools.cycle([1.0, 1.0, math.nan])  # of two micro-batches, and the first one again


class Seldom(nn.Module):
    """Goes wrong only where a value says so, which no probe sees."""

    def __init__(self, how):
        super().__init__()
        self.linear, self.how = nn.Linear(6, 6), how

    def forward(self, x):
        y = self.linear(x)
        return self.how(self, y) if bool(x.eq(0).all()) else y


def writes(self, y):
    with torch.no_grad():
        self.linear.bias.add_(1)
    return self.linear(y)


def moves(self, y):
    self.linear.bias.data = self.linear.bias.data.clone()
    return self.linear(y)


def replaces(self, y):
    self.linear.bias = nn.Parameter(self.linear.bias.detach() + 1)
    return self.linear(y)


def draws(self, y):
    return y * (random.random() + next(COUNT))  # two draws alone may be close to each other


def breaks(self, y):
    return y * next(FACTORS)


def fails(self, y):
    raise RuntimeError("no\nway")


@pytest.mark.parametrize("budget", [None, "all"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (writes, "changed its parameters"),
        (moves, "moved or replaced its parameters"),
        (replaces, "moved or replaced its parameters"),
        (draws, "other outputs when the backward"),
        (breaks, "other outputs when the backward"),
        (fails, "raised RuntimeError: no way"),
    ],
)
def test_what_goes_wrong_only_on_some_inputs_is_refused_by_name(how, message, budget):
    pool = chain_pool(partial(Seldom, how), partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2))
    relay, path = relay_of(pool, device_budget=budget, device=copying()), pool.architecture(["c"] * 3)
    train(relay, path.choices)
    before = tensors(relay.server)
    if how in (draws, breaks) and budget:
        return  # nothing is run again
    with pytest.raises(SpaceError, match=message) as caught:
        relay.train_step(
            path, (torch.zeros(4, 3, 6),), torch.zeros(4, 3, 2),
            objective=SquaredError(), micro_batch=2, lr=0.1, step=1,
        )  # fmt: skip
    assert caught.value.position == "p0"
    relay.drain()
    assert_same_of(relay.server, before, "p0/c")
    if how in (moves, replaces):  # the slot is as it was
        inputs, other = (torch.ones(4, 3, 6),), relay_of(pool, device=copying())
        other.use(relay.server.fork(relay.server.visited))
        assert torch.equal(*(one.predict(path, inputs, micro_batch=2)[0] for one in (relay, other)))
    if how is fails:
        with pytest.raises(SpaceError, match=r"position 'p0'.*raised RuntimeError"):
            relay.predict(path, (torch.zeros(4, 3, 6),), micro_batch=2)


def assert_same_of(server, before, key):
    after = tensors(server)
    assert all(torch.equal(after[place], value) for place, value in before.items() if place[0] == key)


def test_a_batch_norm_that_meets_one_sample_is_named():
    pool = chain_pool(Flat, partial(nn.Linear, 6, 2))
    with pytest.raises(SpaceError, match=r"position 'p0'.*more than 1 value per channel.*no rest of 1"):
        train(relay_of(pool), ["c", "c"], batch=5, micro_batch=2)


class Flat(nn.Module):
    """BatchNorm over the mean of each sample."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return x + self.norm(x.mean(1))[:, None]


class Weighted:
    """Targets weigh little."""

    def loss(self, outputs, targets):
        return 0.05 * (outputs[0] - targets).square().sum()

    def count(self, targets):
        return 0.05 * targets.numel() / 10


def test_weights_of_targets_may_sum_to_less_than_one():
    pool = chain_pool(partial(nn.Linear, 6, 2))
    assert train(relay_of(pool), ["c"], objective=Weighted()).count == pytest.approx(0.15)


class Learning:
    """A loss with a parameter, in a place where nothing finds it."""

    def loss(self, outputs, targets):
        return (SCALE * outputs[0] - targets).square().sum()

    def count(self, targets):
        return targets.numel()


@pytest.mark.parametrize("kind", [Relay, ReferenceTrainer])
def test_an_objective_that_would_learn_is_refused(kind):
    server = ParamServer(chain_pool(partial(nn.Linear, 6, 2)), optimizer=AdamW(), seed=0)
    with pytest.raises(SettingError, match="objective Learning has parameters of its own"):
        train(kind(server, device="cpu"), ["c"], objective=Learning())


class Gathering(nn.LSTM):
    """As recurrent layers on CUDA: their weights go to memory of their own when others took their place."""

    def flatten_parameters(self):
        for weight in self._flat_weights:
            weight.data = weight.data.clone()

    def forward(self, x):
        return super().forward(x)[0]


def test_recurrent_layers_use_the_weights_that_are_in_the_slot():
    ours, plain = (
        Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=copying())
        for pool in (
            chain_pool(partial(kind, 6, 6, batch_first=True), partial(nn.Linear, 6, 2)) for kind in (Gathering, Outputs)
        )
    )
    assert [train(ours, ["c", "c"], step=step).loss for step in range(4)] == [
        train(plain, ["c", "c"], step=step).loss for step in range(4)
    ]


class Outputs(nn.LSTM):
    """An LSTM without its last state."""

    def forward(self, x):
        return super().forward(x)[0]
