"""Where the parts of a chart lie on the page; the markup itself is in `svg.html.j2`.

A chart has no view box: places along x are percentages, heights are pixels. So it fills any screen, and its letters
keep their size. That bars curves, but not staircases, bars, dots and straight lines.
"""

from __future__ import annotations

import itertools
import math

from l2l_nas.report.charts.chart import Axis, Chart, Point, Series

_HEIGHT_PX, _MARGIN_TOP, _MARGIN_BOTTOM = 320.0, 12.0, 30.0
# more points than these make a page slow to load and tell no more
_MAX_POINTS = 1500


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
