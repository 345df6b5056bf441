from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import StorageError
from l2l_nas.search.reading import read_study
from tests.search.problems import GOALS, open_study, pool_of
from tests.search.test_study import complete


def test_a_study_is_read_without_its_pool_and_left_as_it_is(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip"))
    complete(study, attributes={"loss": 0.25})
    complete(study, state="pruned", values=None, reason="too large")
    complete(study, state="failed", values=None, reason="NaN")
    complete(study, cached=True)
    study.close()
    before = (tmp_path / "study.db").read_bytes()
    assert read_study(tmp_path / "study.db") == (GOALS, study.records)
    assert (tmp_path / "study.db").read_bytes() == before


def test_a_file_that_is_no_study_of_this_program_is_refused(tmp_path):
    path = tmp_path / "study.db"
    with pytest.raises(StorageError, match="there is no study"):
        read_study(path)
    other = optuna.create_study(storage=f"sqlite:///{path}", study_name="search")
    with pytest.raises(StorageError, match="does not read as a study of this program"):
        read_study(path)
    other.set_user_attr("goals", [["accuracy", True]])
    assert read_study(path) == (GOALS[:1], ())
    other.add_trial(optuna.trial.create_trial(value=0.5))
    with pytest.raises(StorageError, match="does not read as a study of this program"):
        read_study(path)
