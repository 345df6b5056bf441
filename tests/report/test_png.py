from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, line
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.styles import INK
from tests.report.examples import ACCURACY, PARAMETERS, some_trials, trial
from tests.report.pages import card_of_pool, random_trials, results_of, summary_of

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from l2l_nas.report.png import draw, is_matplotlib_installed, png_of


def lines_of(figure: Figure, label: str) -> list[tuple[float, float]]:
    item: Line2D = next(item for axes in figure.axes for item in axes.lines if item.get_label() == label)
    return [(float(x), float(y)) for x, y in zip(item.get_xdata(), item.get_ydata(), strict=True)]


def assert_drawn(figure: Figure) -> None:
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    assert 0.0005 < (pixels[..., :3].min(axis=-1) < 150).mean() < 0.5  # ink on white


def chart_of(*series: Series) -> Chart:
    return Chart("a title", Axis("across", 0, 10), Axis("up", 1, 100, is_log=True), series)


def test_axes_have_the_limits_marks_and_words_of_the_description() -> None:
    figure = draw(Sheet((chart_of(line("stairs", [(0, 2), (9, 50)], "some line")),)))
    (axes,) = figure.axes
    assert axes.get_xlim() == (0, 10)
    assert axes.get_ylim() == (1, 100)
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("across", "up", "a title")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "5", "10", "20", "50", "100"]
    assert lines_of(figure, "some line") == [(0, 2), (9, 50)]


def test_intervals_notes_and_levels_are_drawn() -> None:
    across = Series("side0", (Point(3, 10, (2, 6), "three"),), is_across=True)
    upright = Series("side1", (Point(2, 20, (10, 30), "twenty"),))
    figure = draw(Sheet((chart_of(across, upright),)))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["three", "twenty"]
    ends = [(list(item.get_xdata()), list(item.get_ydata())) for item in axes.lines if item.get_marker() in "|_"]
    assert ends == [([2, 6], [10, 10]), ([2, 2], [10, 30])]
    assert_drawn(figure)
    level = draw(Sheet((Chart("", Axis("", 0, 2, level=1.0), Axis("", 0, 1)),)))
    assert [list(item.get_xdata()) for item in level.axes[0].lines] == [[1.0, 1.0]]


def test_names_in_bars_are_bright_where_the_bars_are_dark() -> None:
    bars = [Series(style, (Point(5, y, (0, 10), style),), kind="spans") for y, style in ((10, "send"), (20, "enter"))]
    (axes,) = draw(Sheet((chart_of(*bars),))).axes
    assert {text.get_text(): text.get_color() for text in axes.texts} == {"send": "white", "enter": INK}


@pytest.mark.parametrize("minimize", [False, True])
def test_the_note_of_the_best_stays_inside(minimize: bool) -> None:
    card = card_of_pool()
    goal = ACCURACY if not minimize else PARAMETERS
    results = summary_of(card, random_trials(card, 30), goals=(goal, ACCURACY if minimize else PARAMETERS)).results
    figure = draw(Sheet(trade_off_charts(results, *results.trade_offs[0])))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    (note,) = axes.texts
    inside, box = axes.get_window_extent(), note.get_window_extent()
    assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
    assert inside.y0 <= box.y0 <= box.y1 <= inside.y1


def test_charts_stand_below_each_other_or_side_by_side_with_one_legend() -> None:
    one = chart_of(line("stairs", [(0, 2), (9, 50)], "some line"))
    below, beside = draw(Sheet((one, one))), draw(Sheet((one, one), is_row=True))
    assert list(below.get_size_inches()) == [8, 9]
    assert list(beside.get_size_inches()) == [16, 4.5]
    (legend,) = beside.legends
    assert [text.get_text() for text in legend.get_texts()] == ["some line"]
    assert_drawn(beside)


def test_a_chart_with_nothing_to_show_says_so() -> None:
    figure = draw(Sheet((Chart("a title", message="no complete trial"),)))
    assert [text.get_text() for text in figure.texts] == ["a title", "no complete trial"]
    assert_drawn(figure)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_one_trial_of_any_value_is_drawn(value: float) -> None:
    results = results_of([trial(0, {"accuracy": value, "parameters": 0})], [ACCURACY, PARAMETERS])
    assert_drawn(draw(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))))


def test_the_same_charts_give_the_same_bytes() -> None:
    results = results_of(some_trials(), [ACCURACY, PARAMETERS])
    first, second = (png_of(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))) for _ in range(2))
    assert first == second
    assert b"matplotlib" not in first


def test_where_matplotlib_is_missing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_matplotlib_installed()
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not is_matplotlib_installed()


@pytest.mark.slow
def test_the_report_is_imported_without_matplotlib_and_never_with_pyplot() -> None:
    code = (
        "import sys, l2l_nas.report.png, l2l_nas.report.table\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from l2l_nas.report.charts.chart import Chart, Sheet\n"
        "l2l_nas.report.png.png_of(Sheet((Chart('a title', message='a message'),)))\n"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
