from __future__ import annotations

import io
import itertools

import pytest

from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.report.charts.grid import Cell, Grid, GridRow, coverage_grid
from l2l_nas.report.results import Results
from l2l_nas.space.sampling import UniformPaths
from tests.report.examples import ACCURACY, small_pool
from tests.report.pages import card_of_pool

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from l2l_nas.report.png import png_bytes
from l2l_nas.report.png_grid import grid_figure
from l2l_nas.report.styles import VERMILLION

GRID = Grid(
    "Coverage",
    ("linear", "wide"),
    (
        GridRow("layer_00", (Cell("2", "+1", 1.0), Cell("0", "+0", -1.0, is_scarce=True))),
        GridRow("layer_01", (Cell("3", "", 0.0), None)),
    ),
    "One sentence. Another one.",
)


def rectangles(figure: Figure) -> list[Rectangle]:
    return [item for item in figure.axes[0].patches if isinstance(item, Rectangle)]


def test_every_candidate_has_a_cell_with_its_words_positions_across() -> None:
    figure = grid_figure(GRID)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["layer_00", "layer_01"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["linear", "wide"]
    assert [item.get_text() for item in axes.texts] == ["2", "+1", "0", "+0", "3", ""]
    assert [bool(item.get_hatch()) for item in rectangles(figure)] == [False, False, False, False, True]
    assert axes.get_xlabel() == "One sentence. Another one."


def test_scarce_candidates_are_framed_and_counted() -> None:
    figure = grid_figure(GRID)
    framed = [item for item in rectangles(figure) if item.get_edgecolor() == to_rgba(VERMILLION)]
    assert [(round(item.get_x() + 0.47), round(item.get_y() + 0.47)) for item in framed] == [(0, 1)]
    assert figure.axes[0].get_title(loc="left") == "Coverage: 1 candidate under-trained"


def test_more_and_less_than_the_mean_have_colours_of_their_own() -> None:
    more, less, *_ = (item.get_facecolor()[:3] for item in rectangles(grid_figure(GRID)))
    assert more != less


def test_without_anything_to_show_the_picture_says_so() -> None:
    figure = grid_figure(Grid("Coverage", message="No position has a choice."))
    assert [item.get_text() for item in figure.texts] == ["Coverage", "No position has a choice."]


@pytest.mark.parametrize(
    ("depth", "prefix", "shared"), [(1, "", False), (30, "a_rather_long_name_", False), (96, "", False), (6, "", True)]
)
def test_any_number_of_positions_fits(depth: int, prefix: str, shared: bool) -> None:
    pool = small_pool(depth, prefix=prefix, shared=shared)
    coverage = Coverage(pool)
    for step in range(40):
        coverage.add("warmup", UniformPaths(pool, seed=0).path_at(step))
    warmup = {row: coverage.steps("warmup", row) for row in coverage.rows}
    figure = grid_figure(coverage_grid(Results(card_of_pool(pool), (ACCURACY,), ()), warmup))
    pixels = imread(io.BytesIO(png_bytes(figure)))
    assert pixels.shape[0] < 700
    assert pixels.shape[1] < 1700
    width = figure.bbox.width
    axes = figure.axes[0]
    for item in [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]:
        box = item.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
    tick_boxes = [item.get_window_extent() for item in axes.get_xticklabels()]
    assert all(a.x1 <= b.x0 + 1 for a, b in itertools.pairwise(tick_boxes))
