"""What a search knew from earlier runs, as page, terminal and result tell it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from l2l_nas.nas.memory import Agreement, EarlierTask, Remembered, TaskAgreement
from l2l_nas.report.recalled import Recalled


def task(name: str, *networks: str) -> EarlierTask:
    return EarlierTask(name, "0" * 32, tuple(Remembered({"a": one}, 1.0, {"accuracy": 0.5}) for one in networks))


def agreement(*tasks: TaskAgreement, trials: int = 6, tau: float | None = 0.4) -> Agreement:
    return Agreement("accuracy", trials, tasks, tau)


BEFORE = Recalled.of([task("one", "x", "y", "x"), task("two", "x")], ["auto leaves out b (unfinished)"])
FIRST, SECOND = TaskAgreement("one", 2, 0.5, 0.6), TaskAgreement("two", ignored="it has no accuracy")


def test_before_a_search_it_tells_what_was_taken():
    assert BEFORE.source == "3 networks of 2 earlier tasks"
    assert BEFORE.verdict == ""
    assert BEFORE.effect == ""


def test_afterwards_it_tells_how_far_it_agreed_and_what_it_changed():
    found = BEFORE.compared(agreement(FIRST, SECOND), finalists=4, changed=1)
    assert found.verdict == "its predictions agree with the scores of 6 trials (tau 0.40)"
    assert found.effect == "of the same trials, 1 of 4 finalists would be another without it"
    several = BEFORE.compared(agreement(FIRST, SECOND), finalists=4, changed=2)
    assert several.effect == "of the same trials, 2 of 4 finalists would be others without it"
    assert [(one.name, one.weight, one.tau, one.ignored) for one in found.tasks] == [
        ("one", 0.5, 0.6, ""),
        ("two", None, None, "it has no accuracy"),
    ]
    assert found.notes == BEFORE.notes


@pytest.mark.parametrize(
    ("about", "says"),
    [
        (
            agreement(TaskAgreement("one", 2), SECOND, tau=None),
            "it told nothing of the scores of 6 trials, so it adds only doubt",
        ),
        (
            agreement(TaskAgreement("one", 2, tau=-0.4), SECOND, tau=None),
            "it disagreed with the scores of 6 trials, so it adds only doubt",
        ),
        (agreement(FIRST, SECOND, tau=-0.1), "its predictions do not agree with the scores of 6 trials (tau -0.10)"),
        (agreement(replace(SECOND, name="one"), SECOND, tau=None), "nothing of it could be used"),
        (agreement(FIRST, SECOND, trials=2, tau=None), "2 trials are too few to tell how far it agreed"),
    ],
)
def test_what_is_not_known_is_not_told(about, says):
    assert BEFORE.compared(about, finalists=0, changed=0).verdict.startswith(says)
    assert BEFORE.compared(about, finalists=0, changed=0).effect == ""


def test_it_comes_back_from_json():
    for one in (BEFORE, BEFORE.compared(agreement(FIRST, SECOND), finalists=4, changed=1), Recalled.of([])):
        assert Recalled.from_json(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises(ValueError, match="no measurement"):
        Recalled.from_json({"tasks": [], "tau": float("nan")})
