"""Draws charts as PNG files, with matplotlib.

Figures are made without pyplot: no display, no backend setting and no state of the user's own plots is touched.
matplotlib is an extra, so every import of it stands inside a function.
"""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any, Literal

from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet
from l2l_nas.report.styles import GREY, INK, PALE, SeriesStyle, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
_MAX_MARKED = 60  # points of a line that are marked


def is_matplotlib_installed() -> bool:
    """Whether pictures can be made."""
    try:
        import matplotlib.figure  # noqa: F401
    except Exception:  # of a package that does not fit the others
        return False
    return True


def png_of(sheet: Sheet) -> bytes:
    """The charts as a PNG; the same charts give the same bytes, at any time of day."""
    buffer = io.BytesIO()
    draw(sheet).savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _new_figure(width_in: float, height_in: float, *, is_laid_out: bool = False) -> Figure:
    """An empty figure; where it is laid out, matplotlib finds the places of axes, their words and the legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08) if is_laid_out else None
    figure = Figure(figsize=(width_in, height_in), dpi=_DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _say(title: str, message: str) -> Figure:
    """A picture that says why there is nothing to show."""
    figure = _new_figure(8.0, 2.0)
    figure.text(0.03, 0.82, title, fontsize=12, fontweight="bold", color=INK)
    figure.text(0.5, 0.42, message, fontsize=12, color=GREY, ha="center", va="center")
    return figure


def draw(sheet: Sheet) -> Figure:
    """A figure of the charts, with one legend for those that stand side by side."""
    if all(chart.message for chart in sheet.charts):
        return _say(sheet.charts[0].title, sheet.charts[0].message)
    charts = [chart for chart in sheet.charts if not chart.message]
    (width, height), count = sheet.panel_in, len(charts)
    size, shape = ((width * count, height), (1, count)) if sheet.is_row else ((width, height * count), (count, 1))
    figure = _new_figure(*size, is_laid_out=True)
    for axes, chart in zip(figure.subplots(*shape, squeeze=False).flat, charts, strict=True):
        _draw_chart(axes, chart, is_alone=not sheet.title)
    if sheet.title:
        figure.suptitle(sheet.title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    drawn = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    if handles := {str(label): handle for handle, label in drawn}:
        columns = 4 if sum(map(len, handles)) < 90 else 3
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
    for axes, chart in zip(figure.axes, charts, strict=True):
        _name_spans(axes, chart)
    return figure


def _draw_chart(axes: Axes, chart: Chart, *, is_alone: bool) -> None:
    assert chart.x is not None  # those without axes have a message
    assert chart.y is not None
    weight, size, pad = ("bold", 12, 12) if is_alone else ("normal", 10, 6)
    pad += 8 * any(series.kind == "rules" for series in chart.series)  # their names are above
    axes.set_title(chart.title, loc="left", fontsize=size, fontweight=weight, color=INK, pad=pad)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, which="both")
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")
    for series in chart.series:
        _DRAW[series.kind](axes, series, style_of(series.style))
        for point in series.points:
            if point.note and series.kind not in ("spans", "rules"):
                _write_note(axes, point, is_across=series.is_across)


def _scale(axes: Axes, axis: Axis, name: Literal["x", "y"]) -> None:
    """Limits, marks and label of one axis, as the description has them."""
    from matplotlib.ticker import NullFormatter, NullLocator

    of = axes.xaxis if name == "x" else axes.yaxis
    if axis.is_log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
    axes.set(**{f"{name}lim": (axis.low, axis.high)})
    marks = axis.labelled()
    of.set_ticks([value for value, _ in marks], labels=[label for _, label in marks])
    of.set_minor_locator(NullLocator())
    of.set_minor_formatter(NullFormatter())
    of.set_label_text(axis.label, color=INK)
    if axis.level is not None:
        (axes.axvline if name == "x" else axes.axhline)(axis.level, color=INK, linewidth=1.2, zorder=1)


def _draw_marks(axes: Axes, series: Series, style: SeriesStyle) -> None:
    """Dots, or a line."""
    xs, ys = [point.x for point in series.points], [point.y for point in series.points]
    look: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0.8 if style.edge else None}
    if series.kind == "line":
        look = {"linewidth": 2, "zorder": 1.9}
    axes.plot(
        xs, ys, color=style.fill, label=series.label or None, markersize=style.size,
        marker=style.marker if series.kind != "line" or len(xs) <= _MAX_MARKED else "",
        markeredgecolor=style.edge or style.fill, **look,
    )  # fmt: skip
    _draw_reach(axes, series, GREY if style.edge else style.fill)


def _draw_reach(axes: Axes, series: Series, colour: str) -> None:
    """The intervals of points, as lines with a stroke at each end."""
    for point in series.points:
        if point.reach is not None:
            along, fixed = list(point.reach), [point.y if series.is_across else point.x] * 2
            place, stroke = ((along, fixed), "|") if series.is_across else ((fixed, along), "_")
            axes.plot(*place, color=colour, linewidth=1.4, marker=stroke, markersize=6, zorder=1.95)


def _draw_spans(axes: Axes, series: Series, style: SeriesStyle) -> None:
    """Bars from end to end, a row for each y; an edge parts those that touch, and would hide the narrowest."""
    points_of = _points_of(axes)
    for y, points in itertools.groupby(sorted(series.points, key=lambda point: point.y), key=lambda point: point.y):
        bars = [(begin, end - begin) for begin, end in (point.reach or (point.x, point.x) for point in points)]
        edges = [0.4 if width * points_of > 3 else 0.0 for _, width in bars]
        axes.broken_barh(
            bars, (y - 0.4, 0.8), facecolor=style.fill, edgecolor="white", linewidth=edges, snap=False,
            label=series.label or None,
        )  # fmt: skip


def _name_spans(axes: Axes, chart: Chart) -> None:
    """Write names into bars: whole, or what stands before a slash, or nothing, as there is space."""
    spans = [series for series in chart.series if series.kind == "spans"]
    if spans:
        axes.figure.draw_without_rendering()  # type: ignore[union-attr]  # then it is known how large the axes are
    for series in spans:
        red, green, blue = (int(style_of(series.style).fill[place : place + 2], 16) / 255 for place in (1, 3, 5))
        ink = INK if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
        for point in series.points:
            begin, end = point.reach or (point.x, point.x)
            num_chars = int(((end - begin) * _points_of(axes) - 2) / (0.58 * 7.5))
            name = next((n for n in (point.note, point.note.partition("/")[0]) if n and len(n) <= num_chars), "")
            if name:
                middle = (begin + end) / 2
                axes.text(middle, point.y, name, ha="center", va="center", fontsize=7.5, color=ink, clip_on=True)


def _points_of(axes: Axes) -> float:
    """How many points (72 to the inch) one unit of x takes; before the first drawing, about."""
    low, high = axes.get_xlim()
    return axes.get_window_extent().width / _DPI * 72 / (high - low)


def _draw_rules(axes: Axes, series: Series, style: SeriesStyle) -> None:
    for point in series.points:
        axes.axvline(point.x, color=style.fill, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            point.note, (point.x, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(2, 1), textcoords="offset points",
            fontsize=8, color=style.fill,
        )  # fmt: skip


_DRAW = {
    "dots": _draw_marks,
    "line": _draw_marks,
    "spans": _draw_spans,
    "rules": _draw_rules,
}


def _write_note(axes: Axes, point: Point, *, is_across: bool) -> None:
    """Words right of an interval along x; otherwise above the point, on the side on which they stay inside."""
    if is_across:
        place, offset, across, up = (point.reach[1] if point.reach else point.x, point.y), (6, 0), "left", "center"
    else:
        place, offset, up = (point.x, point.reach[1] if point.reach else point.y), (0, 9), "bottom"
        where = axes.transAxes.inverted().transform(axes.transData.transform((point.x, point.y)))
        if where[1] < 0.2:  # the better ones are below
            place, offset, up = (point.x, point.reach[0] if point.reach else point.y), (0, -9), "top"
        across = "left" if where[0] < 0.3 else "right" if where[0] > 0.7 else "center"
    weight = "normal" if is_across else "bold"
    axes.annotate(
        point.note, place, xytext=offset, textcoords="offset points", ha=across, va=up, fontsize=9, fontweight=weight,
        color=INK,
    )  # fmt: skip
