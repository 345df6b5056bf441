from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.report.charts import tables
from l2l_nas.report.network import Network, RandomBaseline, in_order
from l2l_nas.report.results import Results
from l2l_nas.report.table import (
    baseline_line,
    headline,
    sweep_table,
    terminal_table,
)
from tests.report.examples import ACCURACY, PARAMETERS, some_trials, trial
from tests.report.pages import card_of_pool, results_of

METRICS = ("accuracy", "loss")


def finalist(number: int, accuracy: float, *, parameters: float = 126.0, parts=("validation", "test")) -> Network:
    scores = {part: {"accuracy": accuracy - 0.01 * (part == "test")} for part in parts}
    errors = {part: {"accuracy": 0.00784} for part in parts}
    score = {"accuracy": 0.5 + number / 100}
    architecture = trial(number, None, "wide", "wide", "skip").architecture
    costs = {"parameters": parameters}
    return Network(number, architecture, score, scores.get("validation"), scores.get("test"), errors, costs)


def best_of(records: Sequence[TrialRecord], goals: Sequence[Goal], **how) -> Table:
    return terminal_table("Best trials", tables.best_table(results_of(records, goals), **{"metrics": METRICS, **how}))


def finalists_of(found: Sequence[Network], goals: Sequence[Goal]) -> str:
    networks = in_order(found, goals)
    results = Results(card_of_pool(), tuple(goals), (), tuple(networks))
    table = tables.finalist_table(results, winner=networks[0].trial, is_narrow=True)
    return rendered(terminal_table("Finalists", table))


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
    text = rendered(best_of(some_trials(), [ACCURACY, PARAMETERS], limit=3))
    assert text.partition("─")[0].count("trial score") == 1  # over accuracy: parameters are what they are
    assert rows_of(text) == [
        ["1", "2", "0.9000", "12,345", "stem,", "2*wide,", "skip,", "head"],
        ["2", "5", "0.7000", "126", "stem,", "wide,", "linear,", "skip,", "head"],
        ["3", "6", "0.6000", "70", "stem,", "2*linear,", "skip,", "head"],
    ]


def test_finalists_come_with_both_scores_and_their_errors_and_the_best_is_marked() -> None:
    found = [finalist(1, 0.9), finalist(2, 0.97), finalist(3, 0.95, parameters=42.0)]
    text = finalists_of(found, [ACCURACY, PARAMETERS])
    assert rows_of(text) == [
        ["★", "2", "0.5200", "0.9700", "±", "0.0078", "0.9600", "±", "0.0078", "yes", "126"],
        ["3", "0.5300", "0.9500", "±", "0.0078", "0.9400", "±", "0.0078", "yes", "42"],
        ["1", "0.5100", "0.9000", "±", "0.0078", "0.8900", "±", "0.0078", "126"],
    ]
    assert headline(found[1]) == "accuracy 0.9700 ± 0.0078 validation, 0.9600 ± 0.0078 test"


def test_finalists_of_several_rounds_say_how_long_each_was_trained_longest_first() -> None:
    longest, short, half = finalist(1, 0.9), finalist(2, 0.97), finalist(3, 0.95)
    found = [replace(longest, steps=1200), replace(short, steps=80), replace(half, steps=240)]
    rows = [[word for word in row if word != "★"] for row in rows_of(finalists_of(found, [ACCURACY]))]
    assert [row[0] for row in rows] == ["1", "3", "2"]
    assert ["1,200" in rows[0], "240" in rows[1], "80" in rows[2]] == [True] * 3
    assert "steps" not in finalists_of([longest, short], [ACCURACY])


def test_without_a_test_part_there_is_no_column_of_it() -> None:
    found = [finalist(1, 0.9, parts=("validation",))]
    text = finalists_of(found, [ACCURACY])
    assert "test" not in text
    assert rows_of(text) == [["★", "1", "0.5100", "0.9000", "±", "0.0078", "126"]]
    assert headline(found[0]) == "accuracy 0.9000 ± 0.0078 validation"
    assert headline(finalist(1, 0.9, parts=())) == "accuracy 0.5100"


def test_random_search_is_a_line_with_how_its_network_differs_from_the_best() -> None:
    best, other = finalist(1, 0.95), finalist(-1, 0.9)
    line = baseline_line(best, RandomBaseline(3, 240, other, failed=1), ACCURACY, 360)
    shown = "random search with as many steps (3 networks, 240 steps in all, 1 of them failed): accuracy 0.9000"
    assert line.startswith(shown)
    fewer = baseline_line(best, RandomBaseline(3, 240, other, is_all=True), ACCURACY, 360)
    assert fewer.startswith("random search of all networks of the space (3 networks")
    said = "On the test part the search's network has 0.0500 ± 0.0111 more accuracy than that of random search. One run"
    assert said in line
    assert "ahead" not in line
    assert "none of its networks" in baseline_line(best, None, ACCURACY, 360)


