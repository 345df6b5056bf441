from __future__ import annotations

import contextlib
import sqlite3
from functools import partial

import optuna
import pytest
from optuna.study import StudyDirection

from l2l_nas.errors import StorageError
from l2l_nas.nas.study.reading import choices_of_trial, read_study
from l2l_nas.nas.study.sqlite_file import STUDY_NAME, close_saved, create_saved
from l2l_nas.nas.study.storage import StudyFile
from tests.nas.problems import GOALS, open_study, pool_of
from tests.nas.test_study import complete


def resumed(path):
    StudyFile(path, resume=True).open({"space": [], "goals": []}, [StudyDirection.MAXIMIZE])


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


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE trials",
        "DROP TABLE study_directions",
        "DROP TABLE alembic_version",
        "DROP TABLE trial_heartbeats",
        "DROP TABLE trial_intermediate_values",
        "DROP TABLE trial_system_attributes",
        "DELETE FROM alembic_version",
        "DELETE FROM version_info",
        "UPDATE alembic_version SET version_num = '1e+308'",
        "UPDATE study_directions SET direction = 'null'",
    ],
)
@pytest.mark.parametrize("read", [read_study, partial(choices_of_trial, number=0), resumed])
def test_a_study_that_lacks_what_optuna_would_make_anew_is_refused_and_not_mended(tmp_path, harm, read):
    path = tmp_path / "study.db"
    storage, _ = create_saved(
        path, name=STUDY_NAME, directions=[StudyDirection.MAXIMIZE], metrics=["accuracy"], attributes={"data": "x"}
    )
    close_saved(storage)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(harm)
    before = path.read_bytes()
    with contextlib.suppress(StorageError) if "'" in harm else pytest.raises(StorageError, match=r"study\.db"):
        read(path)
    assert path.read_bytes() == before
