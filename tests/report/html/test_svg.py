from __future__ import annotations

import pytest

from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, line
from l2l_nas.report.html.frame import environment
from l2l_nas.report.html.svg import number, percent
from tests.report.pages import Reader


def drawn(*series: Series) -> Reader:
    chart = Chart("a <b>", Axis("x", 0, 10), Axis("y", 0, 1), series)
    macros = environment().get_template("svg.html.j2").module
    return Reader(str(macros.plot(chart)))  # type: ignore[attr-defined]


def test_lengths_have_two_decimals_at_most() -> None:
    assert [number(value) for value in (1.0, 1.5, 1.005, 100)] == ["1", "1.5", "1", "100"]
    assert percent(0.255) == "25.5%"


def test_a_dot_lies_where_its_value_is_and_names_its_trial() -> None:
    reader = drawn(Series("trial", (Point(2.5, 0.5, trial=7), Point(5, 0.5))))
    circles = [(name, value) for tag, name, value in reader.attributes if tag == "circle"]
    first, second = [("cx", "25%"), ("cy", "151"), ("r", "4")], [("cx", "50%"), ("cy", "151"), ("r", "4")]
    assert circles == [("class", "dot trial"), ("data-trial", "7"), *first, ("class", "dot trial"), *second]
    assert ("svg", "aria-label", "a <b>") in reader.attributes


def test_an_interval_is_a_line_from_end_to_end() -> None:
    reader = drawn(Series("final", (Point(5, 0.5, reach=(0.25, 1.0), trial=7),)))
    assert reader.count("line", "error") == 1
    assert {("line", "y1", "220.5"), ("line", "y2", "12")} <= set(reader.attributes)


def test_a_line_is_made_of_straight_segments_and_none_of_no_length() -> None:
    assert drawn(line("stairs", [(0, 0), (0, 0), (5, 0), (5, 1)])).count("line", "stairs") == 2


def test_very_many_points_are_thinned() -> None:
    series = Series("trial", tuple(Point(index % 10, 0.5) for index in range(5000)))
    assert 1000 < drawn(series).count("circle", "trial") <= 1500


@pytest.mark.parametrize("state", ["failed", "pruned", "stopped"])
def test_a_trial_without_a_score_is_a_mark_on_the_floor(state: str) -> None:
    assert drawn(Series(state, (Point(1, 0, trial=3),), kind="floor")).count("text", state) == 1
