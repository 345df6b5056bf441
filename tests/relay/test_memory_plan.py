"""MemoryPlan: device bytes by depth and pool, budgets kept, and what more memory spares."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.cost.device_bytes import device_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.errors import SettingError
from l2l_nas.layers.conv import ConvBlock
from l2l_nas.relay.measure import layer_needs
from l2l_nas.relay.trace import Trace
from l2l_nas.space.operations import LiveBytes
from search_spaces.encoder_decoder import EncoderBlock
from tests.relay.counting import peak_bytes
from tests.relay.steps import PATH, chain_pool, relay_of, train
from tests.toys import SquaredError, dense_pool

WIDTH, LENGTH = 16, 8
encoder = partial(EncoderBlock, WIDTH, heads=2, feedforward=2 * WIDTH)
MARGIN = 1.0  # of a budget, that is never exceeded


class Wide(nn.Module):
    """Its forward makes much, and keeps little for its backward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x) + torch.cumsum(x.repeat(1, 1, 64), 1).amax(-1, keepdim=True)


class Lean(Wide):
    """Its backward makes more than its forward keeps."""

    def forward(self, x):
        return self.linear(x) + (self.linear(x).unsqueeze(-1).expand(*x.shape, 64) * 0.5).mean(-1)


def stack(depth, candidates=1, factory=encoder):
    """Encoder blocks, of which each position has so many, and a head."""
    choices = [Candidate(f"c{number}", factory) for number in range(candidates)]
    head = Position("head", [Candidate("c0", partial(nn.Linear, WIDTH, 2))])
    positions = [Position(f"p{index}", choices) for index in range(depth)]
    return LayerPool([*positions, head], inputs=TensorSpec((LENGTH, WIDTH)))


def relay_on(pool, **options):
    return Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", lanes="threads", **options)


def stepper(relay, *, batch=8, micro_batch=2):
    """Takes a step on a path through the last candidate of every position."""
    pool = relay.pool
    architecture = pool.architecture([position.candidates[-1].name for position in pool.positions])
    inputs, targets = torch.ones(batch, LENGTH, WIDTH), torch.ones(batch, LENGTH, 2)

    def step():
        relay.train_step(
            architecture, (inputs,), targets, objective=SquaredError(), micro_batch=micro_batch, lr=0.01, step=0
        )

    return step


def peak(pool, *, batch=8, micro_batch=2, **options):
    relay = relay_on(pool, **options)
    try:
        return peak_bytes(relay, stepper(relay, batch=batch, micro_batch=micro_batch))
    finally:
        relay.close()


def least(pool, sizes, **options):
    """The smallest budget, as the refusal of a smaller one says."""
    with pytest.raises(SettingError, match="is too small for these layers and micro-batches") as caught:
        relay_on(pool, device_budget=1, **options).memory_plan(sizes)
    return int(re.search(r"the least is ([\d,]+\d)", str(caught.value))[1].replace(",", ""))


def test_the_counter_counts_what_lives():
    live = LiveBytes()
    with live:
        first = torch.zeros(1000)
        second = first.view(10, 100) + 1
        del second
        weight = first.requires_grad_()
        (weight * 2).square().sum().backward()
    assert live.now == 2 * 4000  # the tensor and its gradient
    assert 4 * 4000 <= live.peak < 5 * 4000 + 100


@pytest.mark.slow
def test_with_the_stash_on_the_host_thirty_two_times_the_depth_needs_the_same_memory():
    needs = {depth: peak(stack(depth), stash="host") for depth in (6, 192)}
    assert needs[192] <= 1.02 * needs[6]


def test_with_the_stash_on_the_device_memory_grows_with_depth():
    needs = {depth: peak(stack(depth)) for depth in (4, 12)}
    assert needs[12] - needs[4] >= 8 * (8 * LENGTH * WIDTH * 4)


def test_pools_of_four_and_of_sixty_four_candidates_a_position_need_the_same_memory():
    assert peak(stack(3, 4)) == peak(stack(3, 64))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_needs_less_memory(precision):
    assert peak(stack(6), precision=precision, update="exact") < 0.75 * peak(stack(6), update="exact")


