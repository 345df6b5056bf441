"""What failed trials have in common."""

from __future__ import annotations

import pytest

from l2l_nas.errors import SpaceError
from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.nas.suspects import suspects
from l2l_nas.space.architecture import Architecture

POSITIONS = [("stem", ["linear"]), ("p0", ["a", "b", "c"]), ("p1", ["a", "b", "c"]), ("p2", ["a", "b", "c"])]


def records(*trials: tuple[str, str], reason: str = "loss is not finite") -> list[TrialRecord]:
    return [
        TrialRecord(
            number, Architecture(("linear", *choices)), State(state), reason="" if state == "complete" else reason
        )
        for number, (choices, state) in enumerate(trials)
    ]


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ([("abc", "complete"), ("aaa", "complete")], []),
        ([("abc", "failed"), ("abb", "failed"), ("cab", "complete"), ("bba", "complete")], [("p0/a", 2)]),
        # one name, wherever it is
        ([("caa", "failed"), ("aca", "failed"), ("aac", "failed"), ("aab", "complete")], [("*/c", 3)]),
        # two of them
        (
            [("caa", "failed"), ("cba", "failed"), ("aab", "failed"), ("bbb", "failed"), ("aba", "complete")],
            [("p0/c", 2), ("p2/b", 2)],
        ),
        # a single failed trial tells nothing, nor does a candidate that scored trials have
        ([("abc", "failed"), ("aaa", "complete")], []),
        ([("abc", "failed"), ("abc", "failed"), ("abc", "complete")], []),
        # what was refused or lost is no failure
        ([("cab", "pruned"), ("caa", "pruned"), ("aaa", "complete")], []),
    ],
)
def test_candidates_that_failed_trials_chose_and_no_scored_one_are_suspects(trials, expected):
    assert [(one.pattern, one.failed) for one in suspects(records(*trials), POSITIONS)] == expected


@pytest.mark.parametrize(
    ("cells", "scored", "expected"),
    [
        ([("p1", "c")], "bbb", [("*/c", 1)]),  # it has never been scored anywhere
        ([("p1", "c")], "cbb", [("p1/c", 1)]),
        ([("p1", "c"), ("p2", "c")], "cbb", [("*/c", 2)]),
    ],
)
def test_a_candidate_that_a_reason_names_is_the_suspect_whatever_else_the_trials_share(cells, scored, expected):
    found = [TrialRecord(9, Architecture(("linear", *scored)), State.COMPLETE)]
    for number, (position, name) in enumerate(cells):
        choices = ["linear", *("c" if position == p else "a" for p, _ in POSITIONS[1:])]
        reason = str(SpaceError("its layer raised RuntimeError: no", position=position, candidate=name))
        found.append(TrialRecord(number, Architecture(tuple(choices)), State.FAILED, reason=reason))
    assert [(one.pattern, one.failed) for one in suspects(found, POSITIONS)] == expected


def test_trials_of_candidates_that_are_gone_and_copies_of_results_tell_nothing():
    failed = records(("abc", "failed"), ("abb", "failed"), ("cab", "complete"), ("bba", "complete"))
    gone = [TrialRecord(8, Architecture(("linear", "a")), State.COMPLETE, in_space=False)]
    copies = [TrialRecord(9, Architecture(("linear", *"ccc")), State.FAILED, reason="no", cached=True)] * 2
    for others in ([], gone, copies):
        assert [(one.pattern, one.failed) for one in suspects([*failed, *others], POSITIONS)] == [("p0/a", 2)]


def test_while_no_trial_was_scored_what_most_architectures_have_is_no_suspect():
    """A learning rate that is too high fails everywhere; a candidate that fails alone is in all failed trials."""
    everywhere = [("abc", "failed"), ("aab", "failed"), ("bca", "failed"), ("cba", "failed"), ("acc", "failed")] * 2
    assert suspects(records(*everywhere), POSITIONS) == ()
    one = [("abc", "failed"), ("abb", "failed"), ("acb", "failed"), ("aca", "failed"), ("acc", "failed")]
    assert [suspect.pattern for suspect in suspects(records(*one), POSITIONS)] == ["p0/a"]
    assert [suspect.pattern for suspect in suspects(records(*one * 1000), POSITIONS)] == ["p0/a"]
