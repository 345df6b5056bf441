from __future__ import annotations

import math
from dataclasses import replace

import pytest

from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.report.network import Network
from l2l_nas.report.results import only_finite
from l2l_nas.space.architecture import Architecture
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, some_trials, trial
from tests.report.pages import card_of_pool, random_trials, summary_of


def test_leaders_are_the_found_network_then_the_other_finalists_and_never_trials_beside_them() -> None:
    card = card_of_pool()
    records = random_trials(card, 12)
    summary = summary_of(card, records, num_finalists=3)
    leaders = summary.results.leaders(5)
    assert len(leaders) == 3
    assert all(leader.is_trained for leader in leaders)
    assert leaders[0] == summary.results.best
    assert summary.found is not None
    assert leaders[0].trial == summary.found.trial
    values = [leader.values["accuracy"] for leader in leaders]
    assert values[1:] == sorted(values[1:], reverse=True)
    trials = summary_of(card, records).results.leaders(5)
    assert [leader.is_trained for leader in trials] == [False] * 5
    assert len({leader.architecture for leader in trials}) == 5


def test_before_the_end_the_best_is_the_best_so_far() -> None:
    card = card_of_pool()
    records = random_trials(card, 12)
    found = summary_of(card, records, num_finalists=1).found
    summary = summary_of(card, records, until="search", running_at=130.0, found=found)
    assert summary.results.best is not None
    assert not summary.results.best.is_trained
    assert summary.results.best.trial_score["accuracy"] == max(record.values["accuracy"] for record in records)
    assert summary_of(card).results.best is None


def test_a_finalist_that_was_not_trained_is_the_best_by_its_trial_score() -> None:
    card = card_of_pool()
    records = random_trials(card, 12)
    chosen = records[7]
    entry = {"trial": 7, "architecture": list(chosen.architecture.choices), "validation": None}
    found = Network.from_json({**entry, "trial_score": {"accuracy": 0.5}})
    best = summary_of(card, records, found=found).results.best
    assert best is not None
    assert (best.trial, best.is_trained, best.trial_score) == (7, False, {"accuracy": 0.5})


def test_parameters_are_counted_where_they_were_no_goal() -> None:
    summary = summary_of(card_of_pool(), [trial(0, {"accuracy": 0.5})], goals=(ACCURACY,))
    assert summary.results.trade_offs == ((ACCURACY, PARAMETERS),)
    assert summary.results.leaders(1)[0].values == {"accuracy": 0.5, "parameters": 126.0}
    assert summary_of(goals=(ACCURACY, LOSS)).results.trade_offs == ((ACCURACY, LOSS),)


def test_of_three_goals_each_is_drawn_and_the_front_is_of_all_three() -> None:
    """Trial 1 is on the front of all three for its size alone."""
    values = [(0.9, 1.0, 100), (0.5, 2.0, 10), (0.6, 0.5, 200), (0.4, 3.0, 300)]
    records = [trial(n, {"accuracy": a, "loss": b, "parameters": c}) for n, (a, b, c) in enumerate(values)]
    summary = summary_of(card_of_pool(), records, goals=(ACCURACY, LOSS, PARAMETERS))
    assert summary.results.trade_offs == ((ACCURACY, LOSS), (ACCURACY, PARAMETERS))
    assert {record.number for record in summary.results.trial_front} == {0, 1, 2}


def test_trials_of_candidates_that_are_gone_are_in_no_front_and_no_mean() -> None:
    card = card_of_pool()
    records = random_trials(card, 12)
    gone = replace(
        records[0],
        number=12,
        architecture=Architecture(("stem", "old", "old", "old", "head")),
        values={"accuracy": 2.0, "parameters": 1.0},
        in_space=False,
    )
    summary = summary_of(card, [*records, gone])
    plain = summary_of(card, records)
    assert summary.results.best == plain.results.best
    assert summary.results.trial_front == plain.results.trial_front
    assert summary.results.scored == plain.results.scored


def test_reasons_that_differ_in_numbers_alone_are_one() -> None:
    architecture = Architecture(("stem", "wide", "wide", "wide", "head"))
    records = [
        TrialRecord(n, architecture, State.PRUNED, reason=f"{1000 + n:,} parameters, allowed 500") for n in range(3)
    ]
    records += [TrialRecord(3, architecture, State.FAILED, reason="NaN"), *some_trials()[:1]]
    reasons = summary_of(card_of_pool(), records).results.reasons()
    assert [(alike[0].reason, [record.number for record in alike]) for alike in reasons] == [
        ("1,000 parameters, allowed 500", [0, 1, 2]),
        ("NaN", [3]),
    ]


def test_values_that_no_chart_can_show_count_as_failed() -> None:
    goals = (ACCURACY, PARAMETERS)
    records = [
        trial(n, {"accuracy": value, "parameters": 1.0}) for n, value in enumerate((0.5, math.inf, math.nan, 1e99))
    ]
    found = only_finite([*records, trial(4)], goals)
    assert [record.state for record in found] == ["complete", "failed", "failed", "failed", "failed"]
    assert found[0] is records[0]
    with pytest.raises(KeyError):
        only_finite([trial(0, {"accuracy": 0.5})], goals)
