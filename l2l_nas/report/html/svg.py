"""Where the parts of a chart lie on the page; the markup itself is in `svg.html.j2`.

A chart has no view box: places along x are percentages, heights are pixels. So it fills any screen, and its letters
keep their size. That bars curves, but not staircases, bars, dots and straight lines.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from l2l_nas.report.charts.architecture import Box
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series
from l2l_nas.report.text import shorten

_HEIGHT_PX, _MARGIN_TOP, _MARGIN_BOTTOM = 320.0, 12.0, 30.0
# more points than these make a page slow to load and tell no more
_MAX_POINTS = 1500

BLOCK_WIDTH = 188.0
_CHAR_PX = 7.4  # of a bold letter of 13 pixels, on the safe side
_SMALL_CHAR_PX = 6.2  # of a letter of 11 pixels
_ROOMY = 24  # boxes with two lines each; of more, one
_SKIP_INSET = 10.0  # by which the box of a skip is lower, above and below, where there is space


def number(value: float) -> str:
    """A length as markup has it: at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A share of the width."""
    return f"{number(100 * share)}%"


class Plot:
    """A chart laid out for the page.

    Args:
        chart: one with axes.
    """

    def __init__(self, chart: Chart) -> None:
        assert chart.x is not None  # those without axes have a message
        assert chart.y is not None
        self.chart = chart
        self._x: Axis = chart.x
        self._y: Axis = chart.y
        self.x_marks = [(self.left(value), label) for value, label in chart.x.labelled()]
        self.y_marks = [(self.top(value), label) for value, label in chart.y.labelled()]
        self.height, self.ceiling, self.floor = _HEIGHT_PX, _MARGIN_TOP, _HEIGHT_PX - _MARGIN_BOTTOM

    def left(self, value: float) -> str:
        """Where a value of x lies."""
        return percent(self._x.at(value))

    def top(self, value: float) -> float:
        """Where a value of y lies, in pixels from above."""
        return round(_MARGIN_TOP + (1 - self._y.at(value)) * (_HEIGHT_PX - _MARGIN_TOP - _MARGIN_BOTTOM), 2)

    def points(self, series: Series) -> tuple[Point, ...]:
        """The points of a series, or of very many an even choice."""
        return series.points[:: math.ceil(len(series.points) / _MAX_POINTS) or 1]

    def segments(self, series: Series) -> list[tuple[str, float, str, float]]:
        """The straight lines of a series, without those of no length."""
        return [
            (self.left(one.x), self.top(one.y), self.left(two.x), self.top(two.y))
            for one, two in itertools.pairwise(series.points)
            if (one.x, one.y) != (two.x, two.y)
        ]


@dataclass(frozen=True)
class Block:
    """A box of an architecture with its place; lengths are in pixels."""

    box: Box  # what it is
    hue: str  # the class of its colour
    wire_top: float  # where the line from the box above begins
    top: float  # top, height: of the box
    height: float
    words: tuple[tuple[float, float, str, str], ...]  # place, class and text of each line


@dataclass(frozen=True)
class Blocks:
    """An architecture laid out, of the same height for all of a space that is not folded."""

    label: str
    source: str
    blocks: tuple[Block, ...]
    height: float
    width: float = BLOCK_WIDTH


def lay_out(boxes: tuple[Box, ...], hues: dict[str, str], *, source: str, label: str, num_positions: int) -> Blocks:
    """The boxes of an architecture below each other.

    Args:
        boxes: in order.
        hues: class of the colour by candidate.
        source: shape of the input.
        label: what a screen reader says of it.
        num_positions: of the space; of many, boxes have one line each.
    """
    height, pitch = (40.0, 54.0) if num_positions <= _ROOMY else (22.0, 32.0)
    found, end = [], 16.0  # the end of what stands above
    for index, box in enumerate(boxes):
        inset = _SKIP_INSET if box.is_skip and height > 30 else 0.0
        slot = 24.0 + index * pitch
        words = _words(box, slot + inset, height - 2 * inset)
        found.append(Block(box, hues[box.choice], end, slot + inset, height - 2 * inset, words))
        end = slot + height - inset
    total = 24.0 + len(boxes) * pitch - (pitch - height) + 2
    return Blocks(label, shorten(source, 22), tuple(found), total)


def _words(box: Box, top: float, height: float) -> tuple[tuple[float, float, str, str], ...]:
    right_x, words = BLOCK_WIDTH - 9, []
    times = f" \N{MULTIPLICATION SIGN} {box.times}" if box.times > 1 else ""
    if box.is_skip or height < 30:
        y, right = top + height / 2 + 4.5, box.names if box.is_skip else box.note
    else:
        y, right = top + 17, box.note
        output = shorten(box.output, 14)
        num_chars = int((BLOCK_WIDTH - 34) / _SMALL_CHAR_PX) - len(output)
        words += [(11.0, top + 32, "small", shorten(box.title, num_chars)), (right_x, top + 32, "small end", output)]
    right = shorten(right, 15)
    num_chars = int((BLOCK_WIDTH - 34 - len(right) * _SMALL_CHAR_PX) / _CHAR_PX) - len(times)
    return (*words, (11.0, y, "name", shorten(box.choice, num_chars) + times), (right_x, y, "small end", right))
