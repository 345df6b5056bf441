from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from l2l_nas.report.table import best_table, pareto_table, sweep_table
from l2l_nas.search.records import Goal
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, some_trials, trial


def rendered(table: Table, *, is_terminal: bool = False) -> str:
    console = Console(
        width=80, file=io.StringIO(), force_terminal=is_terminal, color_system="standard" if is_terminal else None
    )
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows_of(text: str) -> list[list[str]]:
    """The cells of every line below the rule."""
    return [line.split() for line in text.rpartition("─")[2].splitlines() if line.strip()]


def test_best_trials_come_in_order_with_their_values() -> None:
    text = rendered(best_table(some_trials(), [ACCURACY, PARAMETERS], limit=3))
    assert "Best trials: 3 of 4 complete" in text
    assert rows_of(text) == [
        ["1", "2", "0.9000", "12,345", "stem,", "2*wide,", "skip,", "head"],
        ["2", "5", "0.7000", "126", "stem,", "wide,", "linear,", "skip,", "head"],
        ["3", "6", "0.6000", "70", "stem,", "2*linear,", "skip,", "head"],
    ]


def test_the_pareto_table_leaves_out_what_another_beats() -> None:
    text = rendered(pareto_table(some_trials(), [LOSS, PARAMETERS]))
    assert [row[:4] for row in rows_of(text)] == [
        ["1", "2", "0.5000", "12,345"],
        ["2", "5", "1.0000", "126"],
        ["3", "6", "1.5000", "70"],
    ]


def test_the_best_value_of_each_goal_stands_out_on_a_terminal_only() -> None:
    table = pareto_table(some_trials(), [ACCURACY, PARAMETERS])
    green = [part.split("\x1b")[0].strip() for part in rendered(table, is_terminal=True).split("\x1b[1;32m")[1:]]
    assert green == ["0.9000", "70"]
    assert "\x1b" not in rendered(table)


def test_without_a_complete_trial_a_table_says_so() -> None:
    assert "no complete trial" in rendered(best_table([trial(0)], [ACCURACY]))
    assert "no complete trial" in rendered(pareto_table([], [ACCURACY, PARAMETERS]))


@pytest.mark.parametrize("name", ["x" * 100, "transformer_encoder_block_h16_ffn4096"])
def test_long_architectures_and_names_stay_within_80_columns_and_lose_no_digit(name: str) -> None:
    middle = [name if index % 2 else "conv3" for index in range(50)]
    goal = type(ACCURACY)("validation_accuracy_top5_balanced", maximize=True)
    text = rendered(best_table([trial(0, {goal.name: 0.123456, "parameters": 50e9}, *middle)], [goal, PARAMETERS]))
    assert max(map(len, text.splitlines())) <= 80
    assert "0.1235" in text
    assert "50,000,000,000" in text


def test_a_sweep_shows_every_run_and_dashes_for_what_one_lacks() -> None:
    rows = [
        {"folder": "multirun/9/0", "overrides": ["seed=1", "space.args=[bold]"], "accuracy": 0.25, "seconds": 61.04},
        {"folder": "multirun/9/1", "overrides": "seed=2", "accuracy": 0.5, "parameters": 12345, "seconds": 3},
        {"folder": "multirun/9/2", "overrides": ""},
    ]
    text = rendered(sweep_table(rows))
    assert "3 runs in multirun/9" in text
    assert text.split("─")[0].split()[-5:] == ["folder", "overrides", "accuracy", "parameters", "seconds"]
    assert rows_of(text) == [
        ["0", "seed=1", "space.args=[bold]", "0.2500", "-", "61.0"],
        ["1", "seed=2", "0.5000", "12,345", "3.0"],
        ["2", "-", "-", "-", "-"],
    ]


def test_runs_of_several_folders_are_shown_with_their_paths() -> None:
    text = rendered(sweep_table([{"folder": "a/0", "seconds": 1.0}, {"folder": "b/0", "seconds": 1.0}]))
    assert "2 runs" in text
    assert [row[0] for row in rows_of(text)] == ["a/0", "b/0"]
    assert "0 runs" in rendered(sweep_table([]))


def test_three_goals_and_large_counts_fit_80_columns() -> None:
    goals = [ACCURACY, Goal("streamed_bytes", False), Goal("latency_ms", False)]
    trials = [
        trial(number, {"accuracy": number / 10, "streamed_bytes": 123456789.0 - number, "latency_ms": 1.5}, "wide")
        for number in range(3)
    ]
    for table in (best_table(trials, goals), pareto_table(trials, goals)):
        text = rendered(table)
        assert max(map(len, text.splitlines())) <= 80
        assert "123,456,787" in text
        assert "1.5000" in text
