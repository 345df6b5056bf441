"""What each lane did, and when: the recorder, its Chrome trace, and how much of the copying hid behind the computing.

Pure Python: executors record spans, the report draws them, tests make them up.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from l2l_nas.eps.exchange import Channel
from l2l_nas.errors import SettingError
from l2l_nas.files import write_atomically
from l2l_nas.relay.schedule import LANES

NET = "net"  # the lane of exchanges between ranks
EXCHANGES = {Channel.LOAD: "gather", Channel.SEND: "reduce", Channel.STEP: "agree"}  # operations of that lane
Interval = tuple[float, float]  # begin and end in seconds


@dataclass(frozen=True)
class TraceSpan:
    """One operation on one lane."""

    lane: str  # one of the schedule's `LANES`, "disk" or `NET`
    op: str  # as `Op` of the plan calls it; one of `EXCHANGES`
    layer: str  # the key of the layer or state it was done to; empty for none
    step: int
    start_s: float  # on a clock that all spans of a trace share
    end_s: float


class Overlap(TypedDict):
    """What `overlap` measures."""

    wall_s: float  # from the first begin to the last end
    busy_s: dict[str, float]  # by lane
    overlap_s: float  # in which compute and at least one other lane were busy
    # the share of the time of the other lanes, counted once where several were busy, that was hidden behind compute;
    # None if they did nothing
    hidden_fraction: float | None


class Trace:
    """Records spans from any thread, the latest so many."""

    def __init__(self, limit: int = 100_000) -> None:
        if limit < 1:
            raise SettingError(f"a trace keeps at least 1 span, got limit={limit}")
        self._spans: deque[TraceSpan] = deque(maxlen=limit)
        self._lock = threading.Lock()  # nothing promises that a deque may be read while it is written

    def add(self, lane: str, op: str, layer: str, step: int, start_s: float, end_s: float) -> None:
        """Record what a lane has done; arguments as `TraceSpan`'s."""
        span = TraceSpan(lane, op, layer, step, start_s, end_s)
        with self._lock:
            self._spans.append(span)

    @property
    def spans(self) -> tuple[TraceSpan, ...]:
        with self._lock:
            return tuple(self._spans)

    def clear(self) -> None:
        with self._lock:
            self._spans.clear()

    def write_chrome(self, path: Path) -> None:
        """Write a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open, one row for each lane."""
        write_atomically(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": _chrome_events(self.spans)}))


def lanes_of(spans: Iterable[TraceSpan]) -> tuple[str, ...]:
    """The lanes that occur: the schedule's in their order, then others."""
    lanes = {span.lane for span in spans}
    return (*(lane for lane in LANES if lane in lanes), *sorted(lanes - set(LANES)))


def busy_intervals(spans: Iterable[TraceSpan]) -> list[Interval]:
    """The times in which at least one span runs, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start_s, end_s in sorted((span.start_s, span.end_s) for span in spans if span.end_s > span.start_s):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end_s, merged[-1][1]))
        else:
            merged.append((start_s, end_s))
    return merged


def common_intervals(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The times that two lists of disjoint intervals in order have in common."""
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start_s, end_s = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start_s < end_s:
            common.append((start_s, end_s))
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return common


def overlap(spans: Sequence[TraceSpan]) -> Overlap:
    """How well lanes worked side by side."""
    busy = {lane: busy_intervals(span for span in spans if span.lane == lane) for lane in lanes_of(spans)}
    others = busy_intervals(span for span in spans if span.lane != "compute")
    others_s = _length_s(others)
    overlap_s = _length_s(common_intervals(busy.get("compute", []), others))
    return {
        "wall_s": max(span.end_s for span in spans) - min(span.start_s for span in spans) if spans else 0.0,
        "busy_s": {lane: _length_s(intervals) for lane, intervals in busy.items()},
        "overlap_s": overlap_s,
        "hidden_fraction": overlap_s / others_s if others_s else None,
    }


def exposed_s(spans: Iterable[TraceSpan], *, start_s: float = -math.inf, end_s: float = math.inf) -> float:
    """How long ranks exchanged something while nothing was computed, between two times."""
    spans = list(spans)
    window = [(start_s, end_s)]
    net = common_intervals(busy_intervals(span for span in spans if span.lane == NET), window)
    compute = busy_intervals(span for span in spans if span.lane == "compute")
    return _length_s(net) - _length_s(common_intervals(net, compute))


_REGIMES = {
    "up": "bound by the link to the device",
    "down": "bound by the link from the device",
    "host": "bound by the host's optimizer",
    "compute": "bound by compute",
    NET: "bound by exchanges between ranks",
}


def regime(spans: Sequence[TraceSpan]) -> str:
    """What you would have to speed up: the lane that is busy for most of the time."""
    figures = overlap(spans)
    if not figures["busy_s"] or not figures["wall_s"]:
        return "nothing was recorded"
    lane, busy_s = max(figures["busy_s"].items(), key=lambda item: item[1])
    return f"{_REGIMES.get(lane, lane)}, busy {busy_s / figures['wall_s']:.0%} of the time"


def _length_s(intervals: Iterable[Interval]) -> float:
    return math.fsum(end_s - start_s for start_s, end_s in intervals)


def _chrome_events(spans: Sequence[TraceSpan]) -> list[dict[str, Any]]:
    """Events in the trace event format: complete events ("X") in microseconds, and names of rows ("M")."""
    rows = {lane: index for index, lane in enumerate(lanes_of(spans))}
    names: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "l2l_nas"}}]
    for lane, row in rows.items():
        names.append({"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": lane}})
        names.append({"ph": "M", "pid": 0, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}})
    origin_s = min((span.start_s for span in spans), default=0.0)
    return names + [
        {
            "ph": "X",
            "pid": 0,
            "tid": rows[span.lane],
            "name": f"{span.op} {span.layer}".rstrip(),
            "cat": span.op,
            "ts": (span.start_s - origin_s) * 1e6,
            "dur": max(0.0, span.end_s - span.start_s) * 1e6,
            "args": {"layer": span.layer, "step": span.step},
        }
        for span in spans
    ]
