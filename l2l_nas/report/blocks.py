"""Architectures as chains of blocks, for a page: full drawings to stand side by side, and strips for tables.

Colours are classes, `hue0` to `hue7`, which the page's style defines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from l2l_nas.report.card import SpaceCard
from l2l_nas.report.figures import HUES
from l2l_nas.report.svg import Markup, tag
from l2l_nas.report.text import shorten
from l2l_nas.space.architecture import Architecture

_WIDTH = 188.0
_CHAR_PX = 7.4  # of a bold letter of 13 pixels, on the safe side
_SMALL_CHAR_PX = 6.2  # of a letter of 11 pixels
_ROOMY = 24  # positions with two lines a box; of more, one
_SKIP_INSET = 10.0  # by which the box of a skip is lower, above and below, where there is room
_FOLDED = 48  # of still more, equal neighbours are one box


@dataclass(frozen=True)
class _Box:
    """One box, or several equal ones."""

    names: str  # of its positions
    choice: str
    note: str
    output: str
    others: tuple[str, ...]
    is_skip: bool
    differs: bool
    times: int


def hue_classes(card: SpaceCard) -> dict[str, str]:
    """The class of every candidate name's colour; the last is grey."""
    numbers = {hue: index for index, hue in enumerate(HUES)}
    return {name: f"hue{numbers.get(hue, len(HUES))}" for name, hue in card.hues.items()}


def strip(card: SpaceCard, architecture: Architecture) -> Markup:
    """An architecture as a row of small squares: their colours are the candidates, gaps are skips."""
    hues = hue_classes(card)
    squares = [
        tag("i", class_="gap" if name in position.skips else hues[name])
        for position, name in zip(card.positions, architecture.choices, strict=True)
    ]
    return tag("span", *squares, class_="strip", aria_hidden="true")


def legend(card: SpaceCard) -> Markup:
    """What the colours of blocks and strips mean."""
    skips = {name for position in card.positions for name in position.skips}
    items = [
        tag("span", tag("i", class_="gap" if name in skips else hue), name, class_="key")
        for name, hue in hue_classes(card).items()
    ]
    return tag("p", *items, class_="legend")


def blocks(card: SpaceCard, architecture: Architecture, *, first: Architecture, label: str) -> Markup:
    """A drawing of an architecture, of the same height for all architectures of a space that is not folded.

    Args:
        card: the space.
        architecture: one of its.
        first: what to compare with: boxes that differ from it are framed.
        label: what a screen reader says of it.
    """
    boxes = _boxes(card, architecture, first)
    height, pitch = (40.0, 54.0) if len(card.positions) <= _ROOMY else (22.0, 32.0)
    hues = hue_classes(card)
    middle = _WIDTH / 2
    parts = [tag("text", f"input {shorten(card.source, 22)}", class_="small middle", x=middle, y=11.0)]
    end = 16.0  # of what stands above
    for index, box in enumerate(boxes):
        inset = _SKIP_INSET if box.is_skip and height > 30 else 0.0
        slot = 24.0 + index * pitch
        top = slot + inset
        parts.append(tag("line", class_="wire", x1=middle, x2=middle, y1=end, y2=top - 5))
        parts.append(tag("path", class_="head", d=f"M{middle - 3.5:g} {top - 5:g}h7l-3.5 5z"))
        parts.append(_draw(box, hues[box.choice], top, height - 2 * inset))
        end = slot + height - inset
    total = 24.0 + len(boxes) * pitch - (pitch - height) + 2
    return tag(
        "svg", *parts, class_="blocks", role="img", aria_label=label, width=_WIDTH, height=total,
        viewBox=f"0 0 {_WIDTH:g} {total:g}",
    )  # fmt: skip


def _boxes(card: SpaceCard, architecture: Architecture, first: Architecture) -> list[_Box]:
    weights = card.weights(architecture)
    singles = [
        _Box(
            position.name,
            name,
            weight.note,
            position.output,
            tuple(other for other in position.candidates if other != name),
            name in position.skips,
            name != first.choices[index],
            1,
        )
        for index, (position, name, weight) in enumerate(
            zip(card.positions, architecture.choices, weights, strict=True)
        )
    ]
    if len(singles) <= _FOLDED:
        return singles
    counts = {position.name: weight.count for position, weight in zip(card.positions, weights, strict=True)}
    return [_fold(list(group), counts) for _, group in groupby(singles, key=lambda box: (box.choice, box.output))]


def _fold(group: list[_Box], counts: Mapping[str, int]) -> _Box:
    if len(group) == 1:
        return group[0]
    head, tail = group[0], group[-1]
    count = sum(counts[box.names] for box in group)
    return _Box(
        f"{head.names} to {tail.names}",
        head.choice,
        "" if head.is_skip else f"{count:,}",
        head.output,
        head.others,
        head.is_skip,
        any(box.differs for box in group),
        len(group),
    )


def _draw(box: _Box, hue: str, top: float, height: float) -> Markup:
    kind = "skipped" if box.is_skip else hue
    parts = [tag("title", _tip(box))]
    parts.append(
        tag(
            "rect",
            class_="differs" if box.differs else None,
            x=1.0,
            y=top,
            width=_WIDTH - 2,
            height=height,
            rx=5.0,
        )
    )
    times = f" \N{MULTIPLICATION SIGN} {box.times}" if box.times > 1 else ""
    if box.is_skip or height < 30:
        y, right = top + height / 2 + 4.5, box.names if box.is_skip else box.note
    else:
        y, right = top + 17, box.note
        output = shorten(box.output, 14)
        room = int((_WIDTH - 34) / _SMALL_CHAR_PX) - len(output)
        parts.append(tag("text", shorten(box.names, room), class_="small", x=11.0, y=top + 32))
        parts.append(tag("text", output, class_="small end", x=_WIDTH - 9, y=top + 32))
    right = shorten(right, 15)
    room = int((_WIDTH - 34 - len(right) * _SMALL_CHAR_PX) / _CHAR_PX) - len(times)
    parts.append(tag("text", shorten(box.choice, room) + times, class_="name", x=11.0, y=y))
    parts.append(tag("text", right, class_="small end", x=_WIDTH - 9, y=y))
    return tag("g", *parts, class_=f"block {kind}")


def _tip(box: _Box) -> str:
    lines = [f"{box.names}: {box.choice}"]
    if box.is_skip:
        lines.append("left out")
    else:
        unit = "" if box.note.startswith("as ") else " parameters"
        lines.append(f"{box.note}{unit}, output {box.output}")
    if box.others:
        lines.append(f"not chosen: {', '.join(box.others)}")
    if box.differs:
        lines.append("differs from the first")
    return "\n".join(lines)
