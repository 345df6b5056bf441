from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from torch import nn

from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, line
from l2l_nas.report.charts.diagram import FILE, lay_out
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.styles import FIXED_HUE, INK
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool
from tests.report.examples import ACCURACY, PARAMETERS, small_pool, some_trials, trial
from tests.report.pages import card_of_pool, random_trials, results_of, summary_of
from tests.toys import unet_pool

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from l2l_nas.report.png import draw, png_of


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


def test_marks_on_the_floor_lie_below_every_value() -> None:
    figure = draw(Sheet((progress_chart(results_of(some_trials(), [ACCURACY])),)))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    lowest = axes.transData.transform((0, 0.5))[1]
    failed = next(item for item in axes.lines if item.get_label() == "failed")
    assert failed.get_transform().transform((1, failed.get_ydata()[0]))[1] < lowest - 10


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
    assert_drawn(draw(Sheet((progress_chart(results),))))
    assert_drawn(draw(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))))


def test_the_same_charts_give_the_same_bytes() -> None:
    results = results_of(some_trials(), [ACCURACY, PARAMETERS])
    first, second = (png_of(Sheet(trade_off_charts(results, ACCURACY, PARAMETERS))) for _ in range(2))
    assert first == second
    assert b"matplotlib" not in first


def architecture_of(pool: LayerPool, choices: Sequence[str], *, title: str = "Best") -> Figure:
    card = card_of_pool(pool)
    boxes = boxes_of(card, pool.architecture(list(choices)))
    return draw(lay_out(boxes, source=card.source, label=title, sizes=FILE))


def assert_words_are_apart_and_inside(figure: Figure) -> None:
    figure.draw_without_rendering()
    low, high = np.array([text.get_window_extent().get_points() for text in figure.axes[0].texts]).swapaxes(0, 1)
    assert low.min() >= 0
    assert (high <= [figure.bbox.width, figure.bbox.height]).all()
    overlap = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=-1)
    assert overlap.sum() == len(low), "a text overlaps another"


def test_an_architecture_is_drawn_with_its_words_below_its_title() -> None:
    title = "Best architecture (trial 57): accuracy, validation 0.9778 ± 0.0078, test 0.9694\n4 of 5 used"
    figure = architecture_of(small_pool(), ["stem", "wide", "linear", "skip", "head"], title=title)
    words = [text.get_text() for text in figure.axes[0].texts]
    assert " ".join(words[:3]) == title.replace("\n", " ")
    assert {"wide", "76", "layer_00", "linear, skip", "input 4"} <= set(words)
    assert_words_are_apart_and_inside(figure)
    stem, wide, linear, skipped, head = (p for p in figure.axes[0].patches if isinstance(p, FancyBboxPatch))
    assert to_hex(stem.get_edgecolor()) == to_hex(head.get_edgecolor()) == FIXED_HUE.lower()
    assert to_hex(wide.get_edgecolor()) != to_hex(linear.get_edgecolor())
    assert skipped.get_linestyle() != wide.get_linestyle()


def test_fourteen_names_are_resolved() -> None:
    candidates = [Candidate(f"c{index}", nn.Identity) for index in range(14)]
    pool = LayerPool([Position("p", candidates)], inputs=TensorSpec((4,)))
    figures = (architecture_of(pool, [f"c{index}"]) for index in range(14))
    assert len({figure.axes[0].patches[0].get_facecolor() for figure in figures}) == 14


def test_fifty_positions_and_long_names_neither_overlap_nor_leave_the_picture() -> None:
    pool = small_pool(48, prefix="transformer_encoder_block_with_a_long_name_")
    names = [candidate.name for candidate in pool.positions[1].candidates]
    figure = architecture_of(pool, ["stem", *(names[index % 3] for index in range(48)), "head"])
    assert_words_are_apart_and_inside(figure)
    assert_drawn(figure)


def test_every_wire_and_arc_of_a_graph_is_drawn_inside() -> None:
    pool = unet_pool()
    figure = architecture_of(pool, [position.candidates[0].name for position in pool.positions])
    arcs = [p for p in figure.axes[0].patches if not isinstance(p, FancyBboxPatch)]
    assert arcs
    low = figure.axes[0].get_xlim()[0]
    assert all(arc.get_path().vertices[:, 0].min() > low for arc in arcs)
    assert_words_are_apart_and_inside(figure)
