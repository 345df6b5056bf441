from __future__ import annotations

import time

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from l2l_nas.nas.distributed.backends import open_storage, parse_address
from l2l_nas.nas.distributed.heartbeat import BEAT, Pulse


@pytest.fixture
def shared(tmp_path):
    """A storage, and a function that adds a running trial to its study."""
    storage = open_storage(parse_address(f"journal:///{tmp_path / 'study.log'}"))
    study_id = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")

    def run():
        return storage.create_new_trial(study_id, create_trial(state=TrialState.RUNNING))

    return storage, study_id, run


class Clock:
    """Time as the pulse reads it; its thread waits for nobody here, as turns are taken by hand."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("l2l_nas.nas.distributed.heartbeat.time.monotonic", lambda: self.now)


def by_hand(storage, study_id, **options):
    pulse = Pulse(storage, study_id, **options)
    pulse.close()
    return pulse


def test_the_thread_beats_for_running_trials_and_others_hear_it(shared):
    storage, study_id, run = shared
    ours = run()
    pulse = Pulse(storage, study_id, lost_after=0.6)
    listener = Pulse(storage, study_id, lost_after=6.0)  # far longer than any pause of a busy machine
    pulse.add(ours)
    deadline = time.monotonic() + 30
    while storage.get_trial(ours).system_attrs.get(BEAT, 0) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert listener.silent == frozenset()
    pulse.remove(ours)
    while listener.silent != {ours}:
        assert time.monotonic() < deadline + 30
        time.sleep(0.02)
    assert pulse.silent in (frozenset(), frozenset({ours}))
    for one in (pulse, listener):
        one.close()
        assert not one._thread.is_alive()


def test_a_silence_is_measured_by_the_reader_s_clock_and_ends_with_a_beat(shared, monkeypatch):
    storage, study_id, run = shared
    theirs = run()
    clock = Clock(monkeypatch)
    pulse = by_hand(storage, study_id, lost_after=12.0)  # a turn a second
    for _ in range(12):
        pulse._listen()
        clock.now += 1
    assert pulse.silent == frozenset()  # the first look begins the silence: 11 s
    storage.set_trial_system_attr(theirs, BEAT, 1)
    pulse._listen()
    for _ in range(11):
        clock.now += 1
        pulse._listen()
    assert pulse.silent == frozenset()
    clock.now += 1
    pulse._listen()
    assert pulse.silent == {theirs}
    storage.set_trial_state_values(theirs, TrialState.FAIL)
    pulse._listen()
    assert pulse.silent == frozenset()


def test_after_an_outage_nobody_is_lost_before_he_had_time_to_show_up(shared, monkeypatch):
    storage, study_id, run = shared
    theirs = run()
    clock = Clock(monkeypatch)
    pulse = by_hand(storage, study_id, lost_after=12.0)
    pulse._listen()
    clock.now += 10_000  # the database was away, or this machine asleep
    pulse._listen()
    assert pulse.silent == frozenset()
    for _ in range(10):
        clock.now += 1
        pulse._listen()
    assert pulse.silent == {theirs}


def test_our_own_trials_are_never_silent(shared, monkeypatch):
    storage, study_id, run = shared
    ours = run()
    clock = Clock(monkeypatch)
    pulse = by_hand(storage, study_id, lost_after=12.0)
    pulse.add(ours)
    for _ in range(30):
        pulse._listen()
        clock.now += 1
    assert pulse.silent == frozenset()
    storage.set_trial_state_values(ours, TrialState.COMPLETE, [1.0])
    pulse._beat()  # one that is over already is no error
