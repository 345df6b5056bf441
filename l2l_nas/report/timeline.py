"""The timeline: a row for each lane, so that one sees what ran side by side and what had to wait."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from l2l_nas.errors import SettingError
from l2l_nas.files import write_atomically
from l2l_nas.relay.trace import Interval, TraceSpan, busy_intervals, common_intervals, lanes_of, overlap
from l2l_nas.report.png import message_figure, new_figure, png_bytes
from l2l_nas.report.styles import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, VERMILLION, YELLOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# two more, from Paul Tol's and Tableau's schemes, for what happens least
_BROWN, _WINE = "#9C755F", "#882255"
_COLOURS = {
    "read": PALE,
    "load": SKY,
    "fetch": GREY,
    "forward": GREEN,
    "enter": YELLOW,
    "tail": YELLOW,
    "leave": YELLOW,
    "backward": ORANGE,
    "save": _BROWN,
    "send": BLUE,
    "store": GREY,
    "update": PURPLE,
    "check": _WINE,
}
_DARK = {"fetch", "store", "save", "check", "forward", "send"}
_STRIP = {"compute alone": PALE, "other lanes alone": VERMILLION, "both at once": INK}
_ROLES = {
    "up": "up\nhost to device",
    "compute": "compute",
    "down": "down\ndevice to host",
    "host": "host\noptimizer",
    "disk": "disk\nread ahead",
}
_WIDTH_IN, _LEFT, _RIGHT = 12.0, 0.115, 0.985
_FONT_PT = 7.5


def draw_timeline(spans: Sequence[TraceSpan], path: Path, *, title: str = "", last_steps: int | None = None) -> None:
    """Write a picture of what each lane did, as a PNG; see `timeline_figure`.

    Raises:
        SettingError: `last_steps` below 1.
        StorageError: it could not be written.
    """
    write_atomically(path, png_bytes(timeline_figure(spans, title=title, last_steps=last_steps)))


def timeline_figure(spans: Sequence[TraceSpan], *, title: str = "", last_steps: int | None = None) -> Figure:
    """A row for each lane, a bar for each operation; below, the times in which compute and other lanes ran at once.

    Args:
        spans: of one trace.
        title: by default it says what is shown.
        last_steps: only from where the computing of the last so many training steps begins; all by default.

    Raises:
        SettingError: `last_steps` below 1.
    """
    if last_steps is not None and last_steps < 1:
        raise SettingError(f"a timeline shows at least 1 step, got last_steps={last_steps}")
    title = title or "What each lane did"
    if not spans:
        return message_figure(title, "nothing was recorded")
    shown = _window(spans, last_steps) if last_steps else spans
    lanes = lanes_of(shown)
    height_in = 2.3 + 0.62 * len(lanes)
    figure = new_figure(_WIDTH_IN, height_in)
    grid = figure.add_gridspec(
        2,
        1,
        height_ratios=[0.62 * len(lanes), 0.3],
        left=_LEFT,
        right=_RIGHT,
        top=1 - 0.85 / height_in,
        bottom=0.92 / height_in,
        hspace=0.16 / (0.31 * len(lanes) + 0.15),
    )
    rows = figure.add_subplot(grid[0])
    strip = figure.add_subplot(grid[1], sharex=rows)
    origin_s = min(span.start_s for span in shown)
    length_ms = max((max(span.end_s for span in shown) - origin_s) * 1e3, 1e-6)

    _draw_rows(rows, shown, lanes, origin_s=origin_s, length_ms=length_ms)
    _draw_steps(rows, shown, origin_s=origin_s, length_ms=length_ms)
    _draw_strip(strip, shown, origin_s=origin_s)
    rows.set_xlim(-0.003 * length_ms, 1.003 * length_ms)
    strip.set_xlabel("time (ms)", color=INK, loc="left")
    figure.text(_LEFT, 1 - 0.3 / height_in, title, fontsize=12, fontweight="bold", color=INK)
    figure.text(_LEFT, 1 - 0.52 / height_in, _caption(shown), fontsize=9.5, color=INK)
    found = {span.op for span in shown}
    ops = [*(op for op in _COLOURS if op in found), *sorted(found - _COLOURS.keys())]
    _legend(figure, {op: _colour(op) for op in ops}, "lower left", (_LEFT, 0.1 / height_in))
    _legend(figure, _STRIP, "lower right", (_RIGHT, 0.42 / height_in))
    return figure


def _window(spans: Sequence[TraceSpan], last_steps: int) -> Sequence[TraceSpan]:
    """What any lane did from where the last steps begin to compute; by time, for other steps' work may run beside."""
    first = max(span.step for span in spans) - last_steps + 1
    begin_s = min((span.start_s for span in spans if span.lane == "compute" and span.step >= first), default=-math.inf)
    return [replace(span, start_s=max(span.start_s, begin_s)) for span in spans if span.end_s > begin_s]


