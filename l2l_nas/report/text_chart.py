"""Draws charts as text, for a terminal of 80 columns: the same descriptions that files and pages are drawn of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text

from l2l_nas.report.charts.chart import Axis, Chart, Series
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.results import Results
from l2l_nas.report.styles import style_of

_WIDTH, _LEAST, _ROWS = 78, 40, 7
_FEW = 5  # trials, all of which are in the table of the best
# the shape of a line through a cell, by the sides that it touches: above 1, below 2, left 4, right 8
_JOINTS = " │││─┘┐┤─└┌├─┴┬┼"
Cell = tuple[int, int]


def chart_text(chart: Chart, *, columns: int = _WIDTH) -> Text:
    """A chart of twelve lines and so many columns, or its message where there is nothing to show."""
    if chart.x is None or chart.y is None:
        return Text.assemble((chart.title, "bold"), f": {chart.message}")
    sides = {_row(chart.y, value): label for value, label in chart.y.labelled(3)}
    margin = max(map(len, sides.values())) + 1
    width = columns - margin - 1
    cells: dict[Cell, tuple[str, str]] = {}
    for series in chart.series:
        places = [
            (_ROWS - 1 if series.kind == "floor" else _row(chart.y, point.y), _column(chart.x, point.x, width))
            for point in series.points
        ]
        cells |= _line(places, series) if series.kind == "line" else dict.fromkeys(places, _glyph(series))
    lines = [Text(chart.title, style="bold")]
    for row in range(_ROWS):
        side = f"{sides[row]:>{margin}}┤" if row in sides else f"{'':>{margin}}│"
        lines.append(Text.assemble(side, *(cells.get((row, column), (" ", "")) for column in range(width))))
    lines += _below(chart.x, margin, width)
    keys = [
        Text.assemble(" " * (margin + 1), _glyph(one), " ", one.label.partition(";")[0])
        for one in chart.series
        if one.label
    ]
    return Text("\n").join([*lines, *([Text().join(keys)] if keys else [])])


def charts_text(results: Results, *, columns: int) -> list[Text]:
    """The best score so far and, with several goals, the front; nothing for so few scores that tables have them."""
    if len(results.scored) <= _FEW:
        return []
    fronts = [trade_off_charts(results, *results.trade_offs[0])[0]] if len(results.goals) > 1 else []
    columns = min(max(columns, _LEAST), _WIDTH)
    return [chart_text(chart, columns=columns) for chart in (progress_chart(results), *fronts)]


def _row(axis: Axis, value: float) -> int:
    return round((1 - axis.at(value)) * (_ROWS - 1))


def _column(axis: Axis, value: float, width: int) -> int:
    return round(axis.at(value) * (width - 1))


def _line(places: Sequence[Cell], series: Series) -> dict[Cell, tuple[str, str]]:
    touched: dict[Cell, int] = {}
    for (row, column), (next_row, next_column) in itertools.pairwise(_path(places)):
        is_along = row == next_row
        out, back = (8, 4) if is_along else (2, 1) if next_row > row else (1, 2)
        touched[row, column] = touched.get((row, column), 0) | out
        touched[next_row, next_column] = touched.get((next_row, next_column), 0) | back
    return {cell: (_JOINTS[sides], style_of(series.style).fill) for cell, sides in touched.items()}


def _path(places: Sequence[Cell]) -> Iterator[Cell]:
    """Every cell of a staircase, from one to a neighbour: along each step, then up or down."""
    yield places[0]
    for (first, begin), (last, end) in itertools.pairwise(places):
        yield from ((first, column) for column in range(begin + 1, end + 1))
        way = 1 if last > first else -1
        yield from ((row, end) for row in range(first + way, last + way, way))


def _glyph(series: Series) -> tuple[str, str]:
    """The mark of a series, and its colour."""
    style = style_of(series.style)
    if series.kind == "line":
        return "─", style.fill
    return style.glyph, style.edge if style.fill == "white" else style.fill


def _below(axis: Axis, margin: int, width: int) -> list[Text]:
    """The axis with its marks, their labels as there is space, and its name."""
    marks, words, end = ["─"] * width, [" "] * (margin + 1 + width), 0
    for value, label in axis.labelled():
        column = _column(axis, value, width)
        marks[column] = "┬"
        start = min(margin + 1 + column - len(label) // 2, len(words) - len(label))
        if start >= end:
            words[start : start + len(label)] = label
            end = start + len(label) + 1
    below = f"{' ' * margin}└{''.join(marks)}", "".join(words), f"{' ' * margin} {axis.label:^{width}}"
    return [Text(line.rstrip()) for line in below]