@pytest.mark.slow
@pytest.mark.parametrize("stash", ["device", "host"])
@pytest.mark.parametrize("factory", [encoder, Wide, Lean])
def test_a_budget_is_kept_and_a_larger_one_keeps_more(factory, stash):
    pool, sizes = stack(6, factory=factory), (2,) * 4
    start = least(pool, sizes, stash=stash)
    kept = []
    for factor in (1.0, 1.2, 1.5, 2.0, 3.0, 5.0):
        relay = relay_on(pool, stash=stash, device_budget=int(factor * start))
        used = peak_bytes(relay, stepper(relay))
        assert used <= MARGIN * factor * start, f"{used:,} of {factor * start:,.0f}"
        kept.append(relay.memory_plan(sizes).keep)
        assert len(relay.bank.slots) == relay.memory_plan(sizes).slots
        relay.close()
    assert kept == sorted(kept)
    assert kept[0] == 1
    assert kept[-1] == len(pool)


def test_one_byte_less_than_the_least_is_refused_and_the_least_is_not():
    pool, sizes = stack(4), (2, 1)
    for stash in ("device", "host"):
        start = least(pool, sizes, stash=stash)
        with pytest.raises(SettingError, match=f"the least is {start:,}"):
            relay_on(pool, stash=stash, device_budget=start - 1).memory_plan(sizes)
        assert relay_on(pool, stash=stash, device_budget=start).memory_plan(sizes).keep == 1


def test_a_question_changes_nothing():
    relay = relay_on(stack(6), device_budget=int(1.5 * least(stack(6), (8,))))
    step = stepper(relay)
    step()
    sizes = (2,) * 4
    before = relay.memory_plan(sizes), len(relay.bank.slots)
    assert relay.memory_plan((8,)).slots < before[1]
    assert (relay.memory_plan(sizes), len(relay.bank.slots)) == before
    RelayPath(relay, (8,), relay.pool.architecture(["c0"] * 7))
    assert (relay.memory_plan(sizes), len(relay.bank.slots)) == before


def test_the_refusal_recommends_the_host_unless_the_stash_is_there():
    with pytest.raises(SettingError, match=r"or less with relay\.stash=host"):
        relay_on(stack(8), device_budget=1).memory_plan((2,))
    with pytest.raises(SettingError) as caught:
        relay_on(stack(8), device_budget=1, stash="host").memory_plan((2,))
    assert "stash=host" not in str(caught.value)
    assert least(stack(8), (8,) * 8, stash="host") < least(stack(8), (8,) * 8)


def test_what_a_smaller_batch_leaves_free_is_given_back_when_a_larger_one_comes():
    pool = stack(6)
    start = int(1.1 * least(pool, (2,) * 4, stash="host"))
    relay = relay_on(pool, stash="host", device_budget=start)
    stepper(relay, batch=1, micro_batch=1)()
    assert len(relay.bank.slots) > 2
    assert peak_bytes(relay, stepper(relay)) <= MARGIN * start
    stepper(relay, batch=1, micro_batch=1)()
    assert peak_bytes(relay, stepper(relay)) <= MARGIN * start


def test_a_change_of_slots_between_steps_changes_no_result():
    sizes = [5, 1, 4, 1, 5, 2]
    results = []
    for budget in (None, 30_000):
        relay = relay_of(dense_pool(), device_budget=budget, stash="host", update="exact", lanes="threads")
        results.append(
            [train(relay, PATH, step=n, batch=size, micro_batch=2, upcoming=PATH) for n, size in enumerate(sizes)]
        )
        results[-1].append({key: relay.server.state(key).weights.tolist() for key in relay.server.visited})
    assert results[0] == results[1]


def loads_of(relay, steps=2):
    """How often each layer is loaded in the last of some steps."""
    relay.trace = trace = Trace()
    relay.lanes._trace = trace
    step = stepper(relay)
    for _ in range(steps):
        seen = len(trace.spans)
        step()
        relay.drain()
    return Counter(span.layer for span in trace.spans[seen:] if span.op == "load")


