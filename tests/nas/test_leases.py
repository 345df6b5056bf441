from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState

from l2l_nas.nas.distributed.leases import Leases
from l2l_nas.nas.retries import ATTEMPTS, why_given_up
from l2l_nas.nas.study.attributes import RESULT, attributes_of, is_lost, is_withdrawn
from l2l_nas.nas.study.storage import LeaseAnswer


def trial(number, digest="a", state=TrialState.RUNNING, *, lease=True, **attributes):
    values = [1.0] if state is TrialState.COMPLETE else None
    marks = {"lease": f"token{number}"} if lease else {}
    return FrozenTrial(
        number=number, state=state, value=None, values=values, datetime_start=None, datetime_complete=None, params={},
        distributions={}, user_attrs={"digest": digest, **marks, **attributes}, system_attrs={}, intermediate_values={},
        trial_id=number + 100,
    )  # fmt: skip


def lost(number, digest="a", **attributes):
    return trial(number, digest, TrialState.FAIL, lost="gone", **attributes)


def failed(number, digest="a"):
    return trial(number, digest, TrialState.FAIL, **{RESULT: "FAIL"})


def withdrawn(number, digest="a"):
    return trial(number, digest, TrialState.PRUNED, withdrawn=True)


@pytest.mark.parametrize("before", [trial(0), trial(0, state=TrialState.COMPLETE), failed(0)])
def test_of_two_leases_of_one_architecture_the_first_counts(before):
    trials = [before, trial(1, "b"), trial(2), trial(3)]
    assert Leases(trials).verdict(trials[2], total=9) == (LeaseAnswer.TAKEN, "evaluated as trial 0")
    assert Leases(trials).verdict(trials[3], total=9)[0] is LeaseAnswer.TAKEN
    assert Leases(trials).verdict(trials[1], total=9)[0] is LeaseAnswer.OURS
    assert Leases(trials).verdict(before, total=9)[0] is LeaseAnswer.OURS


@pytest.mark.parametrize(
    "before", [lost(0), withdrawn(0), trial(0, state=TrialState.COMPLETE, lease=False, cached=True)]
)
def test_what_was_lost_withdrawn_or_never_leased_stands_in_nobody_s_way(before):
    trials = [before, trial(1)]
    assert Leases(trials).verdict(trials[1], total=1)[0] is LeaseAnswer.OURS


def test_no_more_are_leased_than_were_asked_for():
    trials = [trial(0, "a"), lost(1, "b"), failed(2, "c"), trial(3, "d"), trial(4, "e")]
    leases = Leases(trials)
    assert [leases.verdict(trials[i], total=3)[0] for i in (0, 3, 4)] == [
        LeaseAnswer.OURS,
        LeaseAnswer.OURS,
        LeaseAnswer.FULL,
    ]


def test_a_lost_architecture_is_to_be_retried_until_somebody_has_it():
    assert [t.number for t in Leases([lost(0), lost(1, "b")]).to_retry()] == [0, 1]
    assert Leases([lost(0), trial(1)]).to_retry() == []
    assert Leases([lost(0), failed(1)]).to_retry() == []
    assert [t.number for t in Leases([lost(0), lost(1)]).to_retry()] == [1]
    assert Leases([lost(0), lost(1)]).retried("a") == 1
    assert Leases([]).retried("a") is None


def test_after_so_many_losses_it_is_given_up_but_stops_on_purpose_do_not_count():
    losses = [lost(number) for number in range(ATTEMPTS)]
    assert not Leases(losses[:-1]).given_up("a")
    leases = Leases(losses)
    assert leases.given_up("a")
    assert leases.to_retry() == []
    again = trial(9)
    assert Leases([*losses, again]).verdict(again, total=9) == (LeaseAnswer.TAKEN, why_given_up(3))
    assert not Leases([lost(number, released=True) for number in range(9)]).given_up("a")


def test_a_failed_evaluation_is_no_loss():
    assert is_lost(lost(0))
    assert not is_lost(failed(0))
    assert is_lost(trial(0, state=TrialState.FAIL, **{RESULT: "COMPLETE"}))  # its result came too late
    assert not is_lost(trial(0, state=TrialState.FAIL, lease=False))
    assert is_withdrawn(withdrawn(0))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["run", "done", "lost", "failed"])), max_size=12))
def test_at_most_one_lease_of_an_architecture_is_ever_ours(drawn):
    makers = {
        "run": trial,
        "done": lambda n, d: trial(n, d, TrialState.COMPLETE),
        "lost": lost,
        "failed": failed,
    }
    trials = [makers[kind](number, digest) for number, (digest, kind) in enumerate(drawn)]
    leases = Leases(trials)
    live = [t for t in trials if t.state is TrialState.RUNNING]
    ours = [t.user_attrs["digest"] for t in live if leases.verdict(t, total=99)[0] is LeaseAnswer.OURS]
    assert len(ours) == len(set(ours))
    for one in leases.to_retry():
        assert one.user_attrs["digest"] not in ours


def test_trials_of_version_0_1_0_read_as_they_did():
    """It held all of a result in one attribute."""
    old = trial(0, state=TrialState.FAIL, result={"state": "FAIL", "reason": "NaN", "metric_loss": 0.5})
    assert not is_lost(old)
    assert attributes_of(old)["metric_loss"] == 0.5
    assert is_lost(trial(0, state=TrialState.FAIL, result={"state": "COMPLETE"}))
    assert is_withdrawn(trial(0, state=TrialState.PRUNED, result={"withdrawn": True}))
