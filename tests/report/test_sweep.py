from __future__ import annotations

import pytest

from l2l_nas.nas.sweeps.sweep_study import SweepRecord
from l2l_nas.report.sweep import run_line, settings_text, sweep_figure, swept_table
from tests.report.examples import ACCURACY, LOSS, PARAMETERS
from tests.report.test_table import rendered, rows_of

RECORDS = [
    SweepRecord(0, {"rate": 0.0123456, "kind": "x"}, "complete", {"accuracy": 0.5, "parameters": 10.0}, seconds=3.21),
    SweepRecord(1, {"rate": 0.5, "kind": "y"}, "failed", reason="too hot"),
    SweepRecord(2, {"rate": 1e-5, "kind": "y"}, "complete", {"accuracy": 0.75, "parameters": 2000.0}, seconds=4.0),
    SweepRecord(3, {"rate": 0.1, "kind": "x"}, "complete", {"accuracy": 0.25, "parameters": 500.0}, seconds=5.0),
    SweepRecord(4, {"rate": 0.2, "kind": "x"}, "running"),
]


def test_settings_and_values_are_short() -> None:
    assert settings_text(RECORDS[0].settings) == "rate=0.01235 kind=x"
    assert run_line(RECORDS[0], [ACCURACY], best=RECORDS[2]) == (
        "run 0: accuracy 0.5000, 3 s; best accuracy 0.7500 (run 2)"
    )
    assert run_line(RECORDS[0], [ACCURACY, PARAMETERS], best=None) == "run 0: accuracy 0.5000, parameters 10, 3 s"


def test_the_best_runs_come_first_with_their_settings() -> None:
    text = rendered(swept_table(RECORDS, [ACCURACY], front=[2], limit=2))
    assert "Best runs: 2 of 3 complete, 1 failed" in text
    assert rows_of(text) == [
        ["2", "0.7500", "rate=1e-05", "kind=y", "4.0"],
        ["0", "0.5000", "rate=0.01235", "kind=x", "3.2"],
    ]


def test_what_is_to_be_small_comes_smallest_first() -> None:
    records = [SweepRecord(n, {"rate": 0.1}, "complete", {"loss": loss}) for n, loss in enumerate((2.0, 1.0, 3.0))]
    assert [row[0] for row in rows_of(rendered(swept_table(records, [LOSS], front=[1])))] == ["1", "0", "2"]


def test_two_goals_show_the_front_alone() -> None:
    text = rendered(swept_table(RECORDS, [ACCURACY, PARAMETERS], front=[0, 2]))
    assert "Pareto front: 2 of 3 complete" in text
    assert [row[:3] for row in rows_of(text)] == [["2", "0.7500", "2,000"], ["0", "0.5000", "10"]]


def test_the_picture_shows_every_run_the_best_so_far_and_what_mattered() -> None:
    pytest.importorskip("matplotlib")
    from tests.report.test_plots import assert_drawn, line, points

    figure = sweep_figure(RECORDS, [ACCURACY], {"kind": 0.75, "rate": 0.25})
    assert points(line(figure, "run")) == [(0, 0.5), (2, 0.75), (3, 0.25)]
    assert points(line(figure, "best so far")) == [(0, 0.5), (2, 0.75), (3, 0.75), (4, 0.75)]
    assert list(line(figure, "failed").get_xdata()) == [1]
    left, right = figure.axes
    assert left.get_title(loc="left") == "Best accuracy so far: 0.7500"
    assert [bar.get_width() for bar in right.patches] == [0.25, 0.75]
    assert [label.get_text() for label in right.get_yticklabels()] == ["rate", "kind"]
    assert_drawn(figure)
    assert len(sweep_figure(RECORDS, [ACCURACY], {}).axes) == 1
    assert_drawn(sweep_figure(RECORDS[:1], [ACCURACY], {}))


def test_without_a_complete_run_the_picture_says_so() -> None:
    pytest.importorskip("matplotlib")
    figure = sweep_figure(RECORDS[1:2], [ACCURACY], {})
    assert "no complete run" in " ".join(text.get_text() for text in figure.texts)
