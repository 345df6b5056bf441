from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.network import Network
from tests.report.charts.reading import labelled, places
from tests.report.examples import ACCURACY, PARAMETERS, trial
from tests.report.pages import results_of

ROUNDS = {10: {"accuracy": 0.5, "loss": 2.0}, 30: {"accuracy": 0.8, "loss": 1.0}}


def finalist(number: int, rungs) -> Network:
    record = trial(number, {"accuracy": 0.1})
    return Network(number, record.architecture, validation={"accuracy": 0.8}, steps=max(rungs, default=0), rungs=rungs)


@pytest.mark.parametrize("goals", [[ACCURACY], [PARAMETERS, ACCURACY]])
def test_a_finalist_is_a_line_from_round_to_round_and_the_best_lies_on_top(goals) -> None:
    early = {10: {"accuracy": 0.25, "loss": 3.0}, 20: {"accuracy": 0.3, "loss": 3.0}}
    results = replace(results_of([], goals), finalists=(finalist(3, ROUNDS), finalist(5, early)))
    chart = finalist_curves(results)
    assert [places(one) for one in chart.series if one.kind == "line"] == [
        [(10, 0.25), (20, 0.3)],
        [(10, 0.5), (30, 0.8)],
    ]
    assert places(labelled(chart, "trial 3, the best")) == [(10, 0.5), (30, 0.8)]
    assert [point.trial for point in labelled(chart, "other finalists").points] == [5, 5]
    assert chart.y is not None
    assert chart.y.label == "accuracy, validation (more is better)"


def test_finalists_that_were_scored_once_have_no_curve() -> None:
    once = replace(results_of([], [ACCURACY]), finalists=(finalist(3, {30: {"accuracy": 0.8}}), finalist(4, {})))
    assert "search.finalist_rounds" in finalist_curves(once).message


def on_its_way(number: int, state: State, value: float, **rungs: float) -> TrialRecord:
    done = trial(number, {"accuracy": value})
    values = done.values if state.has_score else {}
    named = {f"{name[1:]}/20": {"accuracy": score} for name, score in rungs.items()}
    return replace(done, state=state, values=values, rungs=named)


def test_trials_are_lines_up_to_where_they_were_stopped_or_scored() -> None:
    records = [
        on_its_way(0, State.COMPLETE, 0.4, s5=0.1, s10=0.2),
        on_its_way(1, State.STOPPED, 0.0, s5=0.05),
        on_its_way(2, State.COMPLETE, 0.9, s5=0.3, s10=0.6),
        trial(3, {"accuracy": 0.1}),  # was not scored on its way
    ]
    chart = trial_curves(results_of(records, [ACCURACY]))
    assert places(labelled(chart, "went on to the end")) == [(5, 0.1), (10, 0.2), (20, 0.4)]
    assert places(labelled(chart, "stopped early")) == [(5, 0.05)]
    assert places(labelled(chart, "the best")) == [(5, 0.3), (10, 0.6), (20, 0.9)]
    assert "search.early_stop" in trial_curves(results_of(records[3:], [ACCURACY])).message


def test_a_score_that_lacks_the_goal_does_not_have_a_cost_drawn() -> None:
    records = [on_its_way(0, State.COMPLETE, 0.4, s5=0.1), on_its_way(1, State.COMPLETE, 0.3, s5=0.2)]
    records = [replace(one, values={**one.values, "parameters": 9}) for one in records]
    records[1] = replace(records[1], rungs={**records[1].rungs, "10/20": {"loss": 1.0}})
    chart = trial_curves(results_of(records, [PARAMETERS, ACCURACY]))
    assert places(labelled(chart, "went on to the end")) == [(5, 0.2), (20, 0.3)]
    assert places(labelled(chart, "the best")) == [(5, 0.1), (20, 0.4)]


def test_of_very_many_trials_some_lines_and_the_best_are_drawn() -> None:
    records = [on_its_way(number, State.COMPLETE, number / 3000, s5=0.1) for number in range(3000)]
    chart = trial_curves(results_of(records, [ACCURACY]))
    assert 60 < sum(one.kind == "line" for one in chart.series) <= 121
    assert labelled(chart, "the best").points[-1].trial == 2999
