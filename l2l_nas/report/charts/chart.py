"""A chart as data: axes, and series of points in the order in which they are drawn.

A description holds values, words and names of styles; it knows neither pixels nor markup nor matplotlib.
`report/styles.py` has the styles, and `report/html/page.css` classes of the same names.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.text import heading

Place = tuple[float, float]
Kind = Literal["dots", "line", "floor", "spans", "rules"]

_MOST_TICKS = 7
_SHORT = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Axis:
    """Values along an axis."""

    label: str  # what they are
    # low, high: what its ends stand for; above 0 if it is logarithmic. On an axis of names `low` may be the larger
    low: float
    high: float
    is_log: bool = False  # whether it is logarithmic
    is_count: bool = False  # whether only whole numbers are marked
    is_short: bool = False  # whether labels are short counts, such as 20k
    marks: tuple[tuple[float, str], ...] = ()  # values with their labels; without any, round values are marked
    level: float | None = None  # a value to compare with, drawn across the chart

    @classmethod
    def around(cls, label: str, values: Sequence[float], margins: Place, *, is_count: bool = False) -> Axis:
        """An axis around values, with margins below and above as shares of their span.

        A single value gets some space too, and as much do values that differ in their last digits alone.
        """
        low, high = min(values), max(values)
        span = high - low
        if span < 1e-9 * max(map(abs, values)) or not span:
            span = abs(values[0]) * 0.1 or 1.0
            low, high = values[0] - span / 2, values[0] + span / 2
        return cls(label, low - margins[0] * span, high + margins[1] * span, is_count=is_count)

    @classmethod
    def counting(cls, label: str, values: Sequence[float]) -> Axis:
        """An axis of counts such as numbers of parameters: logarithmic where they span more than a decade."""
        axis = replace(cls.around(label, values, (0.05, 0.05)), is_count=True, is_short=True)
        if min(values) > 0 and max(values) > 10 * min(values):
            margin = (max(values) / min(values)) ** 0.05
            low, high = min(values) / margin, max(values) * margin
            return replace(axis, label=f"{label}, log scale", low=low, high=high, is_log=True)
        return axis

    @classmethod
    def of_names(cls, label: str, names: Sequence[str]) -> Axis:
        """An axis of names, one below the other at 0, 1, 2 and so on."""
        return cls(label, len(names) - 0.4, -0.6, marks=tuple(enumerate(names)))

    def at(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high one."""
        if self.is_log:
            low = math.log(self.low)  # a quotient of two ends could be no number
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def labelled(self) -> list[tuple[float, str]]:
        """The values to mark, with their labels."""
        if self.marks:
            return list(self.marks)
        values = self.ticks()
        return list(zip(values, map(short_count, values) if self.is_short else tick_labels(values), strict=True))

    def ticks(self) -> list[float]:
        """Round values to mark, few enough to have space for their labels."""
        if self.is_log:
            for steps in ((1, 2, 5), (1, 3), (1,)):
                most = min(math.ceil(math.log10(self.high)), sys.float_info.max_10_exp)
                powers = range(math.floor(math.log10(self.low)), most + 1)
                found = [step * 10.0**power for power in powers for step in steps]
                found = [value for value in found if self.low <= value <= self.high]
                if len(found) <= _MOST_TICKS:
                    break
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / _MOST_TICKS)]
        step = self._step()
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _step(self) -> float:
        """The smallest of 1, 2, 2.5, 5, 10, 20, 25, ... that gives no more marks than `_MOST_TICKS`."""
        raw = (self.high - self.low) / _MOST_TICKS
        power = 10.0 ** max(math.floor(math.log10(raw)), 0 if self.is_count else -400)
        steps = [factor * power for factor in (1, 2, 2.5, 5, 10)]
        return next(step for step in steps if step >= raw * (1 - 1e-9) and (not self.is_count or step % 1 == 0))


@dataclass(frozen=True)
class Point:
    """A point of a series."""

    x: float  # x, y: its place
    y: float
    reach: Place | None = None  # the ends of the interval around its value, which is drawn as a bar; None for no bar
    note: str = ""  # words beside it, where nobody can point at it
    trial: int | None = None  # which trial it is of


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    style: str  # the name of their style
    # in order. Marks on the floor have no y; spans fill their intervals of x, rules are lines across all y
    points: tuple[Point, ...]
    label: str = ""  # what the legend says of it; empty for nothing
    kind: Kind = "dots"  # how they are drawn
    is_across: bool = False  # whether the intervals of its points lie along x


@dataclass(frozen=True)
class Chart:
    """A pair of axes with series, or the message why there is nothing to show."""

    title: str  # what it shows; a screen reader says it too
    x: Axis | None = None  # x, y: its axes; None where there is a message
    y: Axis | None = None
    series: tuple[Series, ...] = ()  # those drawn last lie on top
    message: str = ""  # why there is nothing to show


@dataclass(frozen=True)
class Sheet:
    """Charts that are one picture file."""

    charts: tuple[Chart, ...]  # below each other, or side by side
    title: str = ""  # above them all; empty where each has its own alone
    is_row: bool = False  # whether they stand side by side
    panel_in: Place = (8.0, 4.5)  # width and height of one chart in inches


def line(style: str, places: Iterable[Place], label: str = "") -> Series:
    """A line through places."""
    return Series(style, tuple(Point(x, y) for x, y in places), label, "line")


def best_so_far(places: Sequence[Place], goal: Goal, *, until: float) -> list[Place]:
    """The corners of the staircase of the best value up to each x.

    Args:
        places: x and value, by growing x.
        goal: which values are better.
        until: the x at which the last step ends.
    """
    corners: list[Place] = []
    for x, y in places:
        if not corners or goal.better(y, corners[-1][1]):
            corners += [(x, corners[-1][1]), (x, y)] if corners else [(x, y)]
    return [*corners, (until, corners[-1][1])] if corners else []


def axis_label(goal: Goal, what: str = "") -> str:
    """What stands beside an axis: the name of a goal, of what kind its values are, which way is better."""
    return f"{', '.join(filter(None, (heading(goal.name), what)))} ({'more' if goal.maximize else 'less'} is better)"


def short_count(value: float) -> str:
    """A count for an axis: 20k, 1.5M."""
    for size, unit in _SHORT:
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels with as many digits as their distance needs."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    if not steps or max(map(abs, values)) >= 1e6 or min(steps) < 1e-6:
        near = 0.01 * min(map(abs, steps), default=math.inf)
        for digits in range(4, 18):  # with 17 a label is its number
            labels = [f"{value:.{digits}g}" for value in values]
            if not any(abs(float(label) - value) > near for label, value in zip(labels, values, strict=True)):
                return labels
    decimals = next(digits for digits in range(9) if math.isclose(steps[0], round(steps[0], digits), rel_tol=1e-6))
    return [f"{value:.{decimals}f}" for value in values]
