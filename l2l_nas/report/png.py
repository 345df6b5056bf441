"""Draws descriptions of charts as PNG files, with matplotlib.

Figures are made without pyplot: no display, no backend setting and no state of the user's own plots is touched.
matplotlib is an extra, so every import of it stands inside a function.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet
from l2l_nas.report.styles import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, STATE_MARKS, VERMILLION, hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class SeriesStyle:
    """How a series is drawn."""

    fill: str  # the colour of its dots, bars and lines
    edge: str = ""  # the colour of their edges; empty for the fill's
    marker: str = "o"  # matplotlib's name of the mark; empty for none
    size: float = 6.0  # of the mark, in points
    alpha: float = 1.0  # of mark or line; 1 hides what lies below


_SIDES = (ORANGE, BLUE, GREEN, VERMILLION, PURPLE, SKY, INK)
_CURVES = (GREY, SKY, BLUE, VERMILLION, ORANGE, GREEN, PURPLE, INK)
STYLES: Mapping[str, SeriesStyle] = {
    "trial": SeriesStyle(SKY, BLUE, size=5.0),
    "cached": SeriesStyle("white", BLUE, size=5.0),
    "gone": SeriesStyle(GREY, marker="+"),
    "best": SeriesStyle(ORANGE, INK, size=8.0),
    "front": SeriesStyle(ORANGE, INK, size=8.0),
    "final": SeriesStyle(SKY, INK, size=7.0),
    "chosen": SeriesStyle(ORANGE, INK, size=5.0),
    "stairs": SeriesStyle(ORANGE, marker=""),
    "course": SeriesStyle(SKY, marker="", alpha=0.6),
    "halved": SeriesStyle(GREY, marker="", alpha=0.6),
    "validation": SeriesStyle(BLUE, size=4.0),
    "training": SeriesStyle(SKY, size=4.0),
    "ideal": SeriesStyle(SKY),
    "measured": SeriesStyle(ORANGE),
    "stage": SeriesStyle(GREEN),
    "reference": SeriesStyle(GREY),
    "cloud": SeriesStyle(GREY, size=4.0, alpha=0.65),
    **{state.value: SeriesStyle(hue(mark.hue), marker=mark.marker, size=7.0) for state, mark in STATE_MARKS.items()},
    **{f"side{index}": SeriesStyle(_SIDES[index % 7], marker="osD^vP*"[index % 7]) for index in range(14)},
    **{f"curve{index}": SeriesStyle(_CURVES[index % 8], marker="") for index in range(16)},
    **{f"end{index}": SeriesStyle(_CURVES[index % 8], marker="D", size=5.0) for index in range(16)},
    **{
        f"cloud{index}": SeriesStyle((BLUE, ORANGE, GREEN, PURPLE)[index % 4], size=4.0, alpha=0.65)
        for index in range(12)
    },
}
_MAX_MARKED = 60  # points of a line that are marked


def is_matplotlib_installed() -> bool:
    """Whether pictures can be made."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def png_of(sheet: Sheet) -> bytes:
    """The charts as one PNG; the same charts give the same bytes, at any time of day."""
    return png_bytes(draw(sheet))


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def new_figure(width_in: float, height_in: float, *, layout: Literal["constrained"] | None = None) -> Figure:
    """An empty figure of 100 pixels per inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=100, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.1, h_pad=0.08)  # type: ignore[call-arg]
    return figure


def message_figure(title: str, message: str) -> Figure:
    """A picture that says why there is nothing to show."""
    figure = new_figure(8.0, 2.0)
    figure.text(0.03, 0.82, title, fontsize=12, fontweight="bold", color=INK)
    figure.text(0.5, 0.42, message, fontsize=12, color=GREY, ha="center", va="center")
    return figure


def draw(sheet: Sheet) -> Figure:
    """A figure of the charts, with one legend for those that stand side by side."""
    if all(chart.message for chart in sheet.charts):
        return message_figure(sheet.charts[0].title, sheet.charts[0].message)
    charts = [chart for chart in sheet.charts if not chart.message]
    (width, height), count = sheet.panel_in, len(charts)
    size, shape = ((width * count, height), (1, count)) if sheet.is_row else ((width, height * count), (count, 1))
    figure = new_figure(*size, layout="constrained")
    for axes, chart in zip(figure.subplots(*shape, squeeze=False).flat, charts, strict=True):
        _draw_chart(axes, chart, is_alone=not sheet.title)
    if sheet.title:
        figure.suptitle(sheet.title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    handles = {
        str(label): handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        columns = 4 if sum(map(len, handles)) < 90 else 3
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
    return figure


def _draw_chart(axes: Axes, chart: Chart, *, is_alone: bool) -> None:
    assert chart.x is not None  # those without axes have a message
    assert chart.y is not None
    weight, size = ("bold", 12) if is_alone else ("normal", 10)
    axes.set_title(chart.title, loc="left", fontsize=size, fontweight=weight, color=INK, pad=12 if is_alone else 6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, which="both")
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")
    for series in chart.series:
        _DRAW[series.kind](axes, series, STYLES[series.style])
        for point in series.points:
            if point.note:
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


def _xy(series: Series) -> tuple[list[float], list[float]]:
    return [point.x for point in series.points], [point.y for point in series.points]


def _draw_dots(axes: Axes, series: Series, style: SeriesStyle) -> None:
    edge = style.edge or style.fill
    _draw_reach(axes, series, GREY if style.edge else style.fill)
    axes.plot(
        *_xy(series),
        style.marker,
        color=style.fill,
        markersize=style.size,
        markeredgecolor=edge,
        markeredgewidth=0.8 if style.edge else None,
        alpha=style.alpha,
        label=series.label or None,
    )


def _draw_reach(axes: Axes, series: Series, colour: str) -> None:
    for point in series.points:
        if point.reach is not None:
            value = point.x if series.is_across else point.y
            ends = [[value - point.reach[0]], [point.reach[1] - value]]
            xerr, yerr = (ends, None) if series.is_across else (None, ends)
            axes.errorbar(
                point.x,
                point.y,
                xerr=xerr,
                yerr=yerr,
                fmt="none",
                ecolor=colour,
                elinewidth=1.4,
                capsize=3,
                zorder=1.95,
            )


def _draw_line(axes: Axes, series: Series, style: SeriesStyle) -> None:
    marker = style.marker if len(series.points) <= _MAX_MARKED else ""
    axes.plot(
        *_xy(series),
        color=style.fill,
        marker=marker,
        markersize=style.size,
        linewidth=2 if style.alpha == 1 else 1.3,
        alpha=style.alpha,
        zorder=1.9,
        label=series.label or None,
    )


def _draw_floor(axes: Axes, series: Series, style: SeriesStyle) -> None:
    """Marks at a fixed height: what they stand for has no value."""
    xs, _ = _xy(series)
    axes.plot(
        xs,
        [0.045] * len(xs),
        style.marker,
        transform=axes.get_xaxis_transform(),
        color=style.fill,
        markersize=style.size,
        markeredgewidth=1.6,
        label=series.label or None,
    )


def _draw_bars(axes: Axes, series: Series, style: SeriesStyle) -> None:
    xs, ys = _xy(series)
    label = series.label or None
    if series.is_across:
        axes.barh(ys, xs, color=style.fill, edgecolor=style.edge or None, label=label)
    else:
        axes.bar(xs, ys, width=0.3, color=style.fill, label=label)
    _draw_reach(axes, series, INK)


def _draw_band(axes: Axes, series: Series, style: SeriesStyle) -> None:
    for point in series.points:
        axes.axhspan(*(point.reach or (point.y, point.y)), color=style.fill, alpha=0.15, linewidth=0)
        axes.axhline(point.y, color=style.fill, linewidth=1.5)


_DRAW = {"dots": _draw_dots, "line": _draw_line, "floor": _draw_floor, "bars": _draw_bars, "band": _draw_band}


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
