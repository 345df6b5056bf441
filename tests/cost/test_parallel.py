"""Several devices: against the formulas that the module names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas.cost.parallel import (
    ALONE,
    EqualVisits,
    Parallelism,
    StepWork,
    all_reduce_s,
    parallel_step,
    pipeline_share,
    ring_bandwidth,
    send_bandwidth,
    ways_of,
)
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.step_time import StepTime
from l2l_nas.relay.measure import Work
from tests.relay.steps import PATH, relay_of
from tests.toys import dense_pool, unet_pool

H100 = replace(PROFILES["h100"], kernel_s=0.0)
WORK = StepWork([EqualVisits(Work(flops=4e12), 1e8, 6)], 1e9, 4e9, 2e8, 4)


def test_a_ring_moves_nearly_twice_the_bytes():
    assert all_reduce_s(1e9, 1, 1e9) == 0
    assert all_reduce_s(1e9, 2, 2e9) == pytest.approx(1)
    assert all_reduce_s(1e9, 1000, 2e9) == pytest.approx(2, rel=0.01)


def test_a_pipeline_idles_at_its_ends():
    assert pipeline_share(1, 1) == 1
    assert pipeline_share(4, 4) == pytest.approx(4 / 7)


def test_groups_of_data_sum_their_gradients_and_nothing_else():
    alone, four = (parallel_step(WORK, H100, ways, precision="bf16") for ways in (ALONE, Parallelism(data=4)))
    assert four.data_s == pytest.approx(2 * 3 / 4 * 4e9 / 450e9)
    assert four.step_s - alone.step_s == pytest.approx(four.data_s)
    half = parallel_step(WORK, H100, Parallelism(data=4, overlapped=0.5), precision="bf16")
    assert half.data_s == pytest.approx(four.data_s / 2)


def test_devices_that_share_layers_sum_values_at_the_end_of_each():
    alone, two = (parallel_step(WORK, H100, ways, precision="bf16") for ways in (ALONE, Parallelism(tensor=2)))
    assert two.compute_s == pytest.approx(alone.compute_s / 2)
    assert two.update_s == pytest.approx(alone.update_s / 2)
    assert two.tensor_s == pytest.approx(6 * 1e8 / 450e9)


def test_stages_share_layers_hand_on_values_and_rest():
    alone, four = (parallel_step(WORK, H100, ways, precision="bf16") for ways in (ALONE, Parallelism(pipeline=4)))
    assert four.compute_s == pytest.approx(alone.compute_s / 4)
    assert four.sends_s == pytest.approx(2 * 2e8 / 450e9)
    assert four.bubble_s == pytest.approx((four.compute_s + four.sends_s) * 3 / 4)  # (p - 1) / m


def test_beyond_a_server_the_network_is_shared_by_the_ranks_of_a_layer():
    assert ring_bandwidth(H100, Parallelism(data=8)) == 900e9
    assert ring_bandwidth(H100, Parallelism(data=16)) == 800e9
    assert ring_bandwidth(H100, Parallelism(tensor=4, data=4)) == 200e9
    assert ring_bandwidth(H100, Parallelism(data=2, pipeline=8)) == 900e9  # a stage's ring lies within a server
    assert ring_bandwidth(PROFILES["rtx4090"], Parallelism(data=2)) == 50e9  # through the host


def test_devices_of_a_server_that_send_to_another_at_once_share_the_network():
    assert send_bandwidth(H100, Parallelism(pipeline=8)) == 900e9
    assert send_bandwidth(H100, Parallelism(data=8, pipeline=2)) == 100e9
    assert send_bandwidth(H100, Parallelism(data=2, pipeline=8)) == 400e9
    assert send_bandwidth(H100, Parallelism(data=16, pipeline=2)) == 100e9


@pytest.mark.parametrize("devices", [1, 2, 8, 12, 64])
def test_all_ways_have_all_devices_and_share_layers_within_a_server(devices):
    found = list(ways_of(devices))
    assert len(set(found)) == len(found)
    assert all(ways.devices == devices and ways.tensor <= 8 for ways in found)
    assert Parallelism(data=devices) in found


@pytest.mark.parametrize("build", [dense_pool, unet_pool])
def test_alone_a_step_is_that_of_plain_training(build):
    relay = relay_of(build())
    path = relay.pool.architecture([position.candidates[0].name for position in relay.pool.positions])
    step_time = StepTime(relay, (4, 4), H100)
    alone = parallel_step(step_time.work_of(path), H100, ALONE, precision="fp32")
    assert alone.step_s == pytest.approx(step_time.predict(path).plain_s)


def test_the_relay_sums_gradients_before_they_leave_and_shares_what_a_layer_is():
    relay = relay_of(dense_pool())
    path = relay.pool.architecture(PATH)
    step_time = StepTime(relay, (4,), replace(H100, copy_s=0.0))

    def busy(ways):
        step_time.ways = ways
        return step_time.predict(path).simulation.busy_s

    alone, data, tensor = (busy(ways) for ways in (ALONE, Parallelism(data=4), Parallelism(tensor=2)))
    summed = step_time.work_of(path).gradient_bytes
    assert data["down"] - alone["down"] == pytest.approx(all_reduce_s(summed, 4, 900e9))
    assert {lane: data[lane] for lane in ("up", "compute", "host")} == {
        lane: alone[lane] for lane in ("up", "compute", "host")
    }
    assert tensor["host"] == pytest.approx(alone["host"] / 2)
    assert alone["up"] / 2 <= tensor["up"] < alone["up"]  # buffers are everybody's
