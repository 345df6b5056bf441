"""An architecture as a chain of boxes, one for each position, wrapped into columns.

Lengths are in inches, text sizes in points (72 to the inch).
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from l2l_nas.report.card import shape_text
from l2l_nas.report.figures import FIXED_HUE, GREY, HUES, INK, new_figure
from l2l_nas.report.text import shorten, wrap_words
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import Specs

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


@dataclass(frozen=True)
class Look:
    """How a candidate is drawn: the colour of its edge, and that of its fill, which is lighter."""

    edge: str
    fill: tuple[float, float, float]


def candidate_looks(pool: LayerPool) -> dict[str, Look]:
    """The look of every candidate name of a pool, the same in every drawing of it.

    Names that are nowhere a choice (a stem, a head) are grey. After seven names the colours come again, darker.
    """
    from matplotlib.colors import to_rgb

    named = {c.name for p in pool.positions for c in p.candidates if len(p.candidates) > 1 and not c.is_skip}
    looks: dict[str, Look] = {}
    num_coloured = 0
    for name in dict.fromkeys(c.name for p in pool.positions for c in p.candidates):
        edge, strength = FIXED_HUE, 0.22
        if name in named:
            edge = HUES[num_coloured % len(HUES)]
            strength = 0.24 if num_coloured < len(HUES) else 0.6
            num_coloured += 1
        red, green, blue = (1 - strength * (1 - part) for part in to_rgb(edge))
        looks[name] = Look(edge, (red, green, blue))
    return looks


def architecture_figure(
    pool: LayerPool,
    architecture: Architecture,
    boundaries: Sequence[Specs],
    *,
    parameters: Mapping[str, int],
    title: str,
) -> Figure:
    """A drawing of an architecture: what was chosen at every position, and what was not.

    Args:
        pool: where it is from.
        architecture: canonical.
        boundaries: what `l2l_nas.space.shapes.check_shapes` returned for the pool.
        parameters: by position name, the number of weights that are first used there; skips may be left out.
        title: such as "Best of 64 trials: accuracy 0.9731"; one that is too long takes several lines.

    Raises:
        SpaceError: the architecture is not one of the pool's.
    """
    pool.path(architecture)
    num_columns = max(1, round(math.sqrt(len(pool) * _PITCH / _COLUMN_WIDTH)))
    num_rows = math.ceil(len(pool) / num_columns)
    num_columns = math.ceil(len(pool) / num_rows)
    content = num_columns * _COLUMN_WIDTH - 0.3
    width = max(content + 2 * _MARGIN, 6.0)
    lines = textwrap.wrap(title, int((width - 2 * _MARGIN) * 72 / (13 * _BOLD_CHAR)))
    height = _HEAD + _LINE * (len(lines) - 1) + num_rows * _PITCH + _FOOT
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    used = len(pool.path(architecture))
    subtitle = f"{used} of {len(pool)} positions used, {sum(parameters.values()):,} parameters in total"
    _write_words(axes, lines, subtitle, _caption(pool, architecture))

    left = (width - content) / 2
    looks = candidate_looks(pool)
    notes = _parameter_notes(pool, architecture, parameters)
    head = height - _HEAD - _LINE * (len(lines) - 1)
    places = [
        (left + (i // num_rows) * _COLUMN_WIDTH, head - (i % num_rows) * _PITCH - _BOX_HEIGHT / 2)
        for i in range(len(pool))
    ]
    for index, (x, y) in enumerate(places):
        position, name = pool.positions[index], architecture.choices[index]
        if position[name].is_skip:
            _draw_skip(axes, x, y, name=name, position=position.name)
        else:
            shape = shape_text(boundaries[index + 1])
            _draw_box(axes, x, y, looks[name], name=name, position=position.name, note=notes[index], shape=shape)
        _write_others(axes, x, y, [c.name for c in position.candidates if c.name != name])
    _draw_flow(axes, places, pool, architecture, source=shape_text(boundaries[0]))
    return figure


def _write_words(axes: Axes, title: Sequence[str], subtitle: str, caption: str) -> None:
    """Title and subtitle above the boxes, the caption below."""
    (_, width), (_, height) = axes.get_xlim(), axes.get_ylim()
    for index, line in enumerate(title):
        axes.text(_MARGIN, height - 0.3 - _LINE * index, line, fontsize=13, fontweight="bold", color=INK, va="center")
    axes.text(_MARGIN, height - 0.55 - _LINE * (len(title) - 1), subtitle, fontsize=9.5, color=GREY, va="center")
    caption = textwrap.fill(caption, int((width - 2 * _MARGIN) * 72 / (_SIDE_PT * 0.54)))
    axes.text(_MARGIN, 0.15, caption, fontsize=_SIDE_PT, color=GREY, va="bottom", linespacing=1.3)


def _caption(pool: LayerPool, architecture: Architecture) -> str:
    """What the boxes mean, without what this drawing does not show."""
    path = pool.path(architecture)
    parts = [
        "In a box: the candidate chosen and its number of parameters, the position and its output shape without the "
        "batch; beside it: the others."
    ]
    if len(path) < len(pool):
        parts.append("Dashed: skipped.")
    if any(len(position.candidates) == 1 for position in pool.positions):
        parts.append("Grey: no choice.")
    used = Counter(state for layer in path for state in set(layer.states))
    if any(used[layer.key] > 1 for layer in path):
        parts.append("As X: the very weights of position X, used again.")
    if any(count > 1 and state.startswith("tied/") for state, count in used.items()):
        parts.append("Tied: with weights counted at an earlier position.")
    return " ".join(parts)


def _parameter_notes(pool: LayerPool, architecture: Architecture, parameters: Mapping[str, int]) -> dict[int, str]:
    """By position index: the number of weights, or where weights used before come from."""
    notes: dict[int, str] = {}
    home: dict[str, str] = {}
    for layer in pool.path(architecture):
        name = pool.positions[layer.position].name
        count = parameters.get(name, 0)
        is_tied = any(state in home for state in layer.states)
        if layer.key in home:
            notes[layer.position] = f"as {home[layer.key]}"
        else:
            notes[layer.position] = f"{count:,} + tied" if is_tied else f"{count:,}"
        home.update({state: name for state in layer.states if state not in home})
    return notes


def _draw_box(axes: Axes, x: float, y: float, look: Look, *, name: str, position: str, note: str, shape: str) -> None:
    _add_rectangle(axes, x, y, _BOX_HEIGHT, fill=look.fill, edge=look.edge)
    _write_line(axes, x, y + 0.115, name, note, left_pt=10.5, right_pt=9.0, is_bold=True)
    _write_line(axes, x, y - 0.135, position, shape, left_pt=8.0, right_pt=8.0)


def _draw_skip(axes: Axes, x: float, y: float, *, name: str, position: str) -> None:
    _add_rectangle(axes, x, y, _SKIP_HEIGHT, fill=(1.0, 1.0, 1.0), edge=GREY, is_dashed=True)
    _write_line(axes, x, y, name, position, left_pt=9.0, right_pt=8.0, colour=GREY)


def _write_line(
    axes: Axes,
    x: float,
    y: float,
    left: str,
    right: str,
    *,
    left_pt: float,
    right_pt: float,
    is_bold: bool = False,
    colour: str = INK,
) -> None:
    """One line of a box: a text at either end, both shortened so that they never meet."""
    room_pt = (_BOX_WIDTH - 0.24) * 72
    right = shorten(right, int(room_pt * 0.6 / (right_pt * _CHAR)))
    room_pt -= (len(right) + 1) * right_pt * _CHAR
    left = shorten(left, int(room_pt / (left_pt * (_BOLD_CHAR if is_bold else _CHAR))))
    weight = "bold" if is_bold else "normal"
    axes.text(x + 0.12, y, left, fontsize=left_pt, fontweight=weight, color=colour, va="center")
    axes.text(x + _BOX_WIDTH - 0.12, y, right, fontsize=right_pt, color=colour, va="center", ha="right")


def _add_rectangle(
    axes: Axes,
    x: float,
    y: float,
    height: float,
    *,
    fill: tuple[float, float, float],
    edge: str,
    is_dashed: bool = False,
) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x, y - height / 2),
            _BOX_WIDTH,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=fill,
            edgecolor=edge,
            linewidth=0.8 if is_dashed else 1.6,
            linestyle=(0, (4, 3)) if is_dashed else "solid",
            zorder=2,
        )
    )


def _write_others(axes: Axes, x: float, y: float, names: Sequence[str]) -> None:
    """The candidates that were not chosen, right of the box."""
    max_chars = int((_SIDE_WIDTH - 0.15) * 72 / (_SIDE_PT * _CHAR))
    lines = wrap_words(names, max_chars=max_chars, max_lines=4)
    if lines:
        axes.text(x + _BOX_WIDTH + 0.12, y, "\n".join(lines), fontsize=_SIDE_PT, color=GREY, va="center")


def _draw_flow(
    axes: Axes, places: Sequence[tuple[float, float]], pool: LayerPool, architecture: Architecture, *, source: str
) -> None:
    """The input, and an arrow into every box: straight down, or around into the next column."""
    heights = [
        _SKIP_HEIGHT if position[name].is_skip else _BOX_HEIGHT
        for position, name in zip(pool.positions, architecture.choices, strict=True)
    ]
    middle = _BOX_WIDTH / 2
    x, y = places[0]
    top = y + heights[0] / 2
    start = places[0][1] + _BOX_HEIGHT / 2 + 0.23
    axes.text(x + middle, start + 0.08, f"input {source}", fontsize=9, color=INK, ha="center", va="center")
    _draw_arrow(axes, [(x + middle, start - 0.03), (x + middle, top)])
    ceiling = start - 0.05
    for index in range(1, len(places)):
        (x0, y0), (x1, y1) = places[index - 1], places[index]
        bottom, top = y0 - heights[index - 1] / 2, y1 + heights[index] / 2
        route = [(x0 + middle, bottom), (x1 + middle, top)]
        if x1 != x0:
            floor, lane = y0 - _BOX_HEIGHT / 2 - 0.13, x1 - 0.15
            route[1:1] = [(x0 + middle, floor), (lane, floor), (lane, ceiling), (x1 + middle, ceiling)]
        _draw_arrow(axes, route)


def _draw_arrow(axes: Axes, route: Sequence[tuple[float, float]]) -> None:
    xs, ys = zip(*route, strict=True)
    axes.plot(xs, ys, color=GREY, linewidth=1.1, solid_joinstyle="round", zorder=1)
    axes.plot(xs[-1], ys[-1] + 0.05, marker="v", markersize=5, color=GREY, zorder=1)
