"""What goes wrong while a layer or an objective runs: named, and nothing is trained by it."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, ParamServer, Relay, Resident
from l2l_nas.errors import SettingError, SpaceError
from tests.relay.test_executor import chain_pool, relay_of, tensors, train
from tests.toys import SquaredError

SCALE = nn.Parameter(torch.ones(()))


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


def draws(self, y):
    return y * random.random()


def fails(self, y):
    raise RuntimeError("no\nway")


@pytest.mark.parametrize("budget", [None, "all"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        (writes, "changed its parameters"),
        (draws, "other outputs when the backward"),
        (fails, "raised RuntimeError: no way"),
    ],
)
def test_what_goes_wrong_only_on_some_inputs_is_refused_by_name(how, message, budget):
    pool = chain_pool(partial(Seldom, how), partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2))
    relay, path = relay_of(pool, device_budget=budget), pool.architecture(["c"] * 3)
    train(relay, path.choices)
    before = tensors(relay.server)
    if how is draws and budget:
        return  # nothing is run again
    with pytest.raises(SpaceError, match=message) as caught:
        relay.train_step(
            path, (torch.zeros(4, 3, 6),), torch.zeros(4, 3, 2),
            objective=SquaredError(), micro_batch=2, lr=0.1, step=1,
        )  # fmt: skip
    assert caught.value.position == "p0"
    relay.drain()
    assert_same_of(relay.server, before, "p0/c")
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


@pytest.mark.parametrize("kind", [Relay, Resident])
def test_an_objective_that_would_learn_is_refused(kind):
    server = ParamServer(chain_pool(partial(nn.Linear, 6, 2)), optimizer=AdamW(), seed=0)
    with pytest.raises(SettingError, match="objective Learning has parameters of its own"):
        train(kind(server, device="cpu"), ["c"], objective=Learning())
