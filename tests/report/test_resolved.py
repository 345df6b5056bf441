"""How many networks differ from the best by more than the error of their scores."""

from __future__ import annotations

import math

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


def results(finalists, *scores, goal=ACCURACY):
    trials = tuple(
        trial(n, {goal.name: score, "parameters": 9.0}, "wide", "wide", "skip") for n, score in enumerate(scores)
    )
    return Results(card_of_pool(), (goal, PARAMETERS), trials, tuple(finalists))


def test_trials_are_told_from_the_best_by_the_error_of_a_share():
    found = resolved(results([finalist(1, 0.8)], 0.5, 0.52, 0.4, 0.1), SAMPLES)
    trials = found["trials"]
    # an error of 0.025 each: 0.035 of a difference
    assert (trials.others, trials.differ, trials.error) == (3, 2, pytest.approx(math.sqrt(0.52 * 0.48 / SAMPLES)))
    assert trials.sentence().startswith("Other trials that differ from the best one")
    assert trials.sentence().endswith(": 2 of 3")
    assert found["finalists"] is None  # there is one alone


def test_less_may_be_better():
    goal = Goal("accuracy", maximize=False)
    assert resolved(results([finalist(1, 0.2)], 0.5, 0.52, 0.4, 0.1, goal=goal), SAMPLES)["trials"].differ == 3


@pytest.mark.parametrize(
    ("finalists", "scores"),
    [
        ([], (0.5, 0.1)),  # nothing is known of errors
        ([finalist(1, 0.8, factor=1.5)], (0.5, 0.1)),  # no share: its error is another one
        ([finalist(1, 0.8, factor=0.5)], (0.5, 0.1)),
        ([finalist(1, 0.8)], (0.5,)),
        ([finalist(1, 0.8)], (2.3, 0.9)),  # no share, though finalists' errors look like it: a loss, say
    ],
)
def test_nothing_is_said_where_the_errors_of_trials_are_not_known(finalists, scores):
    assert resolved(results(finalists, *scores), SAMPLES)["trials"] is None


def test_finalists_are_resolved_by_what_they_were_compared_by():
    some = [
        finalist(0, 0.8, mean=0.8),
        finalist(1, 0.1, mean=0.75),
        finalist(2, 0.8, mean=0.7),
        finalist(3, 0.1, steps=5),
    ]
    found = resolved(results(some, 0.5, 0.1, 0.2, 0.3), SAMPLES)["finalists"]
    assert found.to_json() == {"others": 2, "differ": 1, "standard_error": 0.05}  # 0.071 of a difference
    assert found.sentence().startswith("Other finalists trained as long that differ")
