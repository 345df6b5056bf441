from __future__ import annotations

import io
import itertools
from collections.abc import Sequence

import pytest

from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.space.sampling import UniformPaths
from tests.report.examples import small_pool

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from l2l_nas.report.coverage import coverage_figure
from l2l_nas.report.figures import VERMILLION, png_bytes


def counted(*paths: Sequence[str], trials: int = 0) -> Coverage:
    pool = small_pool()
    coverage = Coverage(pool)
    for middle in paths:
        coverage.add("warmup", pool.architecture(["stem", *middle, "head"]))
    for _ in range(trials):
        coverage.add("trials", pool.architecture(["stem", *paths[0], "head"]))
    return coverage


def framed(figure: Figure) -> list[tuple[int, int]]:
    """Cells with a frame: position and candidate."""
    from matplotlib.colors import to_rgba

    patches = (item for item in figure.axes[0].patches if isinstance(item, Rectangle))
    return [
        (round(item.get_x() + 0.44), round(item.get_y() + 0.44))
        for item in patches
        if item.get_edgecolor() == to_rgba(VERMILLION)
    ]


def texts(figure: Figure) -> list[str]:
    return [item.get_text() for item in figure.axes[0].texts]


def test_every_candidate_of_a_position_with_a_choice_has_a_cell_with_its_steps() -> None:
    figure = coverage_figure(counted(("linear", "wide", "skip"), ("linear", "skip", "wide")))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["layer_00", "layer_01", "layer_02"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["linear", "wide", "skip"]
    assert texts(figure) == ["2", "0", "0", "0", "1", "1", "0", "1", "1"]
    assert axes.images[0].get_array().tolist()[0] == [3.0, 0.0, 0.0]  # times the mean


def test_under_trained_candidates_are_framed_and_counted() -> None:
    figure = coverage_figure(counted(*[("linear", "wide", "skip")] * 2, *[("wide", "skip", "linear")] * 2))
    assert framed(figure) == [(0, 2), (1, 0), (2, 1)]
    assert "3 candidates under-trained" in figure.axes[0].get_title(loc="left")
    assert "framed" in figure.axes[0].get_xlabel()
    even = coverage_figure(counted(("linear", "wide", "skip"), ("wide", "skip", "linear"), ("skip", "linear", "wide")))
    assert framed(even) == []
    assert "no candidate under-trained" in even.axes[0].get_title(loc="left")
    assert "framed" not in even.axes[0].get_xlabel()


def test_steps_of_trials_are_told_apart() -> None:
    figure = coverage_figure(counted(("linear", "wide", "skip"), trials=12))
    assert texts(figure).count("+12") == 3
    assert "+ steps of trials" in figure.axes[0].get_xlabel()


def test_trials_without_warm_up_are_drawn() -> None:
    coverage = Coverage(small_pool())
    coverage.add("trials", small_pool().architecture(["stem", "wide", "wide", "wide", "head"]))
    assert framed(coverage_figure(coverage)) == []


@pytest.mark.parametrize("coverage", [Coverage(small_pool()), Coverage(small_pool(0))])
def test_without_anything_to_show_the_picture_says_so(coverage: Coverage) -> None:
    assert any(word in coverage_figure(coverage).texts[1].get_text() for word in ("nothing was trained", "no position"))


@pytest.mark.parametrize(
    ("depth", "prefix", "shared"), [(1, "", False), (30, "a_rather_long_name_", False), (96, "", False), (6, "", True)]
)
def test_any_number_of_positions_fits(depth: int, prefix: str, shared: bool) -> None:
    pool = small_pool(depth, prefix=prefix, shared=shared)
    coverage = Coverage(pool)
    for step in range(40):
        coverage.add("warmup", UniformPaths(pool, seed=0).path_at(step))
    figure = coverage_figure(coverage)
    pixels = imread(io.BytesIO(png_bytes(figure)))
    assert pixels.shape[0] < 700
    assert pixels.shape[1] < 1700
    width = figure.bbox.width
    for item in [*figure.axes[0].texts, *figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels()]:
        box = item.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
    tick_boxes = [item.get_window_extent() for item in figure.axes[0].get_xticklabels()]
    assert all(a.x1 <= b.x0 + 1 for a, b in itertools.pairwise(tick_boxes))


def test_the_same_figure_gives_the_same_bytes() -> None:
    first, second = (png_bytes(coverage_figure(counted(("linear", "wide", "skip")))) for _ in range(2))
    assert first == second
