"""Where the boxes of an architecture lie on the page, and the words in them.

Lengths are in pixels; names are 13 pixels high, all other words 11. Of many positions a box has one line of words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from l2l_nas.report.charts.architecture import Box
from l2l_nas.report.charts.chart import Place
from l2l_nas.report.text import shorten

_HEAD = 24.0  # above the boxes: the input
_ARCS = 16.0  # left of the boxes, where something is read from afar
_SKIP_INSET = 10.0  # by which the box of a skip is lower, above and below, where there is space
_INSET, _ARROW = 10.0, 5.0
_ROOMY = 24  # positions whose boxes have two lines each; of more, one
_WIDTH = 188.0  # of a box
_NAME, _SMALL = 7.4, 6.2  # widths of a letter, on the safe side
WordStyle = Literal["name", "small", "small end", "small middle"]


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

    label: str  # what it shows, which a screen reader says
    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    wires: tuple[tuple[Place, Place], ...]  # from box to box, each with a head at its end
    arcs: tuple[tuple[Place, Place], ...]  # from the left sides of boxes to those of later ones that read them
    source: Words  # the input
    bulge: float = _ARCS  # how far arcs reach to the left


def lay_out(boxes: Sequence[Box], *, source: str, label: str, num_positions: int) -> Diagram:
    """The boxes of an architecture below each other.

    Args:
        boxes: in order.
        source: shape of the input.
        label: what it shows.
        num_positions: of the space.
    """
    far = _read_from_afar(boxes)
    indent = _ARCS if far else 0.0
    height, pitch = (40.0, 54.0) if num_positions <= _ROOMY else (22.0, 32.0)
    placed = [_place(box, indent, _HEAD + index * pitch, height) for index, box in enumerate(boxes)]
    return Diagram(
        label,
        _WIDTH,
        _HEAD + (len(boxes) - 1) * pitch + height + 2,
        tuple(placed),
        tuple(_wires(placed)),
        tuple((_left_of(placed[home]), _left_of(placed[index])) for home, index in far),
        Words(placed[0].middle, 11.0, "small middle", f"input {shorten(source, 22)}"),
    )


def _read_from_afar(boxes: Sequence[Box]) -> list[tuple[int, int]]:
    """Boxes and those that read them without being the next."""
    homes = {name: index for index, box in enumerate(boxes) for name in box.writes}
    pairs = ((homes[name], index) for index, box in enumerate(boxes) for name in box.reads if name in homes)
    return list(dict.fromkeys((home, index) for home, index in pairs if home != index - 1))


def _left_of(one: PlacedBox) -> Place:
    return one.left, one.top + one.height / 2


def _place(box: Box, left: float, top: float, height: float) -> PlacedBox:
    width, has_two_lines = _WIDTH - left, height > 30
    inset = _SKIP_INSET if box.is_skip and has_two_lines else 0.0
    top, height = top + inset, height - 2 * inset
    left_x, right_x, space, words = left + _INSET + 1, left + width - _INSET + 1, width - 34, []
    times = f" \N{MULTIPLICATION SIGN} {box.times}" if box.times > 1 else ""
    y, right = top + height / 2 + 4.5, box.names if box.is_skip else box.note
    if not box.is_skip and has_two_lines:
        y, below = top + 17, top + height - 8
        output = shorten(box.output, 14)
        title = shorten(box.title, int(space / _SMALL) - len(output))
        words = [Words(left_x, below, "small", title), Words(right_x, below, "small end", output)]
    right = shorten(right, 15)
    num_chars = int((space - len(right) * _SMALL) / _NAME) - len(times)
    first = Words(left_x, y, "name", shorten(box.choice, num_chars) + times), Words(right_x, y, "small end", right)
    return PlacedBox(box, left, top, width, height, (*first, *words))


def _wires(placed: Sequence[PlacedBox]) -> Iterator[tuple[Place, Place]]:
    """What each box takes from the one above it, or from the input."""
    starts = [(placed[0].middle, _HEAD - 8), *((one.middle, one.top + one.height) for one in placed)]
    for start, one in zip(starts, placed, strict=False):
        if one.box.follows:
            yield start, (one.middle, one.top - _ARROW)