def test_with_a_budget_of_all_each_layer_is_loaded_once_and_nothing_runs_twice():
    relay = relay_on(stack(6), device_budget="all")
    assert set(loads_of(relay).values()) == {1}
    assert len(loads_of(relay)) == 7
    assert not [span for span in relay.trace.spans if span.op in ("forward", "backward", "fetch", "store")]


def test_more_budget_means_fewer_loads():
    pool = stack(6)
    start = least(pool, (2,) * 4)
    counts = [sum(loads_of(relay_on(pool, device_budget=int(f * start))).values()) for f in (1, 2, 3, 6)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 7


class Recurrent(nn.LSTM):
    """An LSTM over [batch, length, width]."""

    def forward(self, x):
        return super().forward(x)[0]


@pytest.mark.parametrize(
    ("factory", "shape", "low", "high"),
    [
        (partial(EncoderBlock, 64, heads=4, feedforward=256, dropout=0.1), (32, 64), 0.7, 1.05),
        (partial(ConvBlock, 16), (16, 16, 16), 0.5, 1.05),
        (partial(nn.Linear, 64, 64), (32, 64), 0.4, 1.05),
        # on a CPU its own kernel keeps the gates of every step, of which nothing shows on meta tensors
        (partial(Recurrent, 32, 32, batch_first=True), (20, 32), 1.5, 2.5),
    ],
    ids=["encoder", "conv", "linear", "lstm"],
)
def test_what_a_layer_keeps_is_about_what_was_reckoned(factory, shape, low, high):
    """The reckoning counts the input, too, and what the layer gives."""
    pool = LayerPool([Position("p", [Candidate("c", factory)])], inputs=TensorSpec(shape))
    module, leaf = factory().train(), torch.randn(8, *shape).requires_grad_()
    live = LiveBytes()
    with live:
        output = module(leaf)
    assert output.requires_grad
    needs = layer_needs(pool, pool.layers[0], pool.inputs, 8, dtype=torch.float32)
    assert low <= live.now / needs.kept <= high


class Turning(nn.Module):
    """Buffers of types that no precision changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("turns", torch.ones(6, dtype=torch.complex64))
        self.register_buffer("scale", torch.ones(6, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.turns *= 1j
            self.scale *= 1.01
        if bool(torch.isnan(x).any()):  # meta cannot tell, so that it runs on the host
            return self.linear(x.float())
        eye = torch.eye(6, dtype=torch.float64, device=x.device)
        own = (self.scale @ eye + self.turns.real).to(self.linear.weight.dtype)
        return self.linear(x.to(self.linear.weight.dtype)) * own


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_buffers_of_other_types_are_reckoned_with(precision):
    head = Position("head", [Candidate("c", partial(nn.Linear, 6, 2))])
    for dtype in (torch.float32, torch.float64):
        positions = [Position("first", [Candidate("c", Turning)]), Position("next", [Candidate("c", Turning)]), head]
        pool = LayerPool(positions, inputs=TensorSpec((3, 6), dtype))
        architecture = pool.architecture(["c"] * 3)
        inputs, targets = torch.rand(5, 3, 6).to(dtype), torch.rand(5, 3, 2)
        options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.05}
        losses = []
        for budget in (1 << 20, None):
            relay = relay_of(pool, device_budget=budget, precision=precision, update="exact")
            steps = [relay.train_step(architecture, (inputs,), targets, step=step, **options) for step in range(3)]
            losses.append([step.loss for step in steps])
        assert losses[0] == losses[1]
        assert device_bytes(RelayPath(relay, (2, 2, 1), architecture)) > 0


def test_layers_that_need_more_than_the_tail_are_reckoned_with():
    pool = chain_pool(partial(nn.Linear, 6, 6), Wide, partial(nn.Linear, 6, 2))
    wide = layer_needs(pool, pool.layers[1], pool.inputs, 2, dtype=torch.float32)
    assert least(pool, (2, 2)) > wide.kept


class Wide(nn.Module):
    """Little goes in and out, much is kept in between."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 1000), nn.Linear(1000, 6)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))
