"""Where everything is held, a step does what a plain loop does, and gives what a plan's execution gives."""

from __future__ import annotations

import gc
import random
import sys
import weakref

import pytest
import torch
from torch import nn

from l2l_nas import (
    SGD,
    AdamW,
    Candidate,
    Clip,
    LayerPool,
    Lion,
    ParamServer,
    Position,
    Relay,
    TensorSpec,
    add_loss,
)
from l2l_nas.errors import LaneError, NonFiniteError, SettingError, SpaceError, StateLostError
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.trace import Trace
from tests import toys
from tests.equivalence.plain import Plain
from tests.products import every_pair
from tests.relay.steps import PATH, chain_pool, is_same, relay_of, tensors, train
from tests.toys import SquaredError, random_data

OBJECTIVES = {"decoder": toys.BothHeads(), "language": toys.NextToken()}
CLIPS = {"eager": Clip(0.05, "layer"), "exact": Clip(0.05)}


def held(pool, **options):
    """A relay whose steps are held."""
    return relay_of(pool, **{"device": Cpu(), "device_budget": "all", "seed": 3} | options)


def by_plans(pool, **options):
    """A relay that copies weights to its slots and carries out a plan for each step."""
    return relay_of(pool, **{"device": Cpu(copies=True), "resident": None, "lanes": "inline", "seed": 3} | options)


def random_paths(pool, count, *, seed):
    draw, found = random.Random(seed), []
    while len(found) < count:
        choices = [draw.choice([c.name for c in position.candidates]) for position in pool.positions]
        if pool.path(choices):
            found.append(choices)
    return found


@every_pair(
    name=["dense", "language", "unet", "cell", "decoder", "repeated", "mixer"],
    update=["eager", "exact"],
    has_clip=[False, True],
)
def test_a_held_step_equals_a_plan_bit_for_bit(name, update, has_clip):
    pool = getattr(toys, f"{name}_pool")()
    options = {"update": update, "clip": CLIPS[update] if has_clip else None}
    # sums over the places of a tied or repeated weight depend on what is recomputed
    whole = {"device_budget": "all"} if name in ("language", "repeated") else {}
    relays = held(pool, **options, trace=Trace()), by_plans(pool, **options, **whole)
    paths = random_paths(pool, 3, seed=name)
    for step, choices in enumerate([*paths, paths[-1], paths[0]]):
        results = [
            train(relay, choices, step=step, micro_batch=2 + 3 * (step % 2), objective=OBJECTIVES.get(name))
            for relay in relays
        ]
        assert results[0] == results[1]
    assert {span.op for span in relays[0].trace.spans} == {"tail", "check", "update"}
    assert is_same(relays[0].server, tensors(relays[1].server))
    inputs, _ = random_data(pool, 5, seed=9)
    architectures = [pool.architecture(choices) for choices in paths]
    scored = [relay.predict_population(architectures, inputs, micro_batch=2) for relay in relays]
    for own, other in zip(*scored, strict=True):
        assert all(torch.equal(one, another) for one, another in zip(own, other, strict=True))


@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), Lion()], ids=lambda rule: rule.name)
def test_one_call_updates_all_states_as_one_call_for_each(optimizer):
    relays = [make(toys.dense_pool(), optimizer=optimizer) for make in (held, by_plans)]
    for relay in relays:
        for step in range(4):
            train(relay, [PATH, ["dense", "twice", "frozen", "normed", "linear"]][step % 2], step=step, batch=4 + step)
    assert is_same(relays[0].server, tensors(relays[1].server))


@pytest.mark.parametrize("micro_batch", [5, 2])
def test_a_held_step_equals_plain_pytorch(micro_batch):
    pool = toys.dense_pool()
    relay = held(pool)
    plain = Plain(ParamServer(pool, optimizer=AdamW(), seed=0), seed=3)
    for step, choices in enumerate(random_paths(pool, 5, seed=1)):
        inputs, targets = random_data(pool, 5, seed=step)
        options = {"objective": SquaredError(), "micro_batch": micro_batch, "lr": 0.01, "step": step}
        architecture = pool.architecture(choices)
        assert relay.train_step(architecture, inputs, targets, **options).loss == pytest.approx(
            plain.step(architecture, inputs, targets, **options), rel=1e-6
        )
    for key, module in plain.modules.items():
        for name, value in relay.server.state(key).parameters().items():
            assert torch.equal(value, module.get_parameter(name)), (key, name)


