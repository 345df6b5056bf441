"""What a search tells of itself beside its trials, in the journal that has the trials."""

from __future__ import annotations

import os

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.nas.study.reading import load_study, read_study
from tests.nas.problems import open_study, pool_of
from tests.nas.study.test_study import complete
from tests.studies import change_events, saved_study

POOL = pool_of("tanh", "relu", "skip")


def names(path):
    return [event["event"] for event in read_study(path / "study.log").events]


def test_events_and_trials_have_one_order_over_all_sessions(tmp_path):
    study = open_study(tmp_path, POOL)
    study.log.write("start", data={"a": [1, None]})
    complete(study)
    complete(study)
    study.log.write("phase", name="finalists")
    study = open_study(tmp_path, POOL, resume=True)
    complete(study)
    study.log.write("phase", name="report")
    complete(study)
    assert names(tmp_path) == ["start", "trial", "trial", "phase", "trial", "phase", "trial"]
    assert [dict(event) for event in read_study(tmp_path / "study.log").events] == study.log.events
    assert study.log.events[0]["data"] == {"a": [1, None]}
    assert len(saved_study(tmp_path).trials) == 4  # by Optuna's own reader
    assert not load_study(tmp_path / "study.log").user_attrs.keys() & {"start", "event_00000000"}


def test_an_event_that_was_interrupted_when_it_was_written_is_there_beside_the_next(tmp_path, monkeypatch):
    study = open_study(tmp_path, POOL)
    study.log.write("start")

    def interrupted(number):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.log.write("result", content={})
    study.log.write("stopped")
    assert names(tmp_path) == ["start", "result", "stopped"]


def test_an_event_that_is_none_is_one_line_that_names_the_study(tmp_path):
    study = open_study(tmp_path, POOL)
    study.log.write("start")
    change_events(tmp_path, lambda event: {"event": "start", "time": 0.0})
    for read in (lambda: read_study(tmp_path / "study.log"), lambda: open_study(tmp_path, POOL, resume=True)):
        with pytest.raises(StorageError, match=r"study\.log: does not read as a study of this program"):
            read()
