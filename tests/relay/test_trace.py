from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.relay.trace import Trace, TraceSpan, busy_intervals, common_intervals, lanes_of, overlap, regime


def span(lane: str, start_s: float, end_s: float, *, op: str = "load", step: int = 0) -> TraceSpan:
    return TraceSpan(lane, op, "layer0/dense", step, start_s, end_s)


def test_spans_come_back_in_the_order_they_were_recorded() -> None:
    trace = Trace()
    trace.add("up", "load", "layer0/dense", 3, 1.0, 2.0)
    trace.add("compute", "forward", "layer0/dense", 3, 2.0, 5.0)
    assert trace.spans == (
        TraceSpan("up", "load", "layer0/dense", 3, 1.0, 2.0),
        TraceSpan("compute", "forward", "layer0/dense", 3, 2.0, 5.0),
    )


def test_only_the_latest_spans_are_kept() -> None:
    trace = Trace(limit=3)
    for step in range(10):
        trace.add("up", "load", "", step, step, step + 1)
    assert [item.step for item in trace.spans] == [7, 8, 9]
    with pytest.raises(SettingError, match="limit=0"):
        Trace(limit=0)


def test_threads_lose_no_span_while_another_reads() -> None:
    trace = Trace()

    def record(lane: str) -> None:
        for step in range(2000):
            trace.add(lane, "load", "", step, step, step + 1)

    threads = [threading.Thread(target=record, args=(lane,)) for lane in ("up", "compute", "down", "host")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(trace.spans) <= 8000
    for thread in threads:
        thread.join()
    for lane in ("up", "compute", "down", "host"):
        assert [item.step for item in trace.spans if item.lane == lane] == list(range(2000))


def test_lanes_are_listed_from_the_host_down_to_the_host_and_unknown_ones_last() -> None:
    spans = [span(lane, 0, 1) for lane in ("other", "host", "up", "compute")]
    assert lanes_of(spans) == ("up", "compute", "host", "other")


def test_the_chrome_trace_has_a_named_row_for_each_lane_and_microseconds(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("compute", "forward", "layer0/dense", 7, 100.002, 100.005)
    trace.add("up", "load", "", 7, 100.0, 100.002)
    trace.write_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert sorted(rows, key=rows.__getitem__) == ["up", "compute"]
    forward, load = (event for event in events if event["ph"] == "X")
    assert (forward["name"], forward["cat"], forward["tid"]) == ("forward layer0/dense", "forward", rows["compute"])
    assert forward["args"] == {"layer": "layer0/dense", "step": 7}
    assert (forward["ts"], forward["dur"]) == (pytest.approx(2000), pytest.approx(3000))
    assert (load["name"], load["ts"], load["tid"]) == ("load", 0, rows["up"])
    assert all({"ph", "pid", "name"} <= event.keys() for event in events)


def test_an_empty_trace_and_a_clock_that_jitters_can_be_written(tmp_path: Path) -> None:
    trace = Trace()
    trace.write_chrome(tmp_path / "empty.json")
    trace.add("up", "load", "", 0, 1.0, 1.0 - 1e-9)
    trace.write_chrome(tmp_path / "jitter.json")
    assert json.loads((tmp_path / "jitter.json").read_text())["traceEvents"][-1]["dur"] == 0
    assert not list(tmp_path.glob(".*"))


def test_a_trace_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such file or folder"):
        Trace().write_chrome(tmp_path / "missing" / "trace.json")


def test_intervals_that_touch_or_nest_become_one() -> None:
    spans = [span("up", *times) for times in ((5, 6), (0, 2), (1, 3), (3, 4), (0.5, 1), (9, 9))]
    assert busy_intervals(spans) == [(0, 4), (5, 6)]
    assert busy_intervals([span("up", 0, 5), span("up", 1, 2), span("up", 6, 7)]) == [(0, 5), (6, 7)]


def test_common_intervals_equal_those_found_by_looking_at_every_moment() -> None:
    first, second = [(0, 4), (6, 9), (12, 13)], [(1, 2), (3, 7), (8, 20)]
    common = common_intervals(first, second)
    assert common == [(1, 2), (3, 4), (6, 7), (8, 9), (12, 13)]
    assert common_intervals(second, first) == common
    assert common_intervals(first, []) == []


def test_what_runs_beside_compute_is_hidden_and_what_runs_alone_is_not() -> None:
    spans = [
        span("up", 0, 2),  # alone
        span("compute", 2, 10),
        span("up", 3, 5),
        span("down", 4, 6),  # both hidden, one second of them at once
        span("host", 9, 12),  # a third of it hidden
    ]
    assert overlap(spans) == {
        "wall_s": 12,
        "busy_s": {"up": 4, "compute": 8, "down": 2, "host": 3},
        "overlap_s": 4,
        "hidden_fraction": 4 / 8,
    }


def test_one_thing_at_a_time_overlaps_nothing() -> None:
    found = overlap([span("up", 0, 1), span("compute", 1, 2), span("down", 2, 3), span("compute", 3, 4)])
    assert (found["overlap_s"], found["hidden_fraction"]) == (0, 0)


def test_without_other_lanes_there_is_nothing_to_hide() -> None:
    assert overlap([span("compute", 1, 2)])["hidden_fraction"] is None
    assert overlap([]) == {"wall_s": 0, "busy_s": {}, "overlap_s": 0, "hidden_fraction": None}


def test_it_says_what_binds():
    lanes = [("compute", 0.0, 0.3), ("host", 0.0, 0.9), ("up", 0.0, 0.1), ("compute", 0.9, 1.0)]
    spans = [TraceSpan(lane, "x", "layer", 0, start, end) for lane, start, end in lanes]
    assert regime(spans) == "bound by the host's optimizer, busy 90% of the time"
    assert regime([]) == "nothing was recorded"