def test_all_of_a_held_step_is_done_at_once():
    relay = held(toys.dense_pool(), trace=Trace())
    train(relay, PATH)
    assert [(span.lane, span.op) for span in relay.trace.spans] == [
        ("compute", "tail"), ("host", "check"), ("host", "update"),
    ]  # fmt: skip
    train(held(toys.dense_pool(), lanes="threads", trace=relay.trace), PATH)
    assert "load" in {span.op for span in relay.trace.spans}


class Added(nn.Module):
    """Adds a loss, and gives what it takes beside what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(3), nn.Dropout(0.3)

    def forward(self, x):
        y = self.dropout(self.linear(self.norm(x)))
        add_loss(y.square().mean())
        return y + x


class Aliased(nn.Module):
    """Autograd gives both parameters gradients of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.shaped = nn.Parameter(torch.zeros(18)), nn.Parameter(torch.ones(3, 6))

    def forward(self, x):
        return x * (self.flat.view(3, 6) + self.shaped)


class Transposed(nn.Linear):
    """The gradient of what it takes is strided."""

    def forward(self, x):
        return super().forward(x.transpose(1, 2).contiguous().transpose(1, 2)).transpose(0, 1).transpose(0, 1)


@pytest.mark.parametrize("clip", [None, Clip(0.1)], ids=str)
@pytest.mark.parametrize("micro_batch", [5, 2])
def test_losses_of_layers_shared_gradients_and_strides_are_as_in_plans(micro_batch, clip):
    factories = (Added, Aliased, lambda: Transposed(6, 6), Added, lambda: nn.Linear(6, 2))
    relays = [make(chain_pool(*factories), update="exact", clip=clip) for make in (held, by_plans)]
    for step in range(3):
        results = [train(relay, ["c"] * 5, step=step, micro_batch=micro_batch) for relay in relays]
        assert results[0] == results[1]
        assert results[0].auxiliary > 0
    assert is_same(relays[0].server, tensors(relays[1].server))


class Bad(nn.Module):
    """Its gradient, its output, its parameter or its auxiliary loss is bad when the first number says so."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.linear, self.norm, self.fault, self.is_bad = nn.Linear(6, 6), nn.BatchNorm1d(3), fault, False

    def forward(self, x):
        y = self.linear(self.norm(x))
        if self.training and x.abs().max() > 100:
            if self.fault == "gradient":
                y = y + (self.linear.weight.sum() * 0.0).sqrt() * 0.0
            elif self.fault == "loss":
                add_loss(y.sum() * torch.inf)
            elif self.fault == "raises":
                raise RuntimeError("no such case")
            else:
                with torch.no_grad():
                    self.linear.weight.add_(0.0)
        return y


@pytest.mark.parametrize("update", ["eager", "exact"])
@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        ("gradient", NonFiniteError, "gradient of layer 'p1/c'"),
        ("loss", NonFiniteError, "auxiliary loss of layer 'p1/c'"),
        ("raises", SpaceError, "position 'p1': candidate 'c': its layer raised RuntimeError: no such case"),
        ("changes", SpaceError, "position 'p1': candidate 'c': changed its parameters"),
    ],
)
def test_a_refused_step_leaves_everything_as_it_was(fault, error, text, update):
    pool = chain_pool(lambda: nn.Linear(6, 6), lambda: Bad(fault), lambda: nn.Linear(6, 2))
    relay, other = held(pool, update=update), held(pool, update=update)
    for step in range(2):
        train(relay, ["c"] * 3, step=step)
        train(other, ["c"] * 3, step=step)
    inputs, targets = random_data(pool, 5, seed=2)
    before = tensors(relay.server)
    with pytest.raises(error, match=text):
        relay.train_step(
            pool.architecture(["c"] * 3), (inputs[0] * 1e4,), targets,
            objective=SquaredError(), micro_batch=5, lr=0.1, step=2,
        )  # fmt: skip
    assert is_same(relay.server, before)
    for step in range(3, 5):
        assert train(relay, ["c"] * 3, step=step) == train(other, ["c"] * 3, step=step)
    assert is_same(relay.server, tensors(other.server))


class Raising(SGD):
    """A rule of the user's that stops half-way in a layer of two outputs."""

    def update(self, weights, gradients, moments, steps, *, lr):
        super().update(weights[:1], gradients[:1], [one[:1] for one in moments], steps[:1], lr=lr)
        if len(weights[0]) == 2 and steps[0] == 2:
            raise RuntimeError("half-way")
        super().update(weights[1:], gradients[1:], [one[1:] for one in moments], steps[1:], lr=lr)


