from __future__ import annotations

import threading
import time

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from l2l_nas.errors import StorageError
from l2l_nas.nas.distributed.heartbeat import BEAT, EVERY, Heartbeat
from l2l_nas.nas.study.database import open_storage, parse_address


@pytest.fixture
def shared(tmp_path):
    """A storage, and a function that adds a running trial to its study; its number and its id."""
    storage = open_storage(parse_address(f"journal:///{tmp_path / 'study.log'}"))
    study_id = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")

    def run(every: float | None = 0.05):
        number = storage.get_n_trials(study_id)
        trial = create_trial(state=TrialState.RUNNING, system_attrs={EVERY: every} if every else {})
        return number, storage.create_new_trial(study_id, trial)

    return storage, study_id, run


class Clock:
    """Time as the heartbeat reads it; its thread waits for nobody here, as rounds are taken manually."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("l2l_nas.nas.distributed.heartbeat.time.monotonic", lambda: self.now)


def by_hand(storage, study_id, **options):
    heartbeat = Heartbeat(storage, study_id, **options)
    heartbeat.close()
    return heartbeat


@pytest.mark.slow
def test_the_thread_beats_for_running_trials_and_others_hear_it(shared):
    storage, study_id, run = shared
    ours, trial_id = run()
    heartbeat = Heartbeat(storage, study_id, lost_after=0.6)
    listener = Heartbeat(storage, study_id, lost_after=6.0)  # far longer than any pause of a busy machine
    heartbeat.add(ours, trial_id)
    deadline = time.monotonic() + 30
    while storage.get_trial(trial_id).system_attrs.get(BEAT, 0) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert listener.silent == frozenset()
    heartbeat.remove(ours)
    while listener.silent != {ours}:
        assert time.monotonic() < deadline + 30
        time.sleep(0.02)
    assert heartbeat.silent in (frozenset(), frozenset({ours}))
    for one in (heartbeat, listener):
        one.close()
        assert not one._thread.is_alive()


def test_a_silence_is_measured_by_the_reader_s_clock_and_ends_with_a_beat(shared, monkeypatch):
    storage, study_id, run = shared
    theirs, trial_id = run()
    clock = Clock(monkeypatch)
    heartbeat = by_hand(storage, study_id, lost_after=12.0)  # a round a second
    for _ in range(12):
        heartbeat._listen()
        clock.now += 1
    assert heartbeat.silent == frozenset()  # the first reading begins the silence: 11 s
    storage.set_trial_system_attr(trial_id, BEAT, 1)
    heartbeat._listen()
    for _ in range(11):
        clock.now += 1
        heartbeat._listen()
    assert heartbeat.silent == frozenset()
    clock.now += 1
    heartbeat._listen()
    assert heartbeat.silent == {theirs}
    storage.set_trial_state_values(trial_id, TrialState.FAIL)
    heartbeat._listen()
    assert heartbeat.silent == frozenset()


@pytest.mark.parametrize("says", [True, False])
def test_a_trial_of_a_patient_process_is_not_lost_to_one_that_is_not_before_it_misses_beats(shared, monkeypatch, says):
    storage, study_id, run = shared
    clock = Clock(monkeypatch)
    patient = by_hand(storage, study_id, lost_after=60.0)
    theirs, trial_id = run(patient.interval if says else None)  # a process of before does not
    patient.add(theirs, trial_id)
    heartbeat = by_hand(storage, study_id, lost_after=1.2)
    silent = []
    for turn in range(300):
        if turn % (10 * patient.interval) == 0 and turn < 150:
            patient._beat()
        heartbeat._listen()
        silent.append(theirs in heartbeat.silent)
        clock.now += 0.1
    assert silent.index(True) >= 100 + 10 * 3 * patient.interval - 1


def test_after_an_outage_nobody_is_lost_before_he_had_time_to_show_up(shared, monkeypatch):
    storage, study_id, run = shared
    theirs, _ = run()
    clock = Clock(monkeypatch)
    heartbeat = by_hand(storage, study_id, lost_after=12.0)
    heartbeat._listen()
    clock.now += 10_000  # the database was away, or this machine asleep
    heartbeat._listen()
    assert heartbeat.silent == frozenset()
    for _ in range(10):
        clock.now += 1
        heartbeat._listen()
    assert heartbeat.silent == {theirs}


def test_our_own_trials_are_never_silent(shared, monkeypatch):
    storage, study_id, run = shared
    ours, trial_id = run()
    clock = Clock(monkeypatch)
    heartbeat = by_hand(storage, study_id, lost_after=12.0)
    heartbeat.add(ours, trial_id)
    for _ in range(30):
        heartbeat._listen()
        clock.now += 1
    assert heartbeat.silent == frozenset()
    storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [1.0])
    heartbeat._beat()  # one that is over already is no error


def test_a_failure_that_passes_costs_nothing_and_one_that_stays_is_told_the_main_thread(shared, monkeypatch):
    storage, study_id, run = shared
    number, trial_id = run()
    real, failing = storage.get_all_trials, threading.Event()

    def read(*args, **kwargs):
        if failing.is_set():
            raise AssertionError("half a line")
        return real(*args, **kwargs)

    monkeypatch.setattr(storage, "get_all_trials", read)
    heartbeat = Heartbeat(storage, study_id, lost_after=0.12)
    heartbeat.add(number, trial_id)
    deadline = time.monotonic() + 30

    def until(condition):
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def is_told():
        try:
            heartbeat.check()
        except StorageError as error:
            return isinstance(error.__cause__, AssertionError)
        return False

    failing.set()
    until(is_told)
    failing.clear()
    until(lambda: not is_told())
    beats = storage.get_trial(trial_id).system_attrs[BEAT]
    until(lambda: storage.get_trial(trial_id).system_attrs[BEAT] > beats)
    heartbeat.close()
