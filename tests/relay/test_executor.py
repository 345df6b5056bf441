"""The executor: of what fails the caller hears by name, and training goes on as if the step had not been asked for."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.errors import LaneError, NonFiniteError, StorageError, UserCodeError
from tests.products import every_pair
from tests.relay.steps import OTHER, PATH, chain_pool, in_time, is_same, relay_of, tensors, train
from tests.relay.stress import AHEAD, CHECKED, ORDERS, Stress
from tests.toys import SquaredError, dense_pool

# methods of the relay's access to states and of the inbox, and the plan's names
CALLS = {"open": "load", "add": "send", "store_buffers": "save"}


class FailsOnce:
    """Stands for one of these methods, and raises at one call; it suffices as nothing else is changed."""

    def __init__(self, relay, name, at, error=None):
        owner = relay._training.states if name in ("open", "store_buffers") else relay.server.gradients
        self.real, self.left, self.error = getattr(owner, name), at, error or OSError("disk full")
        self.failed = None
        setattr(owner, name, self)

    def __call__(self, key, *args, **kwargs):
        self.left -= 1
        if self.left == -1:
            self.failed = key
            raise self.error
        return self.real(key, *args, **kwargs)


@every_pair(name=[*CALLS], at=[0, 1], update=[CHECKED, AHEAD], lanes=["threads", "inline"])
def test_a_failed_copy_names_the_layer_and_refuses_the_step_as_if_it_had_not_been_asked_for(name, at, update, lanes):
    relay, other = (relay_of(dense_pool(), update=update, lanes=lanes, slots=2) for _ in range(2))
    for one in (relay, other):
        train(one, PATH, upcoming=OTHER)
    relay.server.drain()
    fails = FailsOnce(relay, name, at)
    with pytest.raises(LaneError, match="disk full") as caught:
        in_time(lambda: train(relay, OTHER, step=1))
    assert (caught.value.op, caught.value.layer) == (CALLS[name], fails.failed)
    assert relay.server.gradients.waiting == {}
    for step in (2, 3):
        assert train(relay, OTHER, step=step) == train(other, OTHER, step=step)
    assert is_same(relay.server, tensors(other.server))


@pytest.mark.parametrize("name", [*CALLS, "update"])
def test_with_eager_updates_a_failure_leaves_a_relay_that_trains_on(name):
    for at in range(2 if name == "store_buffers" else 5):
        relay = relay_of(dense_pool(), lanes="threads", slots=2)
        train(relay, PATH)
        relay.drain()
        fails = FailsOnce(relay, name, at)
        with pytest.raises(LaneError, match="disk full") as caught:
            in_time(lambda relay=relay: (train(relay, PATH, step=1), relay.drain()))
        assert fails.failed == caught.value.layer
        assert relay.server.gradients.waiting == {}
        assert len(relay.server.gradients._blocks) == len({id(buffer) for buffer in relay.server.gradients._blocks})
        in_time(lambda relay=relay: (train(relay, PATH, step=2), relay.close()))
        assert all(t.isfinite().all() for t in tensors(relay.server).values())


@pytest.mark.parametrize(("update", "at"), [(CHECKED, 2), (AHEAD, 0)])
def test_a_failed_update_is_heard_of_at_the_next_step_or_drain_and_others_are_done(update, at):
    relay = relay_of(dense_pool(), update=update, lanes="threads")
    train(relay, PATH)
    relay.drain()
    FailsOnce(relay, "update", at)
    with pytest.raises(LaneError, match=r"update of .* failed: OSError: disk full"):
        in_time(lambda: (train(relay, PATH, step=1), train(relay, PATH, step=2), relay.drain()))
    in_time(lambda: (train(relay, PATH, step=3), relay.close()))  # an update that was not begun is done now
    assert relay.server.gradients.waiting == {}


def test_an_error_of_our_own_is_not_wrapped():
    relay = relay_of(dense_pool(), lanes="threads")
    FailsOnce(relay, "open", 1, StorageError("the file is gone"))
    with pytest.raises(StorageError, match="the file is gone"):
        in_time(lambda: train(relay, PATH))


def test_a_failed_load_in_prediction_leaves_a_relay_that_predicts():
    relay = relay_of(dense_pool(), lanes="threads")
    inputs = (torch.ones(3, 3, 6),)
    architecture = relay.pool.architecture(PATH)
    expected = relay.predict(architecture, inputs, micro_batch=2)[0]
    FailsOnce(relay, "open", 2)
    with pytest.raises(LaneError, match="load of 'layer2/running' failed"):
        in_time(lambda: relay.predict(architecture, inputs, micro_batch=2))
    assert torch.equal(in_time(lambda: relay.predict(architecture, inputs, micro_batch=2))[0], expected)


def test_a_loss_that_raises_is_told_as_such_and_the_step_is_refused():
    relay, other = (relay_of(dense_pool(), update="exact", lanes="threads") for _ in range(2))
    for one in (relay, other):
        train(one, PATH)
    with pytest.raises(UserCodeError, match="the task's loss raised RuntimeError: mat1"):
        in_time(lambda: train(relay, PATH, step=1, objective=Wrong()))
    assert train(relay, PATH, step=2) == train(other, PATH, step=2)
    assert is_same(relay.server, tensors(other.server))


def test_a_count_that_raises_is_told_as_such():
    class Odd(SquaredError):
        def count(self, targets):
            return 1 / 0

    with pytest.raises(UserCodeError, match="the task's count raised ZeroDivisionError"):
        train(relay_of(dense_pool()), PATH, objective=Odd())


class Wrong(SquaredError):
    """Multiplies what cannot be multiplied."""

    def loss(self, outputs, targets):
        return (outputs[0] @ outputs[0].new_ones(7, 7)).sum()


class Root(nn.Module):
    """Its gradient is infinite at zero, where it starts; its output is finite."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(6, 6), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.linear(x) + self.scale.sqrt() * x