def test_an_update_that_ends_half_way_costs_the_state_that_it_was_of():
    pool = chain_pool(lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 2), lambda: nn.Linear(2, 2))
    relay = held(pool, optimizer=Raising())
    train(relay, ["c"] * 3)
    before = tensors(relay.server)
    with pytest.raises(LaneError, match=r"update of 'p2/c' failed: RuntimeError: half-way"):
        train(relay, ["c"] * 3, step=1)
    for key in ("p0/c", "p1/c"):
        assert all(torch.equal(value, before[key, name]) for name, value in relay.server.state(key).tensors().items())
    with pytest.raises(StateLostError, match="'p2/c' cannot be used"):
        train(relay, ["c"] * 3, step=1)


def test_a_joint_update_that_fails_costs_the_states_that_it_changed(monkeypatch):
    pool = chain_pool(lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 2))
    relay = held(pool)
    train(relay, ["c"] * 2)

    def half_way(rule, weights, *_, **__):
        weights[0].add_(1.0)
        raise RuntimeError("half-way")

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "update", half_way)
        with pytest.raises(LaneError, match="half-way"):
            train(relay, ["c"] * 2, step=1)
    with pytest.raises(StateLostError, match="'p1/c' cannot be used"):
        train(relay, ["c"] * 2, step=1)
    assert relay.server.state("p0/c").visits == 1


@pytest.mark.parametrize("update", ["eager", "exact"])
def test_steps_of_both_kinds_take_turns(update):
    """Large micro-batches do not fit, so that their steps are plans."""
    pool = toys.dense_pool()
    relays = held(pool, update=update, device_budget=100_000, trace=Trace()), by_plans(pool, update=update)
    kinds = []
    for step, batch in enumerate([4, 64, 4, 4, 64, 64, 4]):
        relays[0].trace.clear()
        results = [train(relay, PATH, step=step, batch=batch, micro_batch=batch, upcoming=PATH) for relay in relays]
        assert results[0] == results[1]
        kinds.append(len(relays[0].trace.spans) <= 3)
    assert is_same(relays[0].server, tensors(relays[1].server))
    assert kinds == [True, False, True, True, False, False, True]


def test_a_fork_and_its_server_are_trained_apart():
    pool = toys.dense_pool()
    relays = held(pool), by_plans(pool)
    for relay in relays:
        train(relay, PATH)
        first = relay.server
        fork = first.fork(first.visited)
        relay.use(fork)
        train(relay, PATH, step=1)
        relay.use(first)
        train(relay, PATH, step=2)
        relay.drain()
        relay.found = tensors(fork), tensors(first)
    for own, other in zip(relays[0].found, relays[1].found, strict=True):
        assert all(torch.equal(own[name], other[name]) for name in other)


