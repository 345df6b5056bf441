from __future__ import annotations

from l2l_nas.nas.objectives import State
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, line
from l2l_nas.report.styles import STYLES
from l2l_nas.report.text_chart import chart_text, charts_text
from tests.report.examples import ACCURACY, LOSS, PARAMETERS
from tests.report.pages import card_of_pool, every_state, random_trials, results_of, summary_of

ACROSS = Axis("steps", 0, 10, marks=((0, "0"), (5, "5"), (10, "10")))
UP = Axis("score", 0, 6, marks=((0, "0"), (6, "6")))


def drawn(*series: Series) -> list[str]:
    return chart_text(Chart("what it shows", ACROSS, UP, series)).plain.split("\n")


def test_a_staircase_has_its_corners_where_its_values_are() -> None:
    lines = drawn(line("stairs", [(0, 0), (5, 0), (5, 6), (10, 6)], "best so far"))
    assert lines[0] == "what it shows"
    assert lines[1] == " 6┤" + " " * 37 + "┌" + "─" * 37
    assert [row[40] for row in lines[2:7]] == ["│"] * 5
    assert lines[7] == " 0┤" + "─" * 37 + "┘" + " " * 37
    assert lines[8] == "  └┬" + "─" * 36 + "┬" + "─" * 36 + "┬"
    assert lines[9].split() == ["0", "5", "10"]
    assert [lines[9].index(label) for label in ("5", "10")] == [40, 76]
    assert lines[10].strip() == "steps"
    assert lines[11].split() == ["─", "best", "so", "far"]
    assert len(lines) == 12


def test_a_line_goes_along_then_up_or_down() -> None:
    lines = drawn(line("stairs", [(0, 0), (5, 6), (10, 0)]))
    assert lines[7][3:41] == "─" * 37 + "┘"
    assert lines[1][40:] == "┌" + "─" * 36 + "┐"
    assert [row[77] for row in lines[2:8]] == ["│"] * 6


def test_marks_lie_over_lines_and_those_without_a_value_on_the_floor() -> None:
    lines = drawn(
        line("stairs", [(0, 6), (10, 6)]),
        Series("trial", (Point(0, 6), Point(5, 2)), "a trial; with words that only a picture needs"),
        Series("best", (Point(10, 6),)),
        Series("cached", (Point(5, 6),)),
        Series("failed", (Point(5, 5),), "failed", "floor"),
    )
    assert (lines[1][3], lines[1][40], lines[1][77]) == ("•", "○", "●")
    assert lines[5][40] == "•"
    assert lines[7][40] == STYLES[State.FAILED].glyph
    assert lines[11].split() == ["•", "a", "trial", STYLES[State.FAILED].glyph, "failed"]


def test_every_chart_of_a_search_fits_the_terminal_and_12_lines() -> None:
    card = card_of_pool()
    for goals in ([ACCURACY], [ACCURACY, PARAMETERS], [ACCURACY, LOSS, PARAMETERS]):
        records = [*random_trials(card, 30, goals), *every_state(random_trials(card, 30, goals))[6:]]
        for finalists, columns in ((0, 80), (4, 200), (4, 50)):
            results = summary_of(card, records, goals=goals, num_finalists=finalists).results
            charts = charts_text(results, columns=columns)
            assert len(charts) == min(len(goals), 2)
            for chart in charts:
                lines = chart.plain.split("\n")
                assert len(lines) == 12
                assert max(map(len, lines[1:-1])) <= min(columns, 80)  # words above and below may wrap
                assert len(lines[0]) <= 80
    assert all(any(mark in chart.plain for chart in charts) for mark in ("•", "●", STYLES[State.FAILED].glyph))
    assert State.FAILED.label in charts[0].plain


def test_a_chart_of_nothing_is_its_message_and_a_few_trials_need_none() -> None:
    assert chart_text(Chart("Best so far", message="no trial")).plain == "Best so far: no trial"
    card = card_of_pool()
    assert charts_text(results_of(random_trials(card, 5), [ACCURACY]), columns=80) == []
    assert len(charts_text(results_of(random_trials(card, 6), [ACCURACY]), columns=80)) == 1