def root_pool():
    linear = partial(nn.Linear, 6, 6)
    return LayerPool(
        [
            *(Position(f"p{i}", [Candidate("root", Root), Candidate("linear", linear)]) for i in range(3)),
            Position("head", [Candidate(name, partial(nn.Linear, 6, 2)) for name in ("one", "two")]),
        ],
        inputs=TensorSpec((3, 6)),
    )


@pytest.mark.parametrize("slow_s", [0.0, 0.05])
@pytest.mark.parametrize("apart", [False, True])
def test_eager_names_layer_and_step_of_a_bad_gradient_in_the_next_step_at_the_latest(apart, slow_s):
    """Even where the next path has nothing in common with the one that failed; if the update is over by then."""
    relay = relay_of(root_pool(), lanes="threads", stress=Stress(0, 0.0, {"update": slow_s}))
    follower = ["linear", "linear", "linear", "two" if apart else "one"]

    def steps():
        train(relay, ["linear", "root", "linear", "one"], step=7)
        for future in relay._training._executor._schedule.updates.values():
            future.wait()
        train(relay, follower, step=8)

    with pytest.raises(NonFiniteError, match="gradient of layer 'p1/root' is not finite at step 7") as caught:
        in_time(steps)
    assert (caught.value.layer, caught.value.step) == ("p1/root", 7)
    assert relay.server.gradients.waiting == {}
    assert relay.server.state("p1/root").visits == 0
    in_time(lambda: (train(relay, follower, step=9), relay.drain()))
    assert all(t.isfinite().all() for t in tensors(relay.server).values())


def test_eager_names_a_bad_gradient_when_it_is_drained():
    relay = relay_of(root_pool(), lanes="threads", stress=Stress(0, 0.0, {"update": 0.1}))
    train(relay, ["root", "linear", "linear", "one"])
    with pytest.raises(NonFiniteError, match="'p0/root'"):
        in_time(lambda: relay.server.state("p0/root"))
    assert relay.server.state("p0/root").parameters()["scale"] == 0


@pytest.mark.parametrize("lanes", ["threads", "inline"])
@pytest.mark.parametrize("update", [CHECKED, AHEAD])
def test_exact_and_serial_refuse_a_step_with_a_bad_gradient_as_if_it_had_not_been_asked_for(update, lanes):
    pool = chain_pool(partial(nn.BatchNorm1d, 3), Root, partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2))
    relay, other = (relay_of(pool, update=update, lanes=lanes) for _ in range(2))
    for one in (relay, other):
        one.server.state("p1/c").parameters()["scale"].fill_(1.0)
        for step in range(2):
            train(one, ["c"] * 4, step=step, upcoming=["c"] * 4)
    before = tensors(relay.server)
    other.server.drain()
    state = relay.server.state("p1/c")
    value = state.parameters()["scale"].item()
    state.parameters()["scale"].zero_()
    state.mark_changed()
    with pytest.raises(NonFiniteError, match="gradient of layer 'p1/c' is not finite at step 2"):
        in_time(lambda: train(relay, ["c"] * 4, step=2))
    state.parameters()["scale"].fill_(value)
    state.mark_changed()
    assert is_same(relay.server, before)  # BatchNorm's statistics too
    assert relay.server.gradients.waiting == {}
    for step in (3, 4):
        assert train(relay, ["c"] * 4, step=step) == train(other, ["c"] * 4, step=step)
    assert is_same(relay.server, tensors(other.server))


@pytest.mark.parametrize("update", ORDERS)
def test_any_mixture_of_refused_and_good_steps_equals_the_good_ones(update):
    relay, other = (relay_of(dense_pool(), update=update, lanes="threads") for _ in range(2))
    paths = itertools.cycle([PATH, OTHER])
    for step, path in zip(range(12), paths, strict=False):
        if step % 3 == 1:
            with pytest.raises(NonFiniteError, match=f"loss is not finite at step {step}"):
                in_time(lambda path=path, step=step: train(relay, path, step=step, objective=Bad(), upcoming=PATH))
        else:
            assert train(relay, path, step=step, upcoming=OTHER) == train(other, path, step=step)
    known = {name: t for name, t in tensors(relay.server).items() if name[0] in other.server.visited}
    assert is_same(other.server, known)


class Bad(SquaredError):
    """Divides by nothing."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) / 0
