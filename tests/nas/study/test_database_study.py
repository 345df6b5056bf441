"""A study in a database: one driver, failures of the database, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import optuna
import pytest
from sqlalchemy.exc import OperationalError

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import State
from l2l_nas.nas.study.choices import with_choices
from l2l_nas.nas.study.database import is_outage, parse_address
from l2l_nas.nas.study.database_study import DatabaseStudy
from l2l_nas.nas.study.reading import load_database_study
from l2l_nas.nas.study.study import Study
from tests.nas.problems import GOALS, pool_of

POOL = pool_of("tanh", "relu")
VALUES = {"accuracy": 0.5, "parameters": 30.0}


def open_in(tmp_path, folder="run", *, pool=POOL, **changes):
    said = []
    values = {"name": "search", "is_known": False, "retry_seconds": 5.0, "waiting": said.append}
    address = parse_address(f"sqlite:///{tmp_path / 'studies.db'}")
    store = DatabaseStudy(address, folder=tmp_path / folder, **{**values, **changes})
    study = Study(store, pool=pool, goals=GOALS, sampler="random", seed=0, num_trials=10, data="data", scoring={})
    return study, store, said


def saved_in(tmp_path):
    return optuna.load_study(study_name="search", storage=f"sqlite:///{tmp_path / 'studies.db'}")


def complete(study):
    return study.tell(study.ask()[0], State.COMPLETE, VALUES)


def test_a_study_goes_on_where_it_was_and_its_driver_clears_its_name(tmp_path):
    study, _, _ = open_in(tmp_path)
    assert [complete(study).number for _ in range(3)] == [0, 1, 2]
    assert saved_in(tmp_path).user_attrs["driver"]["process"] == os.getpid()
    before = study.records
    study.close()
    assert saved_in(tmp_path).user_attrs["driver"] is None
    study, _, _ = open_in(tmp_path, "another")
    assert study.records == before
    assert complete(study).number == 3
    study.close()


def test_a_study_that_a_process_writes_is_refused_until_that_is_gone(tmp_path):
    study, _, _ = open_in(tmp_path)
    complete(study)
    with pytest.raises(StorageError, match=f"process {os.getpid()} on .* has been writing it since .*'driver', None"):
        open_in(tmp_path, "another")
    open_in(tmp_path)[0].close()  # whoever opens the same folder holds its lock
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    saved = saved_in(tmp_path)
    driver = {**(study._store._driver), "process": gone.pid}
    saved.set_user_attr("driver", driver)
    open_in(tmp_path, "another")[0].close()
    saved.set_user_attr("driver", {**driver, "host": "elsewhere"})
    with pytest.raises(StorageError, match="on elsewhere has been writing it"):
        open_in(tmp_path)


def test_a_driver_whose_study_was_taken_writes_nothing_more(tmp_path):
    first, _, _ = open_in(tmp_path)
    complete(first)
    saved_in(tmp_path).set_user_attr("driver", None)
    second, _, _ = open_in(tmp_path, "another")
    with pytest.raises(StorageError, match=f"written by process {os.getpid()} on .* so this process stops"):
        complete(first)
    assert complete(second).number == 1
    first.close()
    assert saved_in(tmp_path).user_attrs["driver"]["folder"].endswith("another")
    second.close()
    assert len(saved_in(tmp_path).trials) == 2


def outage():
    return OperationalError("SELECT 1", {}, Exception("connection refused"))


def failing(monkeypatch, storage, name, *failures, does=False):
    """Have a storage's method raise these first; `does` what it is asked for all the same."""
    left, real = list(failures), getattr(storage, name)

    def method(*words, **more):
        if left:
            if does:
                real(*words, **more)
            raise left.pop(0)
        return real(*words, **more)

    monkeypatch.setattr(storage, name, method)


def test_an_outage_is_waited_out(tmp_path, monkeypatch):
    study, store, said = open_in(tmp_path)
    failing(monkeypatch, store._storage, "create_new_trial", outage(), ConnectionResetError())
    assert complete(study).number == 0
    assert len(said) == 2
    assert "the database does not answer, retrying" in said[0]
    study.close()


