"""Predicted step times: work against closed forms, bytes against the real executor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.cost.closed_form import pool_bytes, state_bytes, wire_bytes
from l2l_nas.cost.flops import Flops
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.step_time import StepTime
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.measure import layer_needs
from l2l_nas.space.dry_run import BATCH
from l2l_nas.space.shapes import check_shapes
from tests.eps.test_wire import stored_bytes
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
        needs = layer_needs(pool, layer, inputs, BATCH, dtype=torch.float32)
        forward, backward = needs.forward, needs.backward
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


def test_a_smaller_last_micro_batch_takes_as_much_less_as_it_is_smaller():
    relay = relay_of(dense_pool())
    path = relay.pool.architecture(PATH)
    hardware = replace(H100, kernel_s=0.0)  # there are as many kernels, however small
    whole, with_rest = (StepTime(relay, sizes, hardware).latency_ms(path) for sizes in [(4,), (4, 1)])
    assert with_rest == pytest.approx(1.25 * whole)


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
    layers = relay.pool.path(relay.pool.architecture(choices))
    states = {state for layer in layers for state in layer.states if relay.server.layout(state).is_trainable}
    assert {span.layer for span in found.simulation.spans if span.op == "update"} == states
    values = {name for names in relay.pool.wiring.writes for name in names}
    assert {span.layer for span in found.simulation.spans if span.op in ("store", "fetch")} <= values


def test_a_states_bytes_are_those_that_it_has():
    relay = relay_of(dense_pool())
    train(relay, PATH)
    for key in relay.server.visited:
        state = relay.server.state(key)
        own = [state.weights, *state.moments, state.steps, state.buffers]
        assert state_bytes(relay, key) == sum(block.numel() * block.element_size() for block in own)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_on_the_wire_count_once_where_they_are_stored(precision):
    def predicted(**options):
        relay = relay_of(dense_pool(), device=PinningCpu(), precision=precision, **options)
        path = relay.pool.architecture(PATH)
        found = StepTime(relay, (4,), H100).predict(path)
        for step in range(2):
            train(relay, PATH, step=step)
        relay.drain()
        return found, stored_bytes(relay.server)

    every, stored = predicted()
    none, nothing = predicted(pinned=None)
    assert (stored > 0, nothing) == (True, 0)
    assert every.pinned_bytes - none.pinned_bytes == stored
    # in fp32 the masters themselves are pinned
    assert every.host_bytes - none.host_bytes == (stored if precision == "bf16" else 0)
    assert predicted(resident="all")[0].pinned_bytes <= none.pinned_bytes


@pytest.mark.parametrize("options", [{}, {"pinned": None}, {"precision": "fp32"}])
def test_memory_of_layers_has_what_is_stored_of_their_weights_in_the_wire_s_dtype(options):
    relay = relay_of(dense_pool(), **{"precision": "bf16", **options})
    train(relay, PATH)
    relay.drain()
    layers = relay.pool.path(relay.pool.architecture(PATH))
    states = {state for layer in layers for state in layer.states}
    assert pool_bytes(relay, layers) == sum(state_bytes(relay, key) for key in states) + stored_bytes(relay.server)
    assert (stored_bytes(relay.server) > 0) == (not options)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_no_copy_is_stored_of_is_rounded_for_each_load(precision):
    def predicted(**options):
        relay = relay_of(dense_pool(), device=PinningCpu(), precision=precision, **options)
        slow = replace(H100, host_bandwidth=1e6)
        return StepTime(relay, (4,), slow), relay

    def rounded(step_time, relay):
        return step_time.predict(relay.pool.architecture(PATH)).simulation.busy_s["round"]

    every, none = predicted(), predicted(pinned=None)
    assert rounded(*every) == 0
    layers = none[1].pool.path(none[1].pool.architecture(PATH))
    states = [state for layer in layers for state in layer.states]
    masters = sum(none[1].server.layout(state).parameter_bytes for state in states)
    once = (masters + wire_bytes(none[1].pool, states, PRECISIONS[precision])) / 1e6
    assert once < rounded(*none) <= 2 * once
    assert rounded(*predicted(resident="all", pinned=None)) == 0
    times = [one.predict(relay.pool.architecture(PATH)).simulation for one, relay in (every, none)]
    assert times[0].step_s < 0.5 * times[1].step_s
    assert times[1].binds == "round"


def test_where_the_device_is_the_host_weights_are_rounded_to_where_layers_compute():
    pool = LayerPool(
        [Position(f"p{index}", [Candidate("linear", partial(nn.Linear, 16, 16, bias=False))]) for index in range(4)],
        inputs=TensorSpec((16,)),
    )

    def busy(precision, **options):
        relay = relay_of(pool, precision=precision, **options)
        laptop = replace(PROFILES["laptop"], link_up=1e6, host_bandwidth=2e6, copy_s=0.0)
        return StepTime(relay, (4,), laptop).predict(pool.architecture(["linear"] * 4)).simulation.busy_s

    assert busy("fp32")["up"] == 0  # they compute where the masters lie
    # 2 bytes of a parameter are copied, or 4 are read and 2 written
    assert busy("bf16", pinned=None)["up"] == pytest.approx(1.5 * busy("bf16")["up"])
    assert busy("bf16", pinned=None)["round"] == 0


def test_states_in_files_pass_through_a_pinned_block_unless_they_live_on_the_device():
    relay = relay_of(dense_pool(), device=PinningCpu())
    path = relay.pool.architecture(PATH)
    found = StepTime(relay, (4,), H100, in_files=True).predict(path)
    assert found.simulation.busy_s["round"] > 0 < found.simulation.busy_s["disk"]
    resident = relay_of(dense_pool(), device=PinningCpu(), resident="all")
    assert StepTime(resident, (4,), H100, in_files=True).predict(path).simulation.busy_s["disk"] == 0


def test_what_lives_on_the_device_is_updated_there_after_its_backward():
    def computes_s(**options):
        relay = relay_of(dense_pool(), device=PinningCpu(), **options)
        slow = replace(H100, device_bandwidth=1e6)
        found = StepTime(relay, (4,), slow).predict(relay.pool.architecture(PATH)).simulation.busy_s["compute"]
        return found, slow.device_update_s(relay_parameters(relay))

    def relay_parameters(relay):
        layers = relay.pool.path(relay.pool.architecture(PATH))
        return sum(relay.server.layout(state).num_parameters for layer in layers for state in layer.states)

    (streamed_s, _), (resident_s, update_s) = computes_s(), computes_s(resident="all")
    assert resident_s - streamed_s == pytest.approx(update_s)


def test_launches_are_what_the_device_waits_for_where_they_take_longer_than_the_work():
    relay = relay_of(dense_pool())
    path = relay.pool.architecture(PATH)
    shares = [StepTime(relay, (4,), replace(H100, kernel_s=seconds)).predict(path).launches for seconds in (0.0, 1.0)]
    assert shares == [0, 1]


def test_each_step_time_is_found_once():
    relay = relay_of(dense_pool())
    step_time = StepTime(relay, (4,), H100)
    path = relay.pool.architecture(PATH)
    assert step_time(path) == step_time(path) > 0
    assert len(step_time._chains) == 1
