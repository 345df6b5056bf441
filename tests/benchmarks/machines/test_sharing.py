"""Several devices: against the formulas that the module names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.machines.sharing import (
    ALONE,
    EqualVisits,
    Parallelism,
    StepWork,
    all_reduce_s,
    ring_bandwidth,
    shared_step_s,
)
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.relay.measure import Work

H100 = replace(PROFILES["h100"], kernel_s=0.0)
WORK = StepWork([EqualVisits(Work(flops=4e12), 1e8, 6)], 1e9, 4e9)


def seconds(ways, work=WORK):
    return shared_step_s(work, H100, ways, precision="bf16")


def test_a_ring_moves_nearly_twice_the_bytes():
    assert all_reduce_s(1e9, 1, 1e9) == 0
    assert all_reduce_s(1e9, 2, 2e9) == pytest.approx(1)
    assert all_reduce_s(1e9, 1000, 2e9) == pytest.approx(2, rel=0.01)


def test_groups_of_data_sum_their_gradients_and_nothing_else():
    summed_s = 2 * 3 / 4 * 4e9 / 450e9
    assert seconds(Parallelism(data=4)) - seconds(ALONE) == pytest.approx(summed_s)
    assert seconds(Parallelism(data=4, overlapped=0.5)) - seconds(ALONE) == pytest.approx(summed_s / 2)


def test_devices_that_share_layers_sum_values_at_the_end_of_each():
    assert seconds(Parallelism(tensor=2)) == pytest.approx(seconds(ALONE) / 2 + 6 * 1e8 / 450e9)


def test_beyond_a_server_the_network_is_shared_by_the_ranks_of_a_layer():
    assert ring_bandwidth(H100, Parallelism(data=8)) == 900e9
    assert ring_bandwidth(H100, Parallelism(data=16)) == 800e9
    assert ring_bandwidth(H100, Parallelism(tensor=4, data=4)) == 200e9
    assert ring_bandwidth(PROFILES["rtx4090"], Parallelism(data=2)) == 50e9  # through the host
