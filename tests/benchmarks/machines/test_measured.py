"""The page of measured figures beside predicted ones."""

from __future__ import annotations

import copy

from benchmarks.machines.measured import render_measured, steps_chart
from tests.report.pages import HOSTILE

RESULT = {
    "benchmark": "gpu",
    "machine": {"cpu": "a", "threads": 1, "torch": "2.13.0", "gpu": "NVIDIA H100"},
    "made": "2026-11-24 12:00:00",
    "seconds": 400.0,
    "predictions": {
        "h100": {
            "what": "the profile h100",
            "figures": {"steps": {"one": 200.0, "two": 50.0}, "memory": {"m: peak": 2**20}},
        },
        "measured rates": {"what": "of this machine", "figures": {"steps": {"one": 160.0}}},
    },
    "sections": {
        "steps": {
            "about": "A training step", "unit": "ms", "seconds": 9.0, "failed": "",
            "rows": [
                {"name": "one", "value": 100.0, "note": "busiest lane: host"},
                {"name": "two", "value": None, "note": "OutOfMemoryError"},
                {"name": "three", "value": 7.0, "note": ""},
            ],
        },
        "memory": {
            "about": "Memory", "unit": "bytes", "seconds": 60.0, "failed": "stopped after 60 s",
            "rows": [{"name": "m: peak", "value": float(2**21), "note": ""}],
        },
    },
}  # fmt: skip


def text_of(result):
    return " ".join(render_measured(result).split())


def test_each_figure_stands_beside_its_predictions_and_what_it_is_over_them():
    page = text_of(RESULT)
    row = page[page.index(">one<") : page.index(">two<")]
    assert [text for text in ("100 ms", "200 ms", "0.50", "160 ms", "0.62") if text not in row] == []
    assert "2 MiB" in page
    assert "2.00" in page


def test_what_is_missing_is_said():
    page = text_of(RESULT)
    assert "OutOfMemoryError" in page
    assert "It did not end: stopped after 60 s" in page
    assert "Not complete: memory." in page
    assert "No figure on this page was measured on a GPU" not in page
    without = copy.deepcopy(RESULT)
    without["machine"]["gpu"] = "none"
    assert "No figure on this page was measured on a GPU" in text_of(without)


def test_steps_are_drawn_where_both_are_known():
    chart = steps_chart(RESULT)
    points = {series.label: [(p.x, p.y) for p in series.points] for series in chart.series if series.kind == "dots"}
    assert points == {"predicted with h100": [(200.0, 100.0)], "predicted with measured rates": [(160.0, 100.0)]}
    assert steps_chart({**RESULT, "sections": {}}).message


def test_text_is_escaped():
    hostile = copy.deepcopy(RESULT)
    hostile["sections"]["steps"]["rows"][0]["note"] = HOSTILE
    hostile["machine"]["gpu"] = HOSTILE
    assert HOSTILE not in render_measured(hostile)
