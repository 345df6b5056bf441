"""HTML and SVG as text, every word of it escaped; and charts whose width is the reader's.

A chart has no view box: places along x are percentages, heights are pixels. So it fills any screen, and its letters
keep their size. That bars curves and slanted paths, but not staircases, bars, dots and straight lines.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_VOID = {"meta", "img", "br"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
_MARGIN_TOP, _MARGIN_BOTTOM = 12.0, 30.0


class Markup(str):
    """Text that is markup already. All other text is escaped where it is put into some."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """Text as it may stand anywhere in a page, in quotes too; what no page may hold is left out.

    Control characters and halves of surrogate pairs come from damaged files alone: UTF-8 has no form for the latter.
    """
    whole = str(text).encode("utf-8", "replace").decode()
    return Markup(html.escape(_CONTROL.sub("", whole), quote=True))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: text, which is escaped, or markup.
        attributes: `class_` is written class, `stroke_width` stroke-width; None leaves one out, True gives a bare name.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{_number(value) if isinstance(value, float) else escape(value)}"'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A share of the width, as an attribute."""
    return f"{_number(100 * share)}%"


@dataclass(frozen=True)
class Axis:
    """Values along an axis.

    Args:
        low, high: what its ends stand for, `low` below `high`; above 0 if it is logarithmic.
        is_log: whether it is.
        is_count: whether only whole numbers are marked.
    """

    low: float
    high: float
    is_log: bool = False
    is_count: bool = False

    def at(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, at_most: int = 7) -> list[float]:
        """Round values to mark, few enough to have room for their labels."""
        if self.is_log:
            for steps in ((1, 2, 5), (1, 3), (1,)):
                powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
                found = [step * 10.0**power for power in powers for step in steps]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= at_most:
                    break
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / at_most)]
        step = self._step(at_most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _step(self, at_most: int) -> float:
        """The smallest of 1, 2, 2.5, 5, 10, 20, 25, ... that gives no more marks than asked for."""
        raw = (self.high - self.low) / at_most
        power = 10.0 ** max(math.floor(math.log10(raw)), 0 if self.is_count else -400)
        steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
        return next(step for step in steps if step >= raw * (1 - 1e-9) and (not self.is_count or step % 1 == 0))


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels with as many decimals as their distance needs."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    if not steps or max(map(abs, values)) >= 1e6 or min(steps) < 1e-6:
        return [f"{value:.4g}" for value in values]
    decimals = next(digits for digits in range(9) if math.isclose(steps[0], round(steps[0], digits), rel_tol=1e-6))
    return [f"{value:.{decimals}f}" for value in values]


class Plot:
    """A chart being drawn: axes first, then whatever is added, then what is written last lies on top.

    Args:
        x, y: its axes; y grows upward.
        height_px: of the whole, labels included.
        label: what a screen reader says of it.
    """

    def __init__(self, x: Axis, y: Axis, *, height_px: float, label: str) -> None:
        self._x, self._y = x, y
        self._height = height_px
        self._label = label
        self._parts: list[Markup] = []

    def left(self, value: float) -> str:
        """Where a value of x lies."""
        return percent(self._x.at(value))

    def top(self, value: float) -> float:
        """Where a value of y lies, in pixels from above."""
        return _MARGIN_TOP + (1 - self._y.at(value)) * (self._height - _MARGIN_TOP - _MARGIN_BOTTOM)

    @property
    def floor(self) -> float:
        """Where the plot ends below and the labels begin, in pixels from above."""
        return self._height - _MARGIN_BOTTOM

    def add(self, *parts: Markup) -> None:
        """Draw this over what is there."""
        self._parts += parts

    def draw_axes(self, *, x_labels: Sequence[str] | None = None, y_labels: Sequence[str] | None = None) -> None:
        """Lines of the grid with their labels; by default plain numbers."""
        xs, ys = self._x.ticks(), self._y.ticks()
        for value, label in zip(ys, y_labels or tick_labels(ys), strict=True):
            height = self.top(value)
            self.add(tag("line", class_="grid", x1="0", x2="100%", y1=height, y2=height))
            self.add(tag("text", label, class_="tick end", x="-8", y=height + 4))
        for value, label in zip(xs, x_labels or tick_labels(xs), strict=True):
            place = self.left(value)
            self.add(tag("line", class_="grid", x1=place, x2=place, y1=_MARGIN_TOP, y2=self.floor + 4))
            self.add(tag("text", label, class_="tick middle", x=place, y=self.floor + 19))

    def draw_stairs(self, points: Sequence[tuple[float, float]], *, until: float, is_upfront: bool = False) -> None:
        """A staircase through points of growing x, to the x it ends at.

        Args:
            points: x and y.
            until: where the last step ends.
            is_upfront: whether it changes to a point's height left of the point, not at it.
        """
        corners = [*points, (until, points[-1][1])]
        for (x0, y0), (x1, y1) in itertools.pairwise(corners):
            level, turn = (y1, x0) if is_upfront else (y0, x1)
            self._segment("stairs", x0, level, x1, level)
            self._segment("stairs", turn, y0, turn, y1)

    def _segment(self, class_: str, x0: float, y0: float, x1: float, y1: float) -> None:
        if (x0, y0) != (x1, y1):
            ends = {"x1": self.left(x0), "y1": self.top(y0), "x2": self.left(x1), "y2": self.top(y1)}
            self.add(tag("line", class_=class_, **ends))

    def draw_dot(self, x: float, y: float, *, class_: str, tip: str, trial: int, radius: float = 4.0) -> None:
        """A dot that tells more when one points at it."""
        place = {"cx": self.left(x), "cy": self.top(y), "r": radius}
        self.add(tag("circle", tag("title", tip), class_=f"dot {class_}", data_trial=trial, **place))

    def draw_error(self, x: float, y: float, error: float, *, trial: int) -> None:
        """A bar of one standard error to either side; nothing for 0."""
        if error > 0:
            ends = {"y1": self.top(y - error), "y2": self.top(y + error)}
            self.add(tag("line", class_="error", data_trial=trial, x1=self.left(x), x2=self.left(x), **ends))

    def markup(self) -> Markup:
        """The whole chart."""
        return tag("svg", *self._parts, class_="plot", role="img", aria_label=self._label, height=self._height)
