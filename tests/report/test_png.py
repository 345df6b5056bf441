from __future__ import annotations

import io

import pytest

from l2l_nas.report.charts.bench import bench_sheet
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, line
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart, sweep_sheet
from tests.report.bench_examples import ALL
from tests.report.examples import ACCURACY, PARAMETERS, some_trials, trial
from tests.report.pages import card_of_pool, random_trials, results_of, summary_of
from tests.report.test_table import RECORDS

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from l2l_nas.report.png import draw, png_bytes, png_of


def lines_of(figure: Figure, label: str) -> list[tuple[float, float]]:
    item: Line2D = next(item for axes in figure.axes for item in axes.lines if item.get_label() == label)
    return [(float(x), float(y)) for x, y in zip(item.get_xdata(), item.get_ydata(), strict=True)]


def assert_drawn(figure: Figure) -> None:
    pixels = imread(io.BytesIO(png_bytes(figure)))
    assert 0.0005 < (pixels[..., :3].min(axis=-1) < 0.6).mean() < 0.5  # ink on white


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


def test_marks_on_the_floor_lie_below_every_value() -> None:
    figure = draw(Sheet((progress_chart(results_of(some_trials(), [ACCURACY])),)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    lowest = axes.transData.transform((0, 0.5))[1]
    failed = next(item for item in axes.lines if item.get_label() == "failed")
    assert failed.get_transform().transform((1, failed.get_ydata()[0]))[1] < lowest - 10


def test_intervals_notes_bars_bands_and_levels_are_drawn() -> None:
    across = Series("side0", (Point(3, 10, (2, 6), "three"),), is_across=True)
    bars = Series("measured", (Point(2, 20, (10, 30), "twenty"),), kind="bars")
    band = Series("side1", (Point(0, 50, (40, 60)),), kind="band")
    figure = draw(Sheet((chart_of(across, bars, band),)))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["three", "twenty"]
    assert len(axes.containers) == 3  # two intervals and the bars
    assert_drawn(figure)
    level = draw(Sheet((Chart("", Axis("", 0, 2, level=1.0), Axis("", 0, 1)),)))
    assert [list(item.get_xdata()) for item in level.axes[0].lines] == [[1.0, 1.0]]


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


@pytest.mark.parametrize("name", list(ALL))
def test_every_bench_can_be_drawn(name: str) -> None:
    sheet = bench_sheet(ALL[name])
    figure = draw(sheet)
    assert_drawn(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [chart.title for chart in sheet.charts]


def test_charts_stand_below_each_other_or_side_by_side_with_one_legend() -> None:
    one = chart_of(line("stairs", [(0, 2), (9, 50)], "some line"))
    below, beside = draw(Sheet((one, one))), draw(Sheet((one, one), is_row=True))
    assert list(below.get_size_inches()) == [8, 9]
    assert list(beside.get_size_inches()) == [16, 4.5]
    (legend,) = beside.legends
    assert [text.get_text() for text in legend.get_texts()] == ["some line"]
    assert_drawn(draw(sweep_sheet(RECORDS, [ACCURACY], {"kind": 0.75})))


def test_a_chart_with_nothing_to_show_says_so() -> None:
    figure = draw(Sheet((Chart("a title", message="no complete trial"),)))
    assert [text.get_text() for text in figure.texts] == ["a title", "no complete trial"]
    assert_drawn(figure)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_one_trial_of_any_value_is_drawn(value: float) -> None:
    results = results_of([trial(0, {"accuracy": value, "parameters": 0})], [ACCURACY, PARAMETERS])
    assert_drawn(draw(Sheet((progress_chart(results),))))
    assert_drawn(draw(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))))


def test_the_same_charts_give_the_same_bytes() -> None:
    results = results_of(some_trials(), [ACCURACY, PARAMETERS])
    first, second = (png_of(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))) for _ in range(2))
    assert first == second
    assert b"matplotlib" not in first
