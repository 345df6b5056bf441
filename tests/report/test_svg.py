from __future__ import annotations

import math

import pytest

from l2l_nas.report.svg import Axis, Markup, Plot, escape, join, tag, tick_labels
from tests.report.pages import HOSTILE, Reader


def test_text_is_escaped_wherever_it_is_put() -> None:
    element = tag("p", HOSTILE, tag("b", HOSTILE), title=HOSTILE, data_x=Markup(HOSTILE))
    reader = Reader(element)
    assert reader.tags == ["p", "b"]
    assert reader.words == [HOSTILE, HOSTILE]
    assert [value for _, _, value in reader.attributes] == [HOSTILE, HOSTILE]
    assert join([HOSTILE, Markup("<b>")]) == escape(HOSTILE) + "<b>"


def test_what_no_page_may_hold_is_left_out() -> None:
    text = escape("a\x00b\x1b[31mc\ud800d\n")
    assert text == "ab[31mc?d\n"
    assert text.encode()


def test_attributes_are_written_as_html_and_svg_want_them() -> None:
    assert tag("br") == "<br>"
    assert tag("i", class_="a", stroke_width=1.50, x=2.0, n=3, hidden=True, title=None) == (
        '<i class="a" stroke-width="1.5" x="2" n="3" hidden></i>'
    )


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.05, 0.18), (-3, 5), (1e-9, 2e-9), (0, 3e7), (-1e-3, 1e-3), (5, 5.0001)]
)
def test_ticks_are_round_inside_and_few(low: float, high: float) -> None:
    ticks = Axis(low, high).ticks()
    assert 3 <= len(ticks) <= 8
    assert low - 1e-12 <= ticks[0]
    assert ticks[-1] <= high * (1 + 1e-12) + 1e-12
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)
    assert [float(label) for label in labels] == pytest.approx(ticks, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (-0.3, 13.2), (0, 1000), (3, 4)])
def test_counts_have_whole_ticks(low: float, high: float) -> None:
    ticks = Axis(low, high, is_count=True).ticks()
    assert ticks
    assert all(tick % 1 == 0 for tick in ticks)


def test_a_logarithmic_axis_marks_1_2_5_where_there_is_room_and_powers_where_there_is_not() -> None:
    assert Axis(5e3, 1e5, is_log=True).ticks() == [5e3, 1e4, 2e4, 5e4, 1e5]
    assert Axis(1e3, 1e9, is_log=True).ticks() == [10.0**power for power in range(3, 10)]
    assert Axis(1.0, 100.0, is_log=True).at(10.0) == pytest.approx(0.5)


def test_a_staircase_is_made_of_level_and_upright_lines_only() -> None:
    for is_upfront, corners in ((False, [(0, 1), (1, 1), (1, 3), (2, 3)]), (True, [(0, 1), (0, 3), (1, 3), (2, 3)])):
        plot = Plot(Axis(0, 2), Axis(0, 4), height_px=142, label="x")
        plot.draw_stairs([(0, 1), (1, 3)], until=2, is_upfront=is_upfront)
        lines = [{n: v for _, n, v in Reader(line).attributes} for line in plot._parts]
        assert all((line["x1"] == line["x2"]) != (line["y1"] == line["y2"]) for line in lines)
        found = {(line[f"x{end}"], line[f"y{end}"]) for line in lines for end in (1, 2)}
        assert found == {(f"{50 * x}%", f"{112 - 25 * y}") for x, y in corners}


def test_a_dot_lies_where_its_value_is_and_says_its_words() -> None:
    plot = Plot(Axis(0, 10), Axis(0, 1), height_px=142, label="a <b>")
    plot.draw_axes()
    plot.draw_dot(2.5, 0.5, class_="trial", tip=HOSTILE, trial=7)
    reader = Reader(plot.markup())
    attributes = {name: value for tag, name, value in reader.attributes if tag == "circle"}
    assert attributes == {"class": "dot trial", "data-trial": "7", "cx": "25%", "cy": "62", "r": "4"}
    assert HOSTILE in reader.words
    assert ("svg", "aria-label", "a <b>") in reader.attributes
    assert math.isclose(plot.top(0.5), 62)
