"""Buffers that no forward changes stay where they are; those that one changes, always or at times, equal plain's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.errors import SpaceError, StateLostError
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.visits import Visits
from tests.equivalence.plain import Plain
from tests.relay.steps import PATH, copying, relay_of, train
from tests.toys import SquaredError, dense_pool, random_data

W, LARGE, STEPS = 6, 50.0, 8


class Masked(nn.Module):
    """Has a constant mask and a constant table."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)
        self.register_buffer("mask", torch.ones(3, 3).tril().bool(), persistent=False)
        self.register_buffer("table", torch.linspace(0, 1, 3 * W).view(3, W))

    def forward(self, x):
        self.change(x)
        return (self.linear(x) + self.table).masked_fill(self.mask[0].view(1, 3, 1), 0.5) + x

    def change(self, x):
        """Nothing."""


class OnLarge(Masked):
    """Changes its table where its input is large: never where the probe looks."""

    def change(self, x):
        if self.training and float(x.detach().abs().max()) > LARGE:
            self.table.mul_(0.5)


class BySize(Masked):
    """Changes its table in a batch of one sample, which the probe does not try, by a way that torch does not count."""

    def change(self, x):
        if self.training and len(x) == 1:
            self.table.data.add_(0.25)


class Statistics(Masked):
    """Has BatchNorm's statistics, which it changes where its input is large; torch does not count that."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def change(self, x):
        if self.training and float(x.detach().abs().max()) > LARGE:
            functional.batch_norm(x.detach(), self.mean, self.var, training=True)

    def forward(self, x):
        return super().forward(x) * self.var.view(1, 3, 1).rsqrt()


def pool_of(kind):
    positions = [Position(name, [Candidate("layer", kind)]) for name in ("first", "second", "third")]
    return LayerPool(
        [*positions, Position("head", [Candidate("linear", lambda: nn.Linear(W, 2))])], inputs=TensorSpec((3, W))
    )


def data(pool, step, *, is_large):
    inputs, targets = random_data(pool, 5, seed=step)
    return (inputs[0] * (100 if is_large else 1),), targets


def watched(relay, monkeypatch):
    """The keys whose buffers are stored."""
    stored, store = [], relay._training.states.store_buffers

    def storing(key, *arguments):
        stored.append(key)
        store(key, *arguments)

    monkeypatch.setattr(relay._training.states, "store_buffers", storing)
    return stored


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"precision": "bf16"}, {"device_budget": "all"}], ids=str)
def test_buffers_that_no_forward_changes_are_not_saved(options, monkeypatch):
    pool = pool_of(Masked)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), **{"device": copying()} | options)
    stored = watched(relay, monkeypatch)
    for step in range(STEPS):
        inputs, targets = data(pool, step, is_large=False)
        relay.train_step(pool.original, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.01, step=step)
    relay.drain()
    assert stored == []
    assert relay.server.state("first/layer").visits == STEPS


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}, {"slots": 3, "keep": 2}, {"lanes": "threads"}], ids=str)
@pytest.mark.parametrize("kind", [OnLarge, BySize, Statistics])
def test_a_layer_that_changes_its_buffers_only_at_times_trains_as_plain(kind, options):
    pool = pool_of(kind)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), **{"device": copying()} | options)
    plain = Plain(
        ParamServer(pool, optimizer=AdamW(), seed=0),
        seed=0,
        layer_major=lambda layers, sizes: relay.memory_plan(tuple(sizes)).keep,
    )
    for step in range(STEPS):
        inputs, targets = data(pool, step, is_large=step in (5, 7))
        named = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
        loss = relay.train_step(pool.original, inputs, targets, **named).loss
        assert loss == plain.step(pool.original, inputs, targets, **named)
    relay.close()
    for layer in pool.path(pool.original):
        state = relay.server.state(layer.key)
        for name, buffer in plain.module(layer).named_buffers():
            assert torch.equal(state.named_buffers()[name], buffer), f"{layer.key} {name}"
        for name, parameter in plain.module(layer).named_parameters():
            assert torch.equal(state.parameters()[name], parameter), f"{layer.key} {name}"
    changed = dict(pool.build_module(pool.layers[0]).named_buffers())
    own = relay.server.state("first/layer").named_buffers()
    assert any(not torch.equal(own[name], buffer) for name, buffer in changed.items()), "nothing was tried"


def test_a_change_that_torch_does_not_know_of_and_that_begins_late_is_refused_by_name():
    class Late(Masked):
        begins = False

        def change(self, x):
            if self.training and Late.begins:
                self.table.data.add_(0.25)

    pool = pool_of(Late)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=copying())

    def train(steps):
        for step in steps:
            inputs, targets = data(pool, step, is_large=False)
            relay.train_step(
                pool.original, inputs, targets, objective=SquaredError(), micro_batch=5, lr=0.01, step=step
            )

    train(range(5))
    Late.begins = True
    with pytest.raises(SpaceError, match="first"):
        train(range(5, 9))


class Scaled(nn.Module):
    """Changes its table where its input is large, and learns by what the table is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)
        self.register_buffer("table", torch.linspace(0, 1, 3 * W).view(3, W))

    def forward(self, x):
        if self.training and float(x.detach().abs().max()) > LARGE:
            self.table.mul_(0.5)
        return 30 * (self.linear(x) * self.table.clone() + x)


