from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.relay.peers import REFERENCE, SIDES, Side, find_sides, tolerance_of
from benchmarks.relay.training import agreement
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import TINY

STEPS = 3
QUICK = [name for name in SIDES if name not in ("deepspeed", "relay_compiled")]


def losses_of(name: str) -> list[float]:
    runner = SIDES[name].build(TINY)
    losses = [runner.step(number) for number in range(STEPS)]
    runner.finish()
    runner.close()
    return losses


@pytest.fixture(scope="module")
def reference() -> list[float]:
    return losses_of(REFERENCE)


@pytest.mark.parametrize("name", QUICK)
def test_every_side_computes_what_the_reference_does(name, reference):
    side = SIDES[name]
    if side.unavailable():
        pytest.skip(side.unavailable())
    losses = losses_of(name)
    assert len(set(losses)) == STEPS
    assert agreement(losses, reference, tolerance_of(side, torch.device("cpu")))["agrees"], losses


def test_a_budget_in_between_lies_in_between():
    held = []
    for name in ("relay", "relay_half", "relay_kept"):
        runner = SIDES[name].build(replace(TINY, depth=8))
        runner.step(0)
        runner.finish()
        held.append(runner.device_bytes())
        runner.close()
    assert held[0] < held[1] < held[2]


def test_a_resident_side_holds_weights_and_two_moments():
    runner = SIDES["plain"].build(TINY)
    runner.step(0)
    held = runner.device_bytes()
    assert held is not None
    assert 12 * TINY.num_parameters <= held < 12 * TINY.num_parameters + 4096


def test_a_library_that_is_missing_says_how_to_get_it():
    side = Side("other", None, package="no_such_library_anywhere", install="pip install it")  # type: ignore[arg-type]
    assert side.unavailable() == "not installed: pip install it"
    assert SIDES["fsdp2"].unavailable() == ""


def test_names_that_are_wrong_or_twice_are_refused():
    assert [side.name for side in find_sides(["plain", "relay"])] == ["plain", "relay"]
    with pytest.raises(SettingError, match="no side 'plane'; did you mean 'plain'"):
        find_sides(["plane"])
    with pytest.raises(SettingError, match="'relay' is named twice"):
        find_sides(["relay", "relay"])


def test_a_gpu_is_not_asked_for_equal_bits():
    assert tolerance_of(SIDES["relay"], torch.device("cpu")) == 0
    assert tolerance_of(SIDES["relay"], torch.device("cuda")) > 0