def test_the_best_value_of_each_goal_stands_out_on_a_terminal_only() -> None:
    table = best_of(some_trials(), [ACCURACY, PARAMETERS])
    green = [part.split("\x1b")[0].strip() for part in rendered(table, is_terminal=True).split("\x1b[1;32m")[1:]]
    assert green == ["0.9000", "70"]
    assert "\x1b" not in rendered(table)


def test_a_sweep_shows_every_run_what_it_differs_in_and_dashes_for_what_one_lacks() -> None:
    rows = [
        {"folder": "runs/9/0", "overrides": ["a=b", "seed=1", "space.args=[bold]"], "accuracy": 0.25, "seconds": 61.04},
        {"folder": "runs/9/1", "overrides": ["a=b", "seed=2"], "accuracy": 0.5, "parameters": 12345, "seconds": 3},
        {"folder": "runs/9/2", "overrides": ["a=b"], "error": "too hot"},
    ]
    text = rendered(sweep_table(rows))
    assert "3 runs in runs/9" in text
    assert text.split("─")[0].split()[-5:] == ["run", "overrides", "accuracy", "parameters", "seconds"]
    assert rows_of(text) == [
        ["0", "seed=1", "space.args=[bold]", "0.2500", "-", "61.0"],
        ["1", "seed=2", "0.5000", "12,345", "3.0"],
        ["2", "-", "-", "-", "-"],
    ]
    alone = rendered(sweep_table(rows[:1]))
    assert "1 run in runs/9" in alone
    assert "a=b" in alone


def test_the_mean_that_finalists_are_compared_by_has_a_column_of_its_own() -> None:
    errors = {"validation": {"accuracy": 0.01}, "compared_by": {"accuracy": 0.02}}
    means = {1: 0.8, 2: 0.85}
    networks = [
        replace(finalist(n, 0.9), compared_by={"accuracy": mean}, num_validations=3, standard_error=errors)
        for n, mean in means.items()
    ]
    results = Results(card_of_pool(), (ACCURACY,), (), tuple(in_order(networks, [ACCURACY])))
    table = tables.finalist_table(results, winner=2)
    place = [column.title for column in table.columns].index("accuracy, mean of the last validations")
    assert [row.cells[place] for row in table.rows] == ["0.8500 ± 0.0200", "0.8000 ± 0.0200"]
    assert [row.cells[place + 1] for row in table.rows] == ["0.9000 ± 0.0100"] * 2  # of the weights
    once = replace(results, finalists=tuple(replace(one, num_validations=1) for one in results.finalists))
    titles = [column.title for column in tables.finalist_table(once, winner=2).columns]
    assert not any("mean" in title for title in titles)  # one validation is no mean


def test_networks_that_write_show_what_writing_costs_and_of_training_what_is_a_goal() -> None:
    costs = {"parameters": 5.0, "streamed_bytes": 6.0, "cache_bytes": 7.0, "token_latency_ms": 8.0, "device_bytes": 9.0}
    for left_out, goals in ((set(), [ACCURACY]), ({"cache_bytes"}, [ACCURACY])):
        found = {name: value for name, value in costs.items() if name not in left_out}
        results = Results(card_of_pool(), tuple(goals), (), (replace(finalist(1, 0.9), costs=found),))
        titles = {column.title for column in tables.finalist_table(results, winner=1).columns}
        assert ({"streamed bytes", "device bytes"} <= titles) is bool(left_out)
        assert {"parameters", "token latency"} <= titles
    goals = (ACCURACY, Goal("device_bytes", False))
    results = Results(card_of_pool(), goals, (), (replace(finalist(1, 0.9), costs=costs),))
    titles = {column.title for column in tables.finalist_table(results, winner=1).columns}
    assert "device bytes" in titles
    assert "streamed bytes" not in titles


def test_tables_of_as_many_rows_as_there_are_trials_can_be_scrolled() -> None:
    results = results_of(some_trials(), [ACCURACY])
    long = [tables.trial_table(results), tables.front_table(results), tables.best_table(results, metrics=METRICS)]
    assert not any(table.is_whole for table in long)
    assert tables.finalist_table(results, winner=None).is_whole