def test_a_layer_that_changes_its_buffers_at_a_later_use_is_recomputed_with_those_of_the_first():
    pool = LayerPool.repeated(
        [Candidate("layer", Scaled)],
        depth=3,
        inputs=TensorSpec((3, W)),
        last=Candidate("head", lambda: nn.Linear(W, 2)),
    )
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=copying())
    plain = Plain(
        ParamServer(pool, optimizer=AdamW(), seed=0),
        seed=0,
        layer_major=lambda layers, sizes: relay.memory_plan(tuple(sizes)).keep,
    )
    for step in range(2):
        inputs, targets = data(pool, step, is_large=False)
        named = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
        loss = relay.train_step(pool.original, inputs, targets, **named).loss
        assert loss == plain.step(pool.original, inputs, targets, **named)
    relay.close()
    layer = pool.path(pool.original)[0]
    state = relay.server.state(layer.key)
    assert not torch.equal(state.named_buffers()["table"], Scaled().table), "nothing was tried"
    for name, parameter in plain.module(layer).named_parameters():
        assert torch.equal(state.parameters()[name], parameter), name


@pytest.mark.parametrize("device", ["cpu", "copying"])
@pytest.mark.parametrize("is_set", [False, True])
def test_a_buffer_that_a_forward_moves_at_times_is_refused_by_name_and_bound_again(is_set, device):
    class Moves(Masked):
        def change(self, x):
            if self.training and float(x.detach().abs().max()) > LARGE:
                if is_set:
                    self.table.set_(self.table * 0.5)
                else:
                    self.table.data = self.table * 0.5

    pool = pool_of(Moves)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=copying() if device == "copying" else device)
    plain = Plain(
        ParamServer(pool, optimizer=AdamW(), seed=0),
        seed=0,
        layer_major=lambda layers, sizes: relay.memory_plan(tuple(sizes)).keep,
    )
    for step in range(3):
        inputs, targets = data(pool, step, is_large=step == 1)
        named = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
        if step == 1:
            with pytest.raises(SpaceError, match="replaces the buffer 'table'"):
                relay.train_step(pool.original, inputs, targets, **named)
        else:
            loss = relay.train_step(pool.original, inputs, targets, **named).loss
            assert loss == plain.step(pool.original, inputs, targets, **named)


class FrozenNorm(nn.Module):
    """Learns nothing, so that no backward needs it; its statistics follow the data all the same."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3).requires_grad_(False)

    def forward(self, x):
        return self.norm(x)


@pytest.mark.parametrize("update", ["eager", "exact"])
@pytest.mark.parametrize("options", [{}, {"slots": 3, "keep": 4}, {"device_budget": "all"}])
def test_the_next_step_s_first_layer_begins_with_the_buffers_that_this_step_left(options, update):
    last = Candidate("head", lambda: nn.Linear(W, 2))
    pool = LayerPool.repeated([Candidate("norm", FrozenNorm)], depth=3, inputs=TensorSpec((3, W)), last=last)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu", update=update, lanes="threads", **options)
    path = pool.architecture(["norm", "norm", "norm", "head"])
    for step in range(STEPS):
        inputs, targets = random_data(pool, 4, seed=step)
        relay.train_step(
            path, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.1, step=step, upcoming=path
        )  # fmt: skip
    relay.close()
    assert int(server.state("shared/norm").named_buffers()["norm.num_batches_tracked"]) == 3 * 2 * STEPS


def test_a_step_tells_its_own_error_though_a_state_was_lost_with_it(monkeypatch):
    """Where an update ends half-way, the state's buffers cannot be put back."""
    relay = relay_of(dense_pool())
    train(relay, PATH)

    def lost(self, key, buffers, *_):
        raise StateLostError(key, RuntimeError())

    def load(self, *_):
        monkeypatch.setattr(StateAccess, "store_buffers", lost)
        raise ZeroDivisionError("in the backward")

    monkeypatch.setattr(Visits, "backward", load)
    with pytest.raises(SpaceError, match="in the backward"):
        train(relay, PATH, step=1)