def calls_of(do, *arguments, **named):
    """How many functions a call runs, Python's and C's."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        do(*arguments, **named)
    finally:
        sys.setprofile(None)
    return count


def test_a_held_step_costs_little_more_than_its_layers():
    """Counted, as time depends on the machine: functions that are called for each layer beside its own."""
    counts = []
    for depth in (8, 24):
        pool = chain_pool(*[lambda: nn.Linear(6, 6)] * (depth - 1), lambda: nn.Linear(6, 2))
        relay = held(pool)
        for step in range(2):
            train(relay, ["c"] * depth, step=step, micro_batch=5)
        inputs, _ = random_data(pool, 5, seed=0)
        architecture = pool.architecture(["c"] * depth)
        relay.predict(architecture, inputs, micro_batch=5)
        scoring = calls_of(relay.predict, architecture, inputs, micro_batch=5)
        train(relay, ["c"] * depth, step=2, micro_batch=5)
        counts.append([calls_of(train, relay, ["c"] * depth, step=3, micro_batch=5), scoring])
    module = nn.Linear(6, 6)
    own = calls_of(module, torch.zeros(5, 6))
    per_layer = [(large - small) / 16 - own for small, large in zip(*counts, strict=True)]
    assert per_layer[0] < 75
    assert per_layer[1] < 35


class Late(nn.Module):
    """Has two weights whose gradients are one tensor in autograd, and uses them from the second micro-batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(18)), nn.Parameter(torch.ones(18))

    def forward(self, x):
        return x * 1.0 if float(x.detach().abs().max()) > LARGE else x * self.sum()

    def sum(self):
        return self.first.view(3, 6) + self.second.view(3, 6)


class Moody(nn.Module):
    """Puts its dropout into evaluation where its input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 6), nn.Dropout(0.5)

    def forward(self, x):
        if self.training and float(x.detach().abs().max()) > LARGE:
            self.dropout.eval()
        return self.dropout(self.linear(x)).sigmoid()


class Clamping(nn.Module):
    """Writes to what it takes where that is large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        if self.training and float(x.detach().abs().max()) > LARGE:
            x.clamp_(-1, 1)
        return self.linear(x)


LARGE = 50.0


@pytest.mark.parametrize("kind", [Late, Moody, Clamping])
def test_what_data_decides_in_one_step_is_as_in_a_plan_and_gone_in_the_next(kind):
    relays = [make(chain_pool(kind, kind, lambda: nn.Linear(6, 2))) for make in (held, by_plans)]
    pool = relays[0].server.pool
    path = pool.architecture(["c"] * 3)
    for relay in relays:
        for step in range(6):
            inputs, targets = random_data(pool, 6, seed=step)
            inputs = tuple(torch.cat([tensor[:2] * (4 * LARGE if step == 2 else 1.0), tensor[2:]]) for tensor in inputs)
            before = [tensor.clone() for tensor in inputs]
            relay.train_step(path, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.01, step=step)
            assert all(map(torch.equal, inputs, before))
    assert is_same(relays[0].server, tensors(relays[1].server))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(self.norm(x))


def test_a_layer_that_is_used_again_after_many_others_has_its_own_buffers(monkeypatch):
    monkeypatch.setattr("l2l_nas.relay.bank._MOST_SEPARATE", 16)
    kinds = [Candidate(f"c{number}", Normed) for number in range(4)]
    positions = [Position(f"p{number}", kinds) for number in range(8)]
    pool = LayerPool([*positions, Position("end", Candidate("c", lambda: nn.Linear(6, 2)))], inputs=TensorSpec((3, 6)))
    relays = [make(pool) for make in (held, by_plans)]
    paths = random_paths(pool, 6, seed=2)
    for relay in relays:
        for step in range(20):
            train(relay, paths[step % 6], step=step)
    assert is_same(relays[0].server, tensors(relays[1].server))


def test_states_that_were_replaced_are_let_go():
    relay = held(toys.dense_pool())
    train(relay, PATH)
    server = relay.server
    old = [weakref.ref(server.storage.open(key)) for key in server.visited]
    copies = {key: server.state(key).clone() for key in server.visited}
    server.clear()
    for key, copy in copies.items():
        server.storage.put(key, copy)
    gc.collect()
    assert not any(reference() is not None for reference in old)


def test_a_server_that_is_at_work_for_another_relay_is_refused():
    first = held(toys.dense_pool())
    second = Relay(first.server, device="cpu", device_budget="all")

    class Meddling(SquaredError):
        def loss(self, outputs, targets):
            with pytest.raises(SettingError, match="this server is at work already"):
                train(second, PATH, step=1)
            return super().loss(outputs, targets)

    train(first, PATH, objective=Meddling())
    train(second, PATH, step=1)
