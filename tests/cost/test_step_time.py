"""Predicted step times: work against closed forms, bytes against the real executor."""

from __future__ import annotations

import pytest
import torch

from l2l_nas.cost.flops import Flops
from l2l_nas.cost.hardware import PROFILES
from l2l_nas.cost.step_time import StepTime, state_bytes
from l2l_nas.cost.work import layer_work
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.space.probe import BATCH
from l2l_nas.space.shapes import check_shapes
from tests.relay.pinning import PinningCpu
from tests.relay.steps import PATH, relay_of, train
from tests.toys import decoder_pool, dense_pool, language_pool, unet_pool

H100 = PROFILES["h100"]


def test_a_forwards_products_are_those_of_the_flop_counter_and_a_backward_has_twice_as_many():
    pool = dense_pool()
    shapes = check_shapes(pool)
    counted = Flops(pool, shapes)
    for layer in pool.layers:
        inputs = shapes.takes[layer.position]
        forward, backward = layer_work(pool, layer, inputs, BATCH, dtype=torch.float32, needs_gradient=True)
        assert forward.flops == counted.of_layer(layer) * BATCH
        if forward.flops and any(p.requires_grad for p in pool.build_module(layer).parameters()):
            assert backward.flops == 2 * forward.flops
            assert backward.kernels > 0
    assert any(counted.of_layer(layer) for layer in pool.layers)


def test_more_samples_take_longer_and_a_faster_device_less():
    relay = relay_of(dense_pool())
    path = relay.pool.architecture(PATH)
    slow = H100.__class__(**{**H100.to_json(), "peak_flops": {"fp32": 1e9}, "kernel_s": 0.0})
    fast = H100.__class__(**{**H100.to_json(), "peak_flops": {"fp32": 1e12}, "kernel_s": 0.0})
    assert StepTime(relay, (64,), slow)(path) > StepTime(relay, (8,), slow)(path) > StepTime(relay, (8,), fast)(path)


@pytest.mark.parametrize("update", ["eager", "exact"])
@pytest.mark.parametrize("build", [dense_pool, unet_pool, decoder_pool, language_pool])
def test_it_predicts_for_all_kinds_of_pools(build, update):
    relay = relay_of(build(), update=update, stash="host")
    choices = [position.candidates[0].name for position in relay.pool.positions]
    found = StepTime(relay, cut_sizes(5, 2), H100).predict(relay.pool.architecture(choices), with_spans=True)
    assert found.simulation.step_s >= max(found.simulation.busy_s.values())
    assert found.checkpointed_s > found.plain_s > 0
    assert {span.op for span in found.simulation.spans} >= {"load", "tail", "send", "update"}
    assert found.pinned_bytes <= found.host_bytes


def test_a_states_bytes_are_those_that_it_has():
    relay = relay_of(dense_pool())
    train(relay, PATH)
    for key in relay.server.visited:
        state = relay.server.state(key)
        own = [state.weights, *state.moments, state.steps, state.buffers]
        assert state_bytes(relay, key) == sum(block.numel() * block.element_size() for block in own)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_on_the_wire_count_once_and_as_far_as_they_are_stored(precision):
    def predicted(**options):
        relay = relay_of(dense_pool(), device=PinningCpu(), precision=precision, **options)
        path = relay.pool.architecture(PATH)
        found = StepTime(relay, (4,), H100).predict(path)
        for step in range(2):
            train(relay, PATH, step=step)
        relay.drain()
        return found, relay.wire.used_bytes

    every, stored = predicted()
    none, nothing = predicted(pinned=None)
    some, _ = predicted(pinned=500)
    assert (stored > 0, nothing) == (True, 0)
    assert every.pinned_bytes - none.pinned_bytes == stored
    assert some.pinned_bytes - none.pinned_bytes == 500
    # in fp32 the masters themselves are pinned
    assert every.host_bytes - none.host_bytes == (stored if precision == "bf16" else 0)
    assert predicted(resident="all")[0].pinned_bytes <= none.pinned_bytes


def test_each_step_time_is_found_once():
    relay = relay_of(dense_pool())
    step_time = StepTime(relay, (4,), H100)
    path = relay.pool.architecture(PATH)
    assert step_time(path) == step_time(path) > 0
    assert len(step_time._chains) == 1
