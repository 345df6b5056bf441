from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.settings import too_large
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import TINY, settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"steps": -1}, "steps must be at least 0"),
        ({"architectures": -1}, "architectures must be at least 0"),
        ({"population_bytes": -1}, "population_bytes must be at least 0"),
        ({"depths": (4, 0)}, "depths must be different numbers from 1"),
        ({"batches": (4, 4)}, "batches must be different numbers from 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, says):
    with pytest.raises(SettingError, match=says):
        settings(**given)


def test_a_stack_that_this_machine_cannot_hold_is_told_before_it_is_built():
    assert too_large(TINY) == ""
    assert "GiB of host memory" in too_large(replace(TINY, hidden=2**18, heads=1))
