from __future__ import annotations

import itertools
import math

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.training.schedule import Cosine


def test_the_rate_rises_to_its_peak_and_falls_to_its_floor():
    schedule = Cosine(0.1, 100)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert max(rates) == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[5:]))
    assert rates[100] == pytest.approx(0.002)
    assert schedule.at(10**6) == rates[100]
    middle = 5 + 95 / 2
    assert (schedule.at(math.floor(middle)) + schedule.at(math.ceil(middle))) / 2 == pytest.approx(0.051)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_very_short_schedules_have_a_rate(steps):
    assert all(0 < Cosine(0.1, steps).at(step) <= 0.1 for step in range(4))


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_peak_that_makes_no_sense_is_refused(peak):
    with pytest.raises(SettingError, match="above 0"):
        Cosine(peak, 10)
