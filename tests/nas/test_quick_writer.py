from __future__ import annotations

import sqlite3

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from l2l_nas.nas.study.quick_writer import QuickWriter

DIRECTIONS = ("maximize", "minimize")
TABLES = ("trials", "trial_values", "trial_params", "trial_user_attributes", "trial_system_attributes")


def trials():
    distributions = {"a": CategoricalDistribution(["x", "y"]), "b": IntDistribution(0, 9)}
    for state, values in ((TrialState.COMPLETE, [0.5, 30.0]), (TrialState.PRUNED, None), (TrialState.FAIL, None)):
        yield create_trial(
            state=state,
            values=values,
            params={"a": "y", "b": 3},
            distributions=distributions,
            user_attrs={"architecture": ["y"], "text": 'a "b" \u00e9', "none": None},
            system_attrs={"NSGAIISampler:generation": 2},
        )


def new_study(path):
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    return storage, optuna.create_study(storage=storage, study_name="search", directions=DIRECTIONS)


def close(storage):
    storage.remove_session()
    storage.engine.dispose()


def test_its_rows_are_those_that_optuna_writes(tmp_path):
    written = list(trials())
    storage, study = new_study(tmp_path / "optuna.db")
    study.add_trials(written)
    close(storage)
    storage, study = new_study(tmp_path / "quick.db")
    writer = QuickWriter(tmp_path / "quick.db", name="search")
    for trial in written:
        assert writer.can_add(trial)
        writer.add(trial)
    writer.close()
    rows = []
    for name in ("optuna.db", "quick.db"):
        with sqlite3.connect(tmp_path / name) as base:
            rows.append({table: base.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES})
        base.close()
    assert rows[0] == rows[1]
    assert [trial.number for trial in study.trials] == [0, 1, 2]
    assert study.trials[0].params == {"a": "y", "b": 3}
    study.add_trial(written[0])  # and Optuna goes on from there
    assert study.trials[3].number == 3
    close(storage)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE trials ADD COLUMN more INTEGER",
        "UPDATE version_info SET schema_version = 13",
        "DROP TABLE version_info",
    ],
)
def test_tables_of_another_optuna_are_left_to_optuna(tmp_path, change):
    storage, _ = new_study(tmp_path / "study.db")
    close(storage)
    with sqlite3.connect(tmp_path / "study.db") as base:
        base.execute(change)
    base.close()
    writer = QuickWriter(tmp_path / "study.db", name="search")
    assert not any(writer.can_add(trial) for trial in trials())
    writer.close()


def test_trials_that_are_not_plain_are_left_to_optuna(tmp_path):
    storage, _ = new_study(tmp_path / "study.db")
    close(storage)
    writer = QuickWriter(tmp_path / "study.db", name="search")
    assert not writer.can_add(create_trial(values=[float("inf"), 1.0]))
    assert not writer.can_add(create_trial(values=[1.0, 1.0], intermediate_values={1: 0.5}))
    writer.close()


def test_what_could_not_be_written_leaves_nothing(tmp_path):
    storage, study = new_study(tmp_path / "study.db")
    writer = QuickWriter(tmp_path / "study.db", name="search")
    bad = create_trial(values=[0.5, 1.0], user_attrs={"x": 1})
    bad.user_attrs["y"] = object()
    with pytest.raises(TypeError):
        writer.add(bad)
    assert study.trials == []
    writer.add(next(trials()))
    assert len(study.trials) == 1
    writer.close()
    close(storage)
