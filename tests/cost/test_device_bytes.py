"""Device bytes against all that a step of a relay has on the device at its peak."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec, skip
from l2l_nas.cost.device_bytes import device_bytes, moved_bytes, owned_bytes, resident_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.space.operations import LiveBytes
from search_spaces.digits_conv import build as digits_conv
from search_spaces.encoder_decoder import EncoderBlock
from tests.products import every_pair
from tests.relay.counting import peak_bytes
from tests.relay.steps import copying
from tests.relay.stress import ORDERS
from tests.toys import SquaredError, random_data, unet_pool

WIDTH, LENGTH = 16, 8
BATCH = 64
CHOICES = {
    "convolutions": ["conv", "conv5", "skip", "sep3", "mlp", "conv", "skip", "conv3", "sep5", "skip", "linear"],
    "shallow": ["conv", *["skip"] * 4, "conv", *["skip"] * 4, "linear"],
    "encoders": ["small", "large", "skip", "small", "head"],
}


def encoders() -> LayerPool:
    """Encoder blocks of two sizes, and a head with classes."""
    blocks = [
        Candidate(name, partial(EncoderBlock, WIDTH, heads=2, feedforward=factor * WIDTH))
        for name, factor in (("small", 2), ("large", 4))
    ]
    head = Candidate("head", lambda: nn.Sequential(nn.Flatten(), nn.Linear(WIDTH * LENGTH, 10)))
    positions = [Position(f"p{index}", [*blocks, skip()]) for index in range(4)]
    return LayerPool([*positions, Position("end", head)], inputs=TensorSpec((LENGTH, WIDTH)))


def both(name: str, micro_batch: int, **options) -> tuple[float, int]:
    """What is reported, and what a step really has."""
    pool = encoders() if name == "encoders" else digits_conv()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", lanes="threads", **options)
    architecture = pool.architecture(CHOICES[name])
    inputs = torch.rand(BATCH, *pool.inputs[0].shape)
    targets = torch.arange(BATCH) % 10
    try:
        given = device_bytes(RelayPath(relay, cut_sizes(BATCH, micro_batch), architecture))
        real = peak_bytes(
            relay,
            lambda: relay.train_step(
                architecture, (inputs,), targets, objective=Classification(), micro_batch=micro_batch, lr=0.01, step=0
            ),
        )
    finally:
        relay.close()
    return given, real


OPTIONS = [{}, {"stash": "host"}, {"device_budget": "all"}, {"keep": 3}, {"precision": "bf16"}]


@every_pair(name=["convolutions", "shallow"], micro_batch=[64, 16], options=OPTIONS)
def test_convolutions_need_what_is_told(name, micro_batch, options):
    given, real = both(name, micro_batch, **options)
    assert given == pytest.approx(real, rel=0.02)  # the loss, which is float32, is not in it


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("micro_batch", [64, 16])
def test_attention_needs_no_more_than_what_is_told_and_not_much_less(micro_batch, options):
    """It is reported by its plain formula; the kernel of the CPU keeps less."""
    given, real = both("encoders", micro_batch, **options)
    assert 0.99 * real <= given <= 1.25 * real


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("micro_batch", [64, 16])
def test_values_that_wait_for_further_readers_count(micro_batch, options):
    pool = unet_pool(width=64)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", lanes="threads", **options)
    architecture = pool.architecture(["dense", "dense", "dense", "dense", "joined", "joined", "joined", "linear"])
    inputs, targets = random_data(pool, BATCH, seed=0)
    given = device_bytes(RelayPath(relay, cut_sizes(BATCH, micro_batch), architecture))
    try:
        real = peak_bytes(
            relay,
            lambda: relay.train_step(
                architecture, inputs, targets, objective=SquaredError(), micro_batch=micro_batch, lr=0.01, step=0
            ),
        )
    finally:
        relay.close()
    assert given == pytest.approx(real, rel=0.05)


def test_how_late_updates_are_changes_nothing_on_the_device(monkeypatch):
    """Their gradients wait on the host, in more blocks; where the device is the host, layers take these."""
    pool = unet_pool(width=64)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", lanes="threads")
    architecture = pool.architecture(["dense", "dense", "dense", "dense", "joined", "joined", "joined", "linear"])
    inputs, targets = random_data(pool, BATCH, seed=0)
    inbox, steps = relay.server.gradients, []
    update, allocate = inbox.update, inbox.allocate

    def late(*args, **options):
        time.sleep(0.05 * (len(steps) > 2))  # in the step that is counted
        update(*args, **options)

    def calm(*args, **options):
        time.sleep(0.02 * (len(steps) <= 2))  # before it, each block is free again when the next is wanted
        return allocate(*args, **options)

    def step():
        steps.append(len(steps))
        relay.train_step(
            architecture, inputs, targets, objective=SquaredError(), micro_batch=BATCH, lr=0.01, step=len(steps)
        )

    monkeypatch.setattr(inbox, "update", late)
    monkeypatch.setattr(inbox, "allocate", calm)
    try:
        assert device_bytes(RelayPath(relay, (BATCH,), architecture)) == pytest.approx(
            peak_bytes(relay, step), rel=0.05
        )
    finally:
        relay.close()


def test_a_network_with_larger_layers_needs_more_and_spilled_inputs_less():
    pool = digits_conv()
    large, small = (pool.architecture(CHOICES[name]) for name in ("convolutions", "shallow"))

    def given(architecture, **options):
        server = ParamServer(pool, optimizer=AdamW(), seed=0)
        return device_bytes(RelayPath(Relay(server, device="cpu", **options), (BATCH,), architecture))

    assert given(large) > given(small)
    assert given(large, stash="host") < given(large)
    assert given(large, device_budget="all") > given(large)


def test_the_first_layer_needs_no_gradient_of_its_inputs():
    wide = LayerPool([Position("only", Candidate("linear", lambda: nn.Linear(1000, 2)))], inputs=TensorSpec((1000,)))
    relay = Relay(ParamServer(wide, optimizer=AdamW(), seed=0), device="cpu")
    owned = len(relay.bank.slots) * relay.bank.slot_bytes + relay.stash.needs_bytes((BATCH,), frozenset())
    moment = device_bytes(RelayPath(relay, (BATCH,), wide.architecture(["linear"]))) - owned
    assert moment < BATCH * 1000 * 4


def test_the_counter_counts_what_lives():
    live = LiveBytes(meta=True)
    with live:
        first = torch.zeros(1000, device="meta")
        second = first.view(10, 100) + 1
        del second
    assert (live.now, live.peak) == (4000, 8000)


@every_pair(
    resident=[None, "all"],
    options=[{}, {"precision": "bf16"}, {"device_budget": "all"}],
    update=ORDERS,
)
def test_states_that_live_on_the_device_count(resident, options, update):
    pool = digits_conv()
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device=copying(), update=update, resident=resident, **options)
    architecture = pool.architecture(CHOICES["convolutions"])
    inputs, targets = torch.rand(BATCH, *pool.inputs[0].shape), torch.arange(BATCH) % 10
    path = RelayPath(relay, (BATCH,), architecture)
    for step in range(2):
        relay.train_step(
            architecture, (inputs,), targets, objective=Classification(), micro_batch=BATCH, lr=0.01, step=step
        )
    states = 0 if relay._device_states is None else relay._device_states.num_bytes
    relay.close()
    assert moved_bytes(path) == states
    assert relay.device_bytes == owned_bytes(path) + states
    assert bool(states) == (resident is not None)
    # no other gradients lie in blocks of the queue; those that are applied at once may follow each other in one
    if resident == "all" and update != "eager":
        blocks = sum(block.memory.numel() for block in server.gradients._blocks)
        saved = sum(block.numel() for blocks in server.gradients._spares for block in blocks)
        assert resident_bytes(path) - states == pytest.approx(blocks + saved, rel=0.02)
