"""How many networks differ from the best by more than the error of their scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.network import Network
from l2l_nas.report.resolved import resolved
from l2l_nas.report.results import Results
from tests.report.examples import ACCURACY, PARAMETERS, trial
from tests.report.pages import card_of_pool

SAMPLES = 400


def finalist(number, accuracy, *, mean=None, factor=1.0, steps=10):
    error = factor * math.sqrt(accuracy * (1 - accuracy) / SAMPLES)
    found = {"accuracy": accuracy}
    compared = {} if mean is None else {"accuracy": mean}
    errors = {"validation": {"accuracy": error}, **({"compared_by": {"accuracy": 0.05}} if compared else {})}
    architecture = trial(number, None, "wide", "wide", "skip").architecture
    return Network(
        number, architecture, found, found, standard_error=errors, costs={"parameters": 9.0}, steps=steps,
        compared_by=compared, num_validations=3 if compared else 0,
    )  # fmt: skip


def results(finalists, *scores, goal=ACCURACY, error=None):
    trials = []
    for n, score in enumerate(scores):
        one = trial(n, {goal.name: score, "parameters": 9.0}, "wide", "wide", "skip")
        own = math.sqrt(score * (1 - score) / (SAMPLES - 1)) if error is None else error
        trials.append(replace(one, errors={goal.name: own}))
    return Results(card_of_pool(), (goal, PARAMETERS), tuple(trials), tuple(finalists))


def test_trials_are_told_from_the_best_where_the_interval_leaves_out_0():
    found = resolved(results([finalist(1, 0.8)], 0.5, 0.52, 0.46, 0.44, 0.1), SAMPLES)
    trials = found["trials"]
    # an error of 0.025 each: 0.035 of a difference, 0.07 to each side
    assert (trials.others, trials.differ, trials.error) == (4, 2, pytest.approx(math.sqrt(0.52 * 0.48 / 399)))
    assert trials.sentence().endswith(": 2 of 4")
    assert found["finalists"] is None  # there is one alone


def test_over_few_groups_intervals_are_wider():
    some = results([], 0.5, 0.52, 0.46, 0.44, 0.1)
    assert resolved(some, 4)["trials"].differ == 1  # Student's t of three degrees of freedom: 3.18
    assert resolved(some, 1)["trials"].differ == 0
    assert resolved(some, 0)["trials"].differ == 2  # not known how many


def test_less_may_be_better():
    goal = Goal("accuracy", maximize=False)
    assert resolved(results([], 0.5, 0.52, 0.4, 0.1, goal=goal), SAMPLES)["trials"].differ == 3
    assert resolved(results([], 2.3, 0.9, goal=Goal("loss", maximize=False), error=0.1), SAMPLES)["trials"].differ == 1


def test_where_trials_cannot_be_told_apart_the_line_says_what_helps():
    alike = resolved(results([], 0.5, 0.51, 0.49, 0.5, 0.1), SAMPLES)["trials"]
    assert (alike.others, alike.differ) == (4, 1)
    assert "steps_per_trial" not in alike.sentence()
    assert "steps_per_trial" in resolved(results([], 0.5, 0.51, 0.49, 0.5), SAMPLES)["trials"].sentence()


def test_nothing_is_said_where_errors_are_not_known():
    assert resolved(results([], 0.5), SAMPLES)["trials"] is None
    known = results([], 0.5, 0.1)
    without = replace(known, records=(known.records[0], replace(known.records[1], errors={})))
    assert resolved(without, SAMPLES)["trials"] is None


def test_finalists_are_resolved_by_what_they_were_compared_by():
    some = [
        finalist(0, 0.8, mean=0.8),
        finalist(1, 0.1, mean=0.75),
        finalist(2, 0.8, mean=0.6),
        finalist(3, 0.1, steps=5),
    ]
    found = resolved(results(some, 0.5, 0.1, 0.2, 0.3), SAMPLES)["finalists"]
    # 0.071 of a difference, 0.139 to each side
    assert found.to_json() == {"others": 2, "differ": 1, "standard_error": 0.05}
    assert found.sentence().startswith("Other finalists trained as long that differ")
