from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l2l_nas import Architecture
from l2l_nas.errors import SettingError
from l2l_nas.nas.objectives import (
    Goal,
    State,
    TrialRecord,
    counts,
    distinct,
    num_evaluated,
    pareto_front,
    parse_goals,
    ranked,
)

NAMES = ("a", "b", "c")


@st.composite
def trials(draw):
    """Goals in either direction, and trials of all states with few different values, so that ties are common."""
    goals = tuple(Goal(name, draw(st.booleans())) for name in NAMES[: draw(st.integers(1, 3))])
    records = []
    for number in range(draw(st.integers(0, 12))):
        state = draw(st.sampled_from([State.COMPLETE, State.COMPLETE, *State]))
        values = {goal.name: float(draw(st.integers(0, 3))) for goal in goals} if state.has_score else {}
        records.append(
            TrialRecord(number, Architecture((str(number),)), state, values, cached=draw(st.integers(0, 5)) == 0)
        )
    return goals, records


def dominates(a, b, goals):
    sign = {goal.name: 1 if goal.maximize else -1 for goal in goals}
    left = [sign[name] * a.values[name] for name in sign]
    right = [sign[name] * b.values[name] for name in sign]
    return all(x >= y for x, y in zip(left, right, strict=True)) and left != right


@given(trials())
def test_the_pareto_front_is_what_brute_force_finds(drawn):
    goals, records = drawn
    front = pareto_front(records, goals)
    candidates = [r for r in records if r.state == "complete" and not r.cached]
    undominated = [r for r in candidates if not any(dominates(other, r, goals) for other in candidates)]
    assert {tuple(r.values.items()) for r in front} == {tuple(r.values.items()) for r in undominated}
    for record in front:
        same = [r.number for r in undominated if r.values == record.values]
        assert record.number == min(same)
    assert len({tuple(r.values.items()) for r in front}) == len(front)
    assert [r.number for r in front] == [r.number for r in ranked(records, goals) if r in front]


@given(trials())
def test_ranking_puts_the_best_by_the_first_goal_first(drawn):
    goals, records = drawn
    order = ranked(records, goals)
    assert sorted(r.number for r in order) == [r.number for r in distinct(records)]
    for before, after in itertools.pairwise(order):
        assert not goals[0].better(after.values[goals[0].name], before.values[goals[0].name])
        if before.values == after.values:
            assert before.number < after.number


@given(trials())
def test_every_trial_is_counted_once_and_repeats_are_no_evaluations(drawn):
    _, records = drawn
    found = counts(records)
    assert sum(found.values()) == len(records)
    assert num_evaluated(records) == sum(r.state in ("complete", "stopped", "failed") and not r.cached for r in records)


def test_goals_are_found_by_name_with_their_direction():
    metrics = {"accuracy": True, "loss": False}
    assert parse_goals(["accuracy", "parameters"], metrics) == (Goal("accuracy", True), Goal("parameters", False))
    assert parse_goals(["loss"], metrics) == (Goal("loss", False),)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "one to three different names"),
        (["loss", "loss"], "one to three different names"),
        (["loss", "accuracy", "parameters", "more"], "one to three different names"),
        (["los"], "did you mean 'loss'"),
        (["zzz"], "choose from accuracy, loss, parameters"),
        (["parameters", "accuracy"], "begins with a metric"),
    ],
)
def test_goals_that_make_no_sense_are_refused(names, says):
    with pytest.raises(SettingError, match=says):
        parse_goals(names, {"accuracy": True, "loss": False})


def test_a_record_as_json_holds_everything():
    record = TrialRecord(3, Architecture(("x",)), State.FAILED, reason="NaN", seconds=1.23456)
    assert record.to_json() == {
        "number": 3,
        "architecture": ["x"],
        "state": "failed",
        "values": {},
        "cached": False,
        "reason": "NaN",
        "seconds": 1.2346,
    }