def test_a_trial_that_was_taken_before_the_database_went_away_is_there_once(tmp_path, monkeypatch):
    study, store, _ = open_in(tmp_path)
    complete(study)
    failing(monkeypatch, store._storage, "create_new_trial", outage(), does=True)
    assert complete(study).number == 1
    assert len(saved_in(tmp_path).trials) == 2
    study.close()


def test_an_outage_that_lasts_ends_with_what_to_do(tmp_path, monkeypatch):
    study, store, said = open_in(tmp_path, retry_seconds=0.3)
    failing(monkeypatch, store._storage, "create_new_trial", *[outage() for _ in range(99)])
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"^sqlite:.*: connection refused; .*resume=FOLDER$"):
        complete(study)
    assert 0.3 <= time.monotonic() - began < 5
    assert said
    study.close()


def test_what_waiting_cannot_heal_is_told_at_once(tmp_path):
    study, _, said = open_in(tmp_path, retry_seconds=60.0)
    (tmp_path / "studies.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StorageError, match=r"studies\.db"):
        complete(study)
    assert said == []
    assert not is_outage(OSError(28, "No space left on device"))
    assert not is_outage(KeyError("x"))


def test_a_study_of_another_program_or_one_that_is_gone_is_refused(tmp_path):
    with pytest.raises(StorageError, match="is not there"):
        open_in(tmp_path, is_known=True)
    optuna.create_study(study_name="other", storage=f"sqlite:///{tmp_path / 'studies.db'}")
    with pytest.raises(StorageError, match="no such study any more"):
        open_in(tmp_path, is_known=True)
    theirs = optuna.load_study(study_name="other", storage=f"sqlite:///{tmp_path / 'studies.db'}")
    theirs.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(StorageError, match="made by another program"):
        open_in(tmp_path, name="other")


def test_a_pool_with_new_candidates_goes_on_in_a_study_of_its_own_with_all_trials(tmp_path):
    study, _, _ = open_in(tmp_path)
    for _ in range(3):
        complete(study)
    study.close()
    said = []
    for pool, place in ((pool_of("tanh", "wide"), "search (2)"), (pool_of("wide", "normed"), "search (3)")):
        before = study.records
        study, store, _ = open_in(tmp_path, pool=pool, say=said.append)
        assert said[-1].endswith(f"so its {len(before)} trials go on in '{place}'")
        assert store.place.endswith(f"study '{place}'")
        assert [replace(record, in_space=True) for record in study.records] == [
            replace(r, in_space=True) for r in before
        ]
        assert complete(study).number == len(before)
        study.close()
    again, store, _ = open_in(tmp_path, pool=pool_of("wide", "relu"), say=said.append)  # all of it was there once
    assert (len(said), store.place[-12:]) == (2, "'search (3)'")
    assert len(again.records) == 5
    again.close()
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    assert optuna.get_all_study_names(url) == ["search", "search (2)", "search (3)"]
    last = load_database_study(url, "search", password="")
    assert (last.study_name, last.metric_names) == ("search (3)", [goal.name for goal in GOALS])
    ever = ("normed", "relu", "tanh", "wide")
    assert {one.choices for trial in last.trials for one in trial.distributions.values()} == {ever}
    assert [set(trial.params) for trial in last.trials] == [{"p0", "p1"}] * 5


def test_a_kill_while_a_study_grows_leaves_the_one_before(tmp_path, monkeypatch):
    study, _, _ = open_in(tmp_path)
    for _ in range(4):
        complete(study)
    before = study.records
    study.close()
    written = []

    def dies(trial, choices, *, positions):
        written.append(trial)
        if len(written) == 3:
            raise KeyboardInterrupt
        return with_choices(trial, choices, positions=positions)

    monkeypatch.setattr("l2l_nas.nas.study.database_study.with_choices", dies)
    with pytest.raises(KeyboardInterrupt):
        open_in(tmp_path, pool=pool_of("tanh", "relu", "wide"))
    assert len(saved_in(tmp_path).trials) == 4
    assert "continued_in" not in saved_in(tmp_path).user_attrs
    study, store, _ = open_in(tmp_path, pool=pool_of("tanh", "relu", "wide"))
    assert (study.records, store.place[-12:]) == (before, "'search (2)'")
    study.close()
