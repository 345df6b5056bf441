"""The picture of a comparison: a chart for each landscape, a row for each method, a mark for each budget."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.search.simulated.comparison import Difference
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet

_WIDTH = 0.7  # of a row, that its marks share


def peers_sheet(rows: Sequence[Mapping[str, Any]], over: str) -> Sheet:
    """Differences to one method, means of tasks with their standard errors.

    Args:
        rows: what `comparison.summary` gives.
        over: the method that they are differences to.
    """
    rows = [row for row in rows if row["mean"] is not None]
    budgets = sorted({row["budget"] for row in rows})
    charts = [
        _chart(landscape, [row for row in rows if row["landscape"] == landscape], budgets, over)
        for landscape in dict.fromkeys(row["landscape"] for row in rows)
    ]
    if not charts:
        charts = [Chart("Searches beside each other", message=f"nothing was played beside {over}")]
    title = f"Points of test accuracy above {over}, by whole trainings; bars: one standard error"
    height = 1.6 + 0.55 * len({row["method"] for row in rows})
    return Sheet(tuple(charts), title, is_row=True, panel_in=(5.2, max(3.0, height)))


def _chart(landscape: str, rows: Sequence[Mapping[str, Any]], budgets: Sequence[float], over: str) -> Chart:
    names = list(dict.fromkeys(row["method"] for row in rows))
    series = []
    for index, budget in enumerate(budgets):
        offset = (index - (len(budgets) - 1) / 2) * _WIDTH / len(budgets)
        points = tuple(
            Point(row["mean"].value, names.index(row["method"]) + offset, _reach(row["mean"]))
            for row in rows
            if row["budget"] == budget
        )
        if points:
            series.append(Series(f"side{index}", points, f"{budget:g}", is_across=True))
    ends = [end for one in series for point in one.points for end in point.reach or (point.x,)]
    low, high = min([*ends, 0.0]), max([*ends, 0.0])
    margin = 0.05 * (high - low or 1)
    x = Axis(f"points above {over}", low - margin, high + margin, level=0.0)
    return Chart(landscape, x, Axis.of_names("", names), tuple(series))


def _reach(mean: Difference) -> tuple[float, float] | None:
    """Of one repetition there is none."""
    return None if math.isnan(mean.error) else (mean.value - mean.error, mean.value + mean.error)
