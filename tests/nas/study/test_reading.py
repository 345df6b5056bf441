from __future__ import annotations

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import State
from l2l_nas.nas.study.reading import read_study
from tests.nas.problems import GOALS, open_study, pool_of
from tests.nas.study.test_study import complete


def test_a_study_is_read_without_its_pool_and_left_as_it_is(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip"))
    complete(study, metrics={"loss": 0.25})
    complete(study, state=State.PRUNED, values=None, reason="too large")
    complete(study, state=State.FAILED, values=None, reason="NaN")
    complete(study, cached=True)
    before = (tmp_path / "study.log").read_bytes()
    found = read_study(tmp_path / "study.log")
    assert (found.goals, found.records) == (GOALS, study.records)
    assert (tmp_path / "study.log").read_bytes() == before


def test_a_file_that_is_no_study_of_this_program_is_refused(tmp_path):
    path = tmp_path / "study.log"
    with pytest.raises(StorageError, match="there is no study"):
        read_study(path)
    other = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(path))), study_name="search")
    with pytest.raises(StorageError, match="does not read as a study of this program"):
        read_study(path)
    for name, content in {"goals": [["accuracy", True]], "space": {"order": [], "candidates": {}}, "data": ""}.items():
        other.set_user_attr(name, content)
    found = read_study(path)
    assert (found.goals, found.records) == (GOALS[:1], ())
    other.add_trial(optuna.trial.create_trial(value=0.5))
    with pytest.raises(StorageError, match="does not read as a study of this program"):
        read_study(path)
