"""Torch's profiler sees each step of a plan by its name."""

from __future__ import annotations

import pytest
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile

from l2l_nas.relay.lanes import Label
from tests.relay.steps import PATH, relay_of, train
from tests.toys import dense_pool

ALL_THREADS = _ExperimentalConfig(profile_all_threads=True)


@pytest.mark.parametrize("lanes", ["inline", "threads"])
def test_a_profile_has_a_range_for_each_step_of_a_plan(lanes):
    relay = relay_of(dense_pool(), lanes=lanes, slots=2, update="exact")
    train(relay, PATH)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=ALL_THREADS) as found:
        train(relay, PATH, step=7)
        relay.drain()
    relay.close()
    names = {event.name for event in found.events() if event.name.startswith("l2l_nas: ")}
    last = relay.pool.path(relay.pool.architecture(PATH))[-1].key
    first = relay.pool.path(relay.pool.architecture(PATH))[0].key
    for op, key in (("load", last), ("forward", first), ("backward", first), ("enter", last), ("send", first)):
        assert f"l2l_nas: {op} {key} of step 7" in names
    assert f"l2l_nas: tail {last} of step 7" in names
    assert "l2l_nas: check of step 7" in names


def test_without_a_profiler_no_range_is_made():
    assert Label("load", "dense", 3).profiled() is Label("send", "mlp", 4).profiled()
