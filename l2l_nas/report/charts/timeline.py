"""What each lane did: a row for each lane, so that one sees what ran side by side and what had to wait."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from l2l_nas.errors import SettingError
from l2l_nas.relay.trace import Interval, TraceSpan, busy_intervals, common_intervals, lanes_of, overlap
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet
from l2l_nas.report.styles import OPS

_ROLES = {
    "up": "up\nhost to device",
    "compute": "compute",
    "down": "down\ndevice to host",
    "host": "host\noptimizer",
    "disk": "disk\nread ahead",
    "net": "net\nbetween ranks",
}
_MAX_NAMED = 12  # steps with their numbers


def timeline_sheet(spans: Sequence[TraceSpan], *, title: str = "", last_steps: int | None = None) -> Sheet:
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
        return Sheet((Chart(title, message="nothing was recorded"),))
    shown = _window(spans, last_steps) if last_steps else spans
    origin_s = min(span.start_s for span in shown)
    shown = [replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s) for span in shown]
    lanes, length_ms = lanes_of(shown), max(max(span.end_s for span in shown) * 1e3, 1e-6)
    found = {span.op for span in shown}
    bars = {op: [span for span in shown if span.op == op] for op in (*OPS, *sorted(found.difference(OPS)))}
    chart = Chart(
        title,
        Axis(f"time (ms): {_caption(shown)}", -0.003 * length_ms, 1.003 * length_ms),
        Axis.of_names("", [*(_ROLES.get(lane, lane) for lane in lanes), "at once"]),
        (
            *(
                Series(op, tuple(_bar((s.start_s, s.end_s), lanes.index(s.lane), s.layer) for s in mine), op, "spans")
                for op, mine in bars.items()
                if mine
            ),
            *_at_once(shown, row=len(lanes)),
            Series("step", tuple(_rules(shown)), kind="rules"),
        ),
    )
    return Sheet((chart,), panel_in=(12.0, 2.3 + 0.62 * len(lanes)))


def _bar(interval: Interval, row: int, note: str = "") -> Point:
    start_ms, end_ms = (seconds * 1e3 for seconds in interval)
    return Point(start_ms, row, (start_ms, end_ms), note)


def _begins(spans: Sequence[TraceSpan]) -> list[tuple[float, int]]:
    """When the computing of each step begins, and its number; steps of several networks may have the same."""
    begins: list[tuple[float, int]] = []
    for span in sorted((span for span in spans if span.lane == "compute"), key=lambda span: span.start_s):
        if not begins or begins[-1][1] != span.step:
            begins.append((span.start_s, span.step))
    return begins


def _window(spans: Sequence[TraceSpan], last_steps: int) -> Sequence[TraceSpan]:
    """What any lane did from where the last steps begin to compute; by time, for other steps' work may run beside."""
    trained_s = [begin_s for begin_s, step in _begins(spans) if step >= 0]
    begin_s = min(trained_s[-last_steps:], default=-math.inf)
    return [replace(span, start_s=max(span.start_s, begin_s)) for span in spans if span.end_s > begin_s]


def _rules(spans: Sequence[TraceSpan]) -> Iterator[Point]:
    """A line where the computing of each step begins; what stands left of it was done ahead."""
    begins = _begins(spans)
    for index, (begin_s, step) in enumerate(begins):
        is_named = index % math.ceil(len(begins) / _MAX_NAMED) == 0
        name = f"step {step}" if step >= 0 else "evaluation"
        yield Point(begin_s * 1e3, 0, note=name if is_named else "")


def _at_once(spans: Sequence[TraceSpan], *, row: int) -> Iterator[Series]:
    """The times of compute alone, of the other lanes alone, and of both at once."""
    compute = busy_intervals(span for span in spans if span.lane == "compute")
    others = busy_intervals(span for span in spans if span.lane != "compute")
    for style, label, parts in (
        ("alone", "compute alone", common_intervals(compute, _gaps(others))),
        ("beside", "other lanes alone", common_intervals(others, _gaps(compute))),
        ("both", "both at once", common_intervals(compute, others)),
    ):
        yield Series(style, tuple(_bar(part, row) for part in parts), label, "spans")


def _gaps(intervals: Sequence[Interval]) -> list[Interval]:
    """All other times."""
    ends_s = [-math.inf, *(end_s for _, end_s in intervals)]
    starts_s = [*(start_s for start_s, _ in intervals), math.inf]
    return list(zip(ends_s, starts_s, strict=True))


def _caption(spans: Sequence[TraceSpan]) -> str:
    found = overlap(spans)
    wall_s, hidden = found["wall_s"], found["hidden_fraction"]
    parts = [f"{wall_s * 1e3:,.1f} ms"]
    if wall_s > 0:
        parts.append("busy: " + ", ".join(f"{lane} {busy_s / wall_s:.0%}" for lane, busy_s in found["busy_s"].items()))
    if hidden is not None and "compute" in found["busy_s"]:
        parts.append(f"of the other lanes' time {hidden:.0%} was hidden behind compute")
    return "; ".join(parts)
