from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.space.architecture import Architecture
from tests.report.charts.reading import labelled, places, styled
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, some_trials, trial
from tests.report.pages import results_of


def test_every_trial_is_in_the_chart_in_its_own_way() -> None:
    gone = replace(trial(7, {"accuracy": 1.0, "parameters": 5}), architecture=Architecture(("old",)), in_space=False)
    chart = progress_chart(results_of([*some_trials(), gone], [ACCURACY, PARAMETERS]))
    assert places(styled(chart, "trial")) == [(0, 0.5), (5, 0.7), (6, 0.6)]
    assert places(styled(chart, "cached")) == [(3, 0.5)]
    assert places(styled(chart, "best")) == [(2, 0.9)]
    assert places(styled(chart, "gone")) == [(7, 1.0)]
    assert [point.x for point in labelled(chart, "failed").points] == [1]
    assert [point.x for point in labelled(chart, "refused").points] == [4]
    assert labelled(chart, "refused").kind == "floor"
    assert chart.title == "Best accuracy so far (trial score): 0.9000 (trial 2), 8 trials"


@pytest.mark.parametrize(("goal", "steps"), [(ACCURACY, [0.5, 0.9]), (LOSS, [2.0, 0.5])])
def test_the_best_line_steps_where_a_trial_is_better_and_ends_at_the_last(goal: Goal, steps: list[float]) -> None:
    before, after = steps
    chart = progress_chart(results_of(some_trials(), [goal]))
    assert places(styled(chart, "stairs")) == [(0, before), (2, before), (2, after), (6, after)]


def test_trials_that_were_stopped_are_told_from_those_that_were_refused() -> None:
    stopped = [
        TrialRecord(
            number, trial(0).architecture, State.STOPPED, cached=number == 9, reason="stopped after 5 of 20 steps"
        )
        for number in (7, 9)
    ]
    chart = progress_chart(results_of([*some_trials(), *stopped], [ACCURACY]))
    assert [point.x for point in labelled(chart, "stopped early").points] == [7, 9]
    assert [point.x for point in labelled(chart, "refused").points] == [4]
    assert places(styled(chart, "cached")) == [(3, 0.5)]


@pytest.mark.parametrize("records", [[], [trial(0)], [trial(0), trial(1)]])
def test_without_a_complete_trial_there_is_a_message(records: list[TrialRecord]) -> None:
    assert "no complete trial" in progress_chart(results_of(records, [ACCURACY])).message
