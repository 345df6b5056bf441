"""Where the parts of a chart lie on the page; the markup itself is in `svg.html.j2`.

A chart has no view box: places along x are percentages, heights are pixels. So it fills any screen, and its letters
keep their size. That bars curves, but not staircases, bars, dots and straight lines.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from l2l_nas.report.charts.chart import Point

HEIGHT_PX, CEILING_PX, FLOOR_PX = 320.0, 12.0, 290.0  # of a chart; of the ends of its axis of y
# more points than these make a page slow to load and tell no more
_MAX_POINTS = 1500


def number(value: float) -> str:
    """A length as markup has it: at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A share of the width."""
    return f"{number(100 * share)}%"


def height(share: float) -> float:
    """Where a share of the axis of y lies, in pixels from above."""
    return round(CEILING_PX + (1 - share) * (FLOOR_PX - CEILING_PX), 2)


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """The points, or of very many an even choice."""
    return points[:: math.ceil(len(points) / _MAX_POINTS) or 1]


def segments(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The ends of the straight lines from point to point, without those of no length."""
    return [(one, two) for one, two in itertools.pairwise(points) if (one.x, one.y) != (two.x, two.y)]