def _draw_rows(
    axes: Axes, spans: Sequence[TraceSpan], lanes: Sequence[str], *, origin_s: float, length_ms: float
) -> None:
    for row, lane in enumerate(lanes):
        mine = [span for span in spans if span.lane == lane]
        for op in dict.fromkeys(span.op for span in mine):
            bars = _bars_ms(((span.start_s, span.end_s) for span in mine if span.op == op), origin_s)
            # an edge parts bars that touch; around the narrowest it would hide them
            edges = [0.4 if _width_pt(width_ms, length_ms) > 3 else 0.0 for _, width_ms in bars]
            axes.broken_barh(
                bars, (row - 0.4, 0.8), facecolor=_colour(op), edgecolor="white", linewidth=edges, snap=False
            )
        for span in mine:
            _name_bar(axes, span, row, origin_s=origin_s, length_ms=length_ms)
    axes.set_yticks(range(len(lanes)), [_ROLES.get(lane, lane) for lane in lanes], fontsize=9, color=INK)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0, labelbottom=False)
    for edge in range(1, len(lanes)):
        axes.axhline(edge - 0.5, color=PALE, linewidth=0.6)


def _name_bar(axes: Axes, span: TraceSpan, row: int, *, origin_s: float, length_ms: float) -> None:
    """Write the layer's name into its bar: whole, or its position alone, or nothing, as there is space."""
    num_chars = int((_width_pt((span.end_s - span.start_s) * 1e3, length_ms) - 2) / (0.58 * _FONT_PT))
    name = next((name for name in (span.layer, span.layer.partition("/")[0]) if name and len(name) <= num_chars), None)
    if name is not None:
        middle_ms = ((span.start_s + span.end_s) / 2 - origin_s) * 1e3
        ink = "white" if span.op in _DARK else INK
        axes.text(middle_ms, row, name, ha="center", va="center", fontsize=_FONT_PT, color=ink, clip_on=True)


def _draw_steps(axes: Axes, spans: Sequence[TraceSpan], *, origin_s: float, length_ms: float) -> None:
    """A line where the computing of each step begins; what stands left of it was done ahead."""
    begins_s: dict[int, float] = {}
    for span in spans:
        if span.lane == "compute":
            begins_s[span.step] = min(span.start_s, begins_s.get(span.step, span.start_s))
    for index, (step, begin_s) in enumerate(sorted(begins_s.items())):
        place_ms = (begin_s - origin_s) * 1e3
        axes.axvline(place_ms, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        if len(begins_s) <= 12 or index % (len(begins_s) // 12 + 1) == 0:
            axes.text(
                place_ms + 0.002 * length_ms,
                1.0,
                f"step {step}" if step >= 0 else "evaluation",
                transform=axes.get_xaxis_transform(),
                fontsize=8,
                color=GREY,
                va="bottom",
            )


def _draw_strip(axes: Axes, spans: Sequence[TraceSpan], *, origin_s: float) -> None:
    """The times of compute alone, of the other lanes alone, and of both at once."""
    compute = busy_intervals(span for span in spans if span.lane == "compute")
    others = busy_intervals(span for span in spans if span.lane != "compute")
    parts = (
        common_intervals(compute, _gaps(others)),
        common_intervals(others, _gaps(compute)),
        common_intervals(compute, others),
    )
    for intervals, colour in zip(parts, _STRIP.values(), strict=True):
        axes.broken_barh(_bars_ms(intervals, origin_s), (-0.4, 0.8), facecolor=colour, linewidth=0, snap=False)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([0], ["at once"], fontsize=9, color=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=GREY, labelcolor=INK, labelsize=9)


def _gaps(intervals: Sequence[Interval]) -> list[Interval]:
    """All other times."""
    ends_s = [-math.inf, *(end_s for _, end_s in intervals)]
    starts_s = [*(start_s for start_s, _ in intervals), math.inf]
    return list(zip(ends_s, starts_s, strict=True))


def _width_pt(width_ms: float, length_ms: float) -> float:
    return width_ms / length_ms * (_RIGHT - _LEFT) * _WIDTH_IN * 72


def _bars_ms(intervals: Iterable[Interval], origin_s: float) -> list[tuple[float, float]]:
    return [((start_s - origin_s) * 1e3, (end_s - start_s) * 1e3) for start_s, end_s in intervals]


def _caption(spans: Sequence[TraceSpan]) -> str:
    found = overlap(spans)
    wall_s, hidden = found["wall_s"], found["hidden_fraction"]
    parts = [f"{wall_s * 1e3:,.1f} ms"]
    if wall_s > 0:
        parts.append("busy: " + ", ".join(f"{lane} {busy_s / wall_s:.0%}" for lane, busy_s in found["busy_s"].items()))
    if hidden is not None and "compute" in found["busy_s"]:
        parts.append(f"of the other lanes' time {hidden:.0%} was hidden behind compute")
    return "; ".join(parts)


def _legend(
    figure: Figure, colours: Mapping[str, str], place: Literal["lower left", "lower right"], corner: tuple[float, float]
) -> None:
    from matplotlib.patches import Patch

    figure.legend(
        [Patch(color=colour) for colour in colours.values()],
        list(colours),
        loc=place,
        bbox_to_anchor=corner,
        ncols=len(colours),
        frameon=False,
        fontsize=8.5,
        handlelength=1.1,
        columnspacing=1.3,
        borderaxespad=0.0,
        borderpad=0.0,
    )


def _colour(op: str) -> str:
    return _COLOURS.get(op, GREY)
