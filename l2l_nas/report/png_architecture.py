"""Draws an architecture as boxes, one for each position, wrapped into columns.

What the position before writes comes by an arrow; where a space is no chain, a box also names all that it reads.

Lengths are in inches, text sizes in points (72 to the inch).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from l2l_nas.report.card import SpaceCard
from l2l_nas.report.charts.architecture import Box, boxes_of
from l2l_nas.report.png import new_figure
from l2l_nas.report.styles import GREY, HUES, INK, hue
from l2l_nas.report.text import shorten, wrap_words
from l2l_nas.space.architecture import Architecture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOX_WIDTH, _BOX_HEIGHT, _SKIP_HEIGHT = 2.7, 0.56, 0.3
_PITCH = 0.82  # from one box to the next below
_SIDE_WIDTH = 1.25  # the candidates not chosen, right of the box
_COLUMN_WIDTH = _BOX_WIDTH + _SIDE_WIDTH + 0.3
_MARGIN = 0.3
_HEAD, _FOOT = 1.2, 0.55  # title and input above the boxes, the caption below
_LINE = 0.25  # between two lines of the title
_SIDE_PT = 8.0
# the mean width of a character of DejaVu Sans, in shares of the text size, on the safe side
_CHAR, _BOLD_CHAR = 0.62, 0.68

Place = tuple[float, float]


def architecture_figure(card: SpaceCard, architecture: Architecture, *, title: str) -> Figure:
    """A drawing of an architecture: what was chosen at every position, and what was not.

    Args:
        card: the space.
        architecture: one of its, canonical.
        title: such as "Best of 64 trials: accuracy 0.9731"; one that is too long takes several lines.

    Raises:
        KeyError, ValueError: the architecture is not one of the space's.
    """
    boxes = boxes_of(card, architecture)
    num_columns = max(1, round(math.sqrt(len(boxes) * _PITCH / _COLUMN_WIDTH)))
    num_rows = math.ceil(len(boxes) / num_columns)
    num_columns = math.ceil(len(boxes) / num_rows)
    content = num_columns * _COLUMN_WIDTH - 0.3
    width = max(content + 2 * _MARGIN, 6.0)
    lines = textwrap.wrap(title, int((width - 2 * _MARGIN) * 72 / (13 * _BOLD_CHAR)))
    height = _HEAD + _LINE * (len(lines) - 1) + num_rows * _PITCH + _FOOT
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    used = sum(not box.is_skip for box in boxes)
    parameters = card.num_parameters(architecture)
    subtitle = f"{used} of {len(boxes)} positions used, {parameters:,} parameters in total"
    _write_words(axes, lines, subtitle, _caption(boxes))
    left = (width - content) / 2
    head = height - _HEAD - _LINE * (len(lines) - 1)
    places = [
        (left + (i // num_rows) * _COLUMN_WIDTH, head - (i % num_rows) * _PITCH - _BOX_HEIGHT / 2)
        for i in range(len(boxes))
    ]
    hues = card.hue_numbers
    for box, place in zip(boxes, places, strict=True):
        strength = 0.24 if hues[box.choice] <= len(HUES) else 0.6
        _draw_box(axes, place, box, (hue(hues[box.choice]), strength))
    _draw_flow(axes, places, boxes, source=card.source)
    homes = {name: index for index, position in enumerate(card.positions) for name in position.writes}
    for index, box in enumerate(boxes):
        for home in dict.fromkeys(homes[name] for name in box.reads if name in homes):
            # an arc into another column would cross the boxes between; the names tell it
            if home != index - 1 and places[home][0] == places[index][0]:
                _draw_arc(axes, places[home], places[index])
    return figure


def _write_words(axes: Axes, title: Sequence[str], subtitle: str, caption: str) -> None:
    """Title and subtitle above the boxes, the caption below."""
    (_, width), (_, height) = axes.get_xlim(), axes.get_ylim()
    for index, line in enumerate(title):
        axes.text(_MARGIN, height - 0.3 - _LINE * index, line, fontsize=13, fontweight="bold", color=INK, va="center")
    axes.text(_MARGIN, height - 0.55 - _LINE * (len(title) - 1), subtitle, fontsize=9.5, color=GREY, va="center")
    caption = textwrap.fill(caption, int((width - 2 * _MARGIN) * 72 / (_SIDE_PT * 0.54)))
    axes.text(_MARGIN, 0.15, caption, fontsize=_SIDE_PT, color=GREY, va="bottom", linespacing=1.3)


def _caption(boxes: Sequence[Box]) -> str:
    """What the boxes mean, without what this drawing does not show."""
    parts = [
        "In a box: the candidate chosen and its number of parameters, the position and its output shape without the "
        "batch; beside it: the others."
    ]
    if any(box.is_skip for box in boxes):
        parts.append("Dashed: skipped.")
    if any(box.reads for box in boxes):
        parts.append("A \N{LEFTWARDS ARROW} B, C: A reads what B and C wrote.")
    if not all(box.others for box in boxes):
        parts.append("Grey: no choice.")
    if any(box.note.startswith("as ") for box in boxes):
        parts.append("As X: the very weights of position X, used again.")
    if any(box.note.endswith(" + tied") for box in boxes):
        parts.append("Tied: with weights counted at an earlier position.")
    return " ".join(parts)


def _height_of(box: Box) -> float:
    return _SKIP_HEIGHT if box.is_skip else _BOX_HEIGHT


def _draw_box(axes: Axes, place: Place, box: Box, colour: tuple[str, float]) -> None:
    """The box with its words, and the candidates that were not chosen right of it."""
    from matplotlib.patches import FancyBboxPatch

    (x, y), height = place, _height_of(box)
    axes.add_patch(
        FancyBboxPatch(
            (x, y - height / 2),
            _BOX_WIDTH,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor="white" if box.is_skip else colour,
            edgecolor=GREY if box.is_skip else colour[0],
            linewidth=0.8 if box.is_skip else 1.6,
            linestyle=(0, (4, 3)) if box.is_skip else "solid",
            zorder=2,
        )
    )
    if box.is_skip:
        _write_line(axes, place, (box.choice, box.names), (9.0, 8.0))
    else:
        _write_line(axes, (x, y + 0.115), (box.choice, box.note), (10.5, 9.0), is_bold=True)
        _write_line(axes, (x, y - 0.135), (box.title, box.output), (8.0, 8.0))
    max_chars = int((_SIDE_WIDTH - 0.15) * 72 / (_SIDE_PT * _CHAR))
    lines = wrap_words(box.others, max_chars=max_chars, max_lines=4)
    if lines:
        axes.text(x + _BOX_WIDTH + 0.12, y, "\n".join(lines), fontsize=_SIDE_PT, color=GREY, va="center")


def _write_line(axes: Axes, place: Place, words: tuple[str, str], sizes_pt: Place, *, is_bold: bool = False) -> None:
    """One line of a box: a text at either end, both shortened so that they never meet."""
    (x, y), (left, right), (left_pt, right_pt) = place, words, sizes_pt
    width_pt = (_BOX_WIDTH - 0.24) * 72
    right = shorten(right, int(width_pt * 0.6 / (right_pt * _CHAR)))
    width_pt -= (len(right) + 1) * right_pt * _CHAR
    left = shorten(left, int(width_pt / (left_pt * (_BOLD_CHAR if is_bold else _CHAR))))
    weight = "bold" if is_bold else "normal"
    axes.text(x + 0.12, y, left, fontsize=left_pt, fontweight=weight, color=INK, va="center")
    axes.text(x + _BOX_WIDTH - 0.12, y, right, fontsize=right_pt, color=INK, va="center", ha="right")


def _draw_flow(axes: Axes, places: Sequence[Place], boxes: Sequence[Box], *, source: str) -> None:
    """The input, and an arrow into every box: straight down, or around into the next column."""
    middle = _BOX_WIDTH / 2
    x, y = places[0]
    start = y + _BOX_HEIGHT / 2 + 0.23
    axes.text(x + middle, start + 0.08, f"input {source}", fontsize=9, color=INK, ha="center", va="center")
    _draw_arrow(axes, [(x + middle, start - 0.03), (x + middle, y + _height_of(boxes[0]) / 2)])
    ceiling = start - 0.05
    for index in range(1, len(places)):
        if not boxes[index].follows:
            continue
        (x0, y0), (x1, y1) = places[index - 1], places[index]
        bottom, top = y0 - _height_of(boxes[index - 1]) / 2, y1 + _height_of(boxes[index]) / 2
        route = [(x0 + middle, bottom), (x1 + middle, top)]
        if x1 != x0:
            floor, lane = y0 - _BOX_HEIGHT / 2 - 0.13, x1 - 0.15
            route[1:1] = [(x0 + middle, floor), (lane, floor), (lane, ceiling), (x1 + middle, ceiling)]
        _draw_arrow(axes, route)


def _draw_arc(axes: Axes, start: Place, end: Place) -> None:
    """From the left side of a box to that of a later one, past those between them."""
    from matplotlib.patches import FancyArrowPatch

    rad = 0.4 / math.dist(start, end)  # it leaves the boxes by a fifth of an inch, within the margin
    arc = FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=8, connectionstyle=f"arc3,rad={rad}", shrinkA=0, shrinkB=0
    )
    arc.set(color=GREY, linewidth=0.9, zorder=1)
    axes.add_patch(arc)


def _draw_arrow(axes: Axes, route: Sequence[Place]) -> None:
    xs, ys = zip(*route, strict=True)
    axes.plot(xs, ys, color=GREY, linewidth=1.1, solid_joinstyle="round", zorder=1)
    axes.plot(xs[-1], ys[-1] + 0.05, marker="v", markersize=5, color=GREY, zorder=1)
