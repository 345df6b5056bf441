"""What cannot fit is refused before anything is trained."""

from __future__ import annotations

import pytest

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.cost import feasible
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.device_bytes import PaperDevice, device_bytes
from l2l_nas.cost.feasible import check_memory, largest
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.errors import SettingError
from l2l_nas.space.sampling import UniformPaths
from tests.relay.steps import PATH
from tests.toys import dense_pool

SIZES = (64,)


def relay_with(num_bytes: int) -> Relay:
    return Relay(ParamServer(dense_pool(), optimizer=AdamW(), seed=0), device=PaperDevice(num_bytes))


def test_an_architecture_that_needs_more_than_there_is_is_refused_with_the_nearest_that_fits():
    needs = device_bytes(RelayPath(relay_with(1 << 30), SIZES, dense_pool().architecture(PATH)))
    relay = relay_with(needs)
    check_memory(relay, SIZES, relay.pool.architecture(PATH), storage="ram")
    relay = relay_with(needs - 1)
    with pytest.raises(SettingError, match=f"needs {needs:,} bytes of device memory") as caught:
        check_memory(relay, SIZES, relay.pool.architecture(PATH), storage="ram")
    nearest = str(caught.value).partition("the nearest that fits: ")[2].partition(";")[0]
    found = []
    for name in nearest.split(", "):
        count, _, choice = name.rpartition("*")
        found += [choice] * int(count or 1)
    check_memory(relay, SIZES, relay.pool.architecture(found), storage="ram")


def test_it_says_so_where_nothing_fits():
    relay = relay_with(0)
    with pytest.raises(SettingError, match="none was found that fits"):
        check_memory(relay, SIZES, relay.pool.architecture(PATH), storage="ram")


def test_host_memory_is_asked_about_too(monkeypatch):
    monkeypatch.setattr(feasible, "free_memory_bytes", lambda: 100)
    relay = relay_with(1 << 30)
    with pytest.raises(SettingError, match=r"of host memory, 100 are free.*relay\.storage=file"):
        check_memory(relay, SIZES, relay.pool.architecture(PATH), storage="ram")


def test_the_largest_has_no_fewer_weights_than_any_random_one():
    pool = dense_pool()
    most = num_parameters(pool, largest(pool))
    draws = UniformPaths(pool, seed=0)
    assert all(num_parameters(pool, draws.path_at(number)) <= most for number in range(50))
