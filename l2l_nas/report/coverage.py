"""The picture of what was trained on the shared weights: positions across, candidates down, steps as colour."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.report.figures import BLUE, GREY, INK, PALE, VERMILLION, message_figure, new_figure
from l2l_nas.report.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

_TITLE = "Coverage of the warm-up"
_CELLS_WIDTH_IN = 13.0  # of all positions together, at most
_TEXT_WIDTH_IN = 0.42  # a cell narrower than this has no room for a number
_LARGEST_RATIO = 2.0  # where the colours end: twice the mean of the position


def coverage_figure(coverage: Coverage) -> Figure:
    """A cell for each candidate of each position: its steps in warm-up, and below them those of trials.

    The colour compares with the mean of the position; under-trained candidates are framed. Positions without a choice
    are left out; what a position does not offer is hatched.
    """
    rows = [row for row, names in coverage.rows.items() if len(names) > 1]
    if not rows:
        return message_figure(_TITLE, "no position has a choice")
    if coverage.is_empty:
        return message_figure(_TITLE, "nothing was trained on the shared weights")
    names = list(dict.fromkeys(name for row in rows for name in coverage.rows[row]))
    scarce = {(item.position, item.candidate) for item in coverage.under_trained()}

    cell_in = min(0.75, _CELLS_WIDTH_IN / len(rows))
    labels = [shorten(row, 24) for row in rows]
    is_upright = len(rows) > 1 and max(map(len, labels)) * 0.085 > cell_in
    below = 0.65 + (0.075 * max(map(len, labels)) if is_upright else 0.0)
    figure = new_figure(max(8.0, 2.6 + cell_in * len(rows)), 1.2 + 0.46 * len(names) + below, layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None  # the constrained one
    engine.set(w_pad=0.1, h_pad=0.08)  # type: ignore[call-arg]
    axes = figure.add_subplot()
    image = _draw_colours(axes, coverage, rows, names)
    for x, row in enumerate(rows):
        for y, name in enumerate(names):
            if name not in coverage.rows[row]:
                _draw_frame(axes, x, y, colour=PALE, line_pt=0.0, hatch="////")
                continue
            if cell_in >= _TEXT_WIDTH_IN:
                _write_steps(axes, x, y, coverage, row=row, name=name)
            if (row, name) in scarce:
                _draw_frame(axes, x, y, colour=VERMILLION, line_pt=2.0 if cell_in >= _TEXT_WIDTH_IN else 1.0)
    counted = f"{len(scarce)} candidates" if len(scarce) > 1 else f"{len(scarce) or 'no'} candidate"
    title = f"{_TITLE}: {counted} under-trained"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    every = math.ceil(0.16 / cell_in)  # labels that fit side by side
    axes.set_xticks(range(0, len(rows), every), labels[::every], rotation=90 if is_upright else 0)
    axes.set_yticks(range(len(names)), [shorten(name, 20) for name in names])
    axes.set_xlabel(_caption(coverage, has_text=cell_in >= _TEXT_WIDTH_IN, has_frames=bool(scarce)), color=GREY)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, length=0)
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=14, ticks=[0, 1, _LARGEST_RATIO])
    bar.ax.set_yticklabels(["0", "mean", f"{_LARGEST_RATIO:g} x"])
    bar.ax.tick_params(colors=GREY, labelcolor=INK, labelsize=9)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _draw_colours(axes: Axes, coverage: Coverage, rows: list[str], names: list[str]) -> AxesImage:
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("coverage", ["#FFFFFF", "#9CCDEB", BLUE])
    grid = [[_ratio(coverage, row, name) for row in rows] for name in names]
    image = axes.imshow(grid, cmap=colours, vmin=0, vmax=_LARGEST_RATIO, aspect="auto")
    for x in range(len(rows) - 1):
        axes.axvline(x + 0.5, color="white", linewidth=1.2)
    for y in range(len(names) - 1):
        axes.axhline(y + 0.5, color="white", linewidth=1.2)
    return image


def _ratio(coverage: Coverage, row: str, name: str) -> float:
    """Steps of a candidate over the mean of its row; NaN where the row does not have it."""
    counts = coverage.steps("warmup", row)
    if name not in counts:
        return float("nan")
    mean = sum(counts.values()) / len(counts)
    return counts[name] / mean if mean else 0.0


def _write_steps(axes: Axes, x: int, y: int, coverage: Coverage, *, row: str, name: str) -> None:
    colour = "white" if _ratio(coverage, row, name) > 0.8 * _LARGEST_RATIO else INK
    trials = coverage.steps("trials", row)[name]
    axes.text(
        x,
        y - (0.14 if trials else 0),
        f"{coverage.steps('warmup', row)[name]:,}",
        ha="center",
        va="center",
        fontsize=9,
        color=colour,
    )
    if trials:
        axes.text(x, y + 0.24, f"+{trials:,}", ha="center", va="center", fontsize=7, color=colour)


def _draw_frame(axes: Axes, x: int, y: int, *, colour: str, line_pt: float, hatch: str | None = None) -> None:
    from matplotlib.patches import Rectangle

    inset = 0.06 if hatch is None else 0.02
    axes.add_patch(
        Rectangle(
            (x - 0.5 + inset, y - 0.5 + inset),
            1 - 2 * inset,
            1 - 2 * inset,
            fill=False,
            edgecolor=colour,
            linewidth=line_pt,
            hatch=hatch,
            zorder=3,
        )
    )


def _caption(coverage: Coverage, *, has_text: bool, has_frames: bool) -> str:
    """What the cells mean, without what this picture does not show."""
    parts = ["steps of warm-up" if has_text else "colour: steps of warm-up against the mean of the position"]
    if has_text and any(sum(coverage.steps("trials", row).values()) for row in coverage.rows):
        parts.append("+ steps of trials")
    if has_frames:
        parts.append("framed: less than a third of the position's mean")
    return "; ".join(parts)
