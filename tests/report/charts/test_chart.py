from __future__ import annotations

import itertools

import pytest

from l2l_nas.report.charts.chart import Axis, axis_label, best_so_far, short_count, tick_labels
from tests.report.examples import ACCURACY, LOSS, PARAMETERS


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.05, 0.18), (-3, 5), (1e-9, 2e-9), (0, 3e7), (-1e-3, 1e-3), (5, 5.0001)]
)
def test_ticks_are_round_inside_and_few(low: float, high: float) -> None:
    ticks = Axis("", low, high).ticks()
    assert 3 <= len(ticks) <= 8
    assert low - 1e-12 <= ticks[0]
    assert ticks[-1] <= high * (1 + 1e-12) + 1e-12
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)
    assert [float(label) for label in labels] == pytest.approx(ticks, rel=1e-3, abs=1e-12)


def test_labels_have_as_many_digits_as_tell_them_apart() -> None:
    for low, high in [(6.159e10, 6.1592e10), (1e6, 1e6 + 3), (0.1, 0.1 + 1e-8)]:
        axis = Axis("", low, high)
        shown = [float(label) for _, label in axis.labelled()]
        assert shown == pytest.approx(axis.ticks(), rel=0, abs=0.02 * (high - low))
        assert len(set(shown)) == len(shown) >= 3
    assert tick_labels([1e6, 2e6, 3e6]) == ["1e+06", "2e+06", "3e+06"]
    assert tick_labels([1234567.0]) == ["1.235e+06"]
    assert tick_labels([2e-9, 1e-9]) == ["2e-09", "1e-09"]


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (-0.3, 13.2), (0, 1000), (3, 4)])
def test_counts_have_whole_ticks(low: float, high: float) -> None:
    ticks = Axis("", low, high, is_count=True).ticks()
    assert ticks
    assert all(tick % 1 == 0 for tick in ticks)


def test_a_logarithmic_axis_marks_1_2_5_where_there_is_room_and_powers_where_there_is_not() -> None:
    assert Axis("", 5e3, 1e5, is_log=True).ticks() == [5e3, 1e4, 2e4, 5e4, 1e5]
    assert Axis("", 1e3, 1e9, is_log=True).ticks() == [10.0**power for power in range(3, 10)]
    assert Axis("", 1.0, 100.0, is_log=True).at(10.0) == pytest.approx(0.5)


def test_an_axis_of_names_has_the_first_on_top() -> None:
    axis = Axis.of_names("", ["a", "b"])
    assert axis.labelled() == [(0, "a"), (1, "b")]
    assert 1 > axis.at(0) > axis.at(1) > 0


@pytest.mark.parametrize(("values", "is_log"), [([70, 600], False), ([70, 7000], True), ([0, 7000], False)])
def test_counts_are_on_a_logarithmic_axis_beyond_a_decade(values: list[float], is_log: bool) -> None:
    axis = Axis.counting("parameters", values)
    assert axis.is_log == is_log == axis.label.endswith(", log scale")
    assert all(0 < axis.at(value) < 1 for value in values)


@pytest.mark.parametrize("values", [[0.0], [-3.0], [1e9], [0.1, 0.1 + 1e-15], [1, 2, 4]])
def test_values_lie_inside_their_axis(values: list[float]) -> None:
    axis = Axis.around("", values, (0.1, 0.1))
    assert all(0.05 < axis.at(value) < 0.95 for value in values)
    assert len({label for _, label in axis.labelled()}) > 1


@pytest.mark.parametrize(
    ("goal", "corners"),
    [(ACCURACY, [(0, 1), (1, 1), (1, 3), (5, 3)]), (LOSS, [(0, 1), (5, 1)])],
)
def test_a_staircase_is_level_until_a_value_is_better(goal, corners) -> None:
    found = best_so_far([(0, 1), (1, 3), (2, 2)], goal, until=5)
    assert found == corners
    assert all((a[0] == b[0]) != (a[1] == b[1]) for a, b in itertools.pairwise(found))


def test_labels_say_what_a_goal_is_and_which_way_is_better() -> None:
    assert axis_label(ACCURACY, "trial score") == "accuracy, trial score (more is better)"
    assert axis_label(PARAMETERS) == "number of parameters (less is better)"
    assert [short_count(value) for value in (7, 1500, 2e6, 3e9)] == ["7", "1.5k", "2M", "3B"]


def test_an_axis_up_to_the_largest_numbers_has_marks_and_places():
    axis = Axis("loss", 0.1, 1.2e308, is_log=True)
    assert axis.ticks()
    assert axis.at(0.1) == 0
    assert axis.at(1.2e308) == 1
