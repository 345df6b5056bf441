"""Where the boxes of an architecture lie, and the words in them: the same on the page and in a file, but for sizes.

Lengths are in pixels; names are 13 pixels high, all other words 11.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from l2l_nas.report.charts.architecture import Box
from l2l_nas.report.charts.chart import Place
from l2l_nas.report.text import shorten

_HEAD = 24.0  # above the boxes: the input
_ARCS = 16.0  # left of the boxes, where something is read from afar
_SKIP_INSET = 10.0  # by which the box of a skip is lower, above and below, where there is space
_INSET, _ARROW, _LINE = 10.0, 5.0, 14.0
WordStyle = Literal["name", "small", "small end", "small middle"]


@dataclass(frozen=True)
class BoxSizes:
    """What differs between the page and a file."""

    width: float  # of a box
    height: float
    pitch: float  # from one box to the next below
    name: float  # name, small: widths of a letter, on the safe side
    small: float
    side: float = 0.0  # space for the candidates not chosen, right of a box; 0 for none

    @property
    def has_two_lines(self) -> bool:
        """Whether a box has space for two lines of words."""
        return self.height > 30


PAGE, DENSE_PAGE = BoxSizes(188.0, 40.0, 54.0, 7.4, 6.2), BoxSizes(188.0, 22.0, 32.0, 7.4, 6.2)
FILE = BoxSizes(250.0, 44.0, 70.0, 9.0, 6.9, side=120.0)


@dataclass(frozen=True)
class Words:
    """A line of text."""

    x: float  # x, y: where its base line begins, or ends or has its middle
    y: float
    style: WordStyle
    text: str


@dataclass(frozen=True)
class PlacedBox:
    """A box with its place."""

    box: Box
    left: float
    top: float
    width: float
    height: float
    words: tuple[Words, ...]

    @property
    def middle(self) -> float:
        """Half its way across."""
        return self.left + self.width / 2


@dataclass(frozen=True)
class Diagram:
    """An architecture, laid out."""

    label: str  # what it shows, which a screen reader says too; there may be more in further lines
    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    wires: tuple[tuple[Place, Place], ...]  # from box to box, each with a head at its end
    arcs: tuple[tuple[Place, Place], ...]  # from the left sides of boxes to those of later ones that read them
    words: tuple[Words, ...]  # the input, and the candidates not chosen
    bulge: float = _ARCS  # how far arcs reach to the left


def lay_out(boxes: Sequence[Box], *, source: str, label: str, sizes: BoxSizes = PAGE) -> Diagram:
    """The boxes of an architecture below each other.

    Args:
        boxes: in order.
        source: shape of the input.
        label: what it shows.
        sizes: of the page or of a file.
    """
    far = _read_from_afar(boxes)
    indent = _ARCS if far else 0.0
    width = sizes.width if sizes.side else sizes.width - indent  # the page is as wide with arcs as without
    placed = [_place(box, indent, _HEAD + index * sizes.pitch, width, sizes) for index, box in enumerate(boxes)]
    words = [Words(placed[0].middle, 11.0, "small middle", f"input {shorten(source, 22)}")]
    for one in placed:
        words += _beside(one, sizes)
    return Diagram(
        label,
        indent + width + sizes.side,
        _HEAD + (len(boxes) - 1) * sizes.pitch + sizes.height + 2,
        tuple(placed),
        tuple(_wires(placed)),
        tuple((_left_of(placed[home]), _left_of(placed[index])) for home, index in far),
        tuple(words),
    )


def _read_from_afar(boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """Boxes and those that read them without being the next."""
    homes = {name: index for index, box in enumerate(boxes) for name in box.writes}
    pairs = ((homes[name], index) for index, box in enumerate(boxes) for name in box.reads if name in homes)
    return list(dict.fromkeys((home, index) for home, index in pairs if home != index - 1))


def _left_of(one: PlacedBox) -> Place:
    return one.left, one.top + one.height / 2


def _place(box: Box, left: float, top: float, width: float, sizes: BoxSizes) -> PlacedBox:
    inset = _SKIP_INSET if box.is_skip and sizes.has_two_lines else 0.0
    top, height = top + inset, sizes.height - 2 * inset
    left_x, right_x, space, words = left + _INSET + 1, left + width - _INSET + 1, width - 34, []
    times = f" \N{MULTIPLICATION SIGN} {box.times}" if box.times > 1 else ""
    y, right = top + height / 2 + 4.5, box.names if box.is_skip else box.note
    if not box.is_skip and sizes.has_two_lines:
        y, below = top + 17, top + height - 8
        output = shorten(box.output, 14)
        title = shorten(box.title, int(space / sizes.small) - len(output))
        words = [Words(left_x, below, "small", title), Words(right_x, below, "small end", output)]
    right = shorten(right, 15)
    num_chars = int((space - len(right) * sizes.small) / sizes.name) - len(times)
    first = Words(left_x, y, "name", shorten(box.choice, num_chars) + times), Words(right_x, y, "small end", right)
    return PlacedBox(box, left, top, width, height, (*first, *words))


def _beside(one: PlacedBox, sizes: BoxSizes) -> Iterator[Words]:
    """The candidates that were not chosen."""
    max_chars = int((sizes.side - 12) / sizes.small)
    names = ", ".join(shorten(name, max_chars - 1) for name in one.box.others) if sizes.side else ""
    lines = textwrap.wrap(
        names, max(max_chars, 1), max_lines=4, placeholder=" \N{HORIZONTAL ELLIPSIS}", break_on_hyphens=False
    )
    top = one.top + one.height / 2 + 4 - (len(lines) - 1) * _LINE / 2
    for index, text in enumerate(lines):
        yield Words(one.left + one.width + 12, top + index * _LINE, "small", text)


def _wires(placed: Sequence[PlacedBox]) -> Iterator[tuple[Place, Place]]:
    """What each box takes from the one above it, or from the input."""
    starts = [(placed[0].middle, _HEAD - 8), *((one.middle, one.top + one.height) for one in placed)]
    for start, one in zip(starts, placed, strict=False):
        if one.box.follows:
            yield start, (one.middle, one.top - _ARROW)
