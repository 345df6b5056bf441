"""Draws a grid of cells as a picture: positions across, candidates down, colours as on the page."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from l2l_nas.report.charts.grid import Cell, Grid
from l2l_nas.report.png import message_figure, new_figure
from l2l_nas.report.styles import BLUE, GREY, INK, ORANGE, PALE, VERMILLION
from l2l_nas.report.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELLS_WIDTH_IN = 13.0  # of all positions together, at most
_TEXT_WIDTH_IN = 0.42  # a cell narrower than this has no space for a number
_CHARS_PER_IN = 11  # of the caption, on the safe side
_STRENGTH = 0.6  # of the colour of a cell that is furthest from the mean


def grid_figure(grid: Grid) -> Figure:
    """A cell for each candidate of each position; what a position does not offer is hatched."""
    if grid.message:
        return message_figure(grid.title, grid.message)
    cell_in = min(0.75, _CELLS_WIDTH_IN / len(grid.rows))
    labels = [shorten(row.name, 24) for row in grid.rows]
    is_upright = len(labels) > 1 and max(map(len, labels)) * 0.085 > cell_in
    below = 0.65 + (0.075 * max(map(len, labels)) if is_upright else 0.0)
    width, height = max(8.0, 2.6 + cell_in * len(labels)), 1.2 + 0.46 * len(grid.columns) + below
    figure = new_figure(width, height, layout="constrained")
    axes = figure.add_subplot(xlim=(-0.5, len(labels) - 0.5), ylim=(len(grid.columns) - 0.5, -0.5))
    for x, row in enumerate(grid.rows):
        for y, cell in enumerate(row.cells):
            _draw_cell(axes, (x, y), cell, has_text=cell_in >= _TEXT_WIDTH_IN)
    scarce = {0: "no candidate", 1: "1 candidate"}.get(grid.num_scarce, f"{grid.num_scarce} candidates")
    title = f"{grid.title}: {scarce} under-trained"
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    every = math.ceil(0.16 / cell_in)  # labels that fit side by side
    axes.set_xticks(range(0, len(labels), every), labels[::every], rotation=90 if is_upright else 0)
    axes.set_yticks(range(len(grid.columns)), [shorten(name, 20) for name in grid.columns])
    axes.set_xlabel(textwrap.fill(grid.caption, int(width * _CHARS_PER_IN)), color=GREY, fontsize=9)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, length=0)
    return figure


def _draw_cell(axes: Axes, place: tuple[int, int], cell: Cell | None, *, has_text: bool) -> None:
    from matplotlib.patches import Rectangle

    x, y = place
    corner = (x - 0.47, y - 0.47)
    if cell is None:
        axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=PALE, linewidth=0.0, hatch="////"))
        return
    colour = (BLUE if (cell.heat or 0.0) >= 0 else ORANGE, _STRENGTH * abs(cell.heat or 0.0))
    axes.add_patch(Rectangle(corner, 0.94, 0.94, facecolor=colour, edgecolor=PALE, linewidth=0.6))
    if cell.is_scarce:
        width = 2.0 if has_text else 1.0
        axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=VERMILLION, linewidth=width, zorder=3))
    if has_text:
        up = 0.14 if cell.small else 0.0
        axes.text(x, y - up, cell.text, ha="center", va="center", fontsize=9, color=INK)
        axes.text(x, y + 0.24, cell.small, ha="center", va="center", fontsize=7, color=INK)
