"""Reads a saved study for a report: without the pool that was searched, and without changing it."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import RDBStorage

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.nas.study.sqlite_file import STUDY_NAME, close_saved, count_trials, open_saved, readable
from l2l_nas.nas.study.study import record_of
from l2l_nas.space.architecture import Architecture


def read_study(path: Path) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials.

    Raises:
        StorageError: the study is missing, damaged, or not one of this program.
    """
    if not path.is_file():
        raise StorageError(f"{path}: there is no study; check the folder")
    count_trials(path)  # Optuna would write into a file that is none
    storage: RDBStorage | None = None
    try:
        with readable(path):
            storage, study = open_saved(path, name=STUDY_NAME)
            goals = tuple(Goal(str(name), bool(maximize)) for name, maximize in study.user_attrs["goals"])
            finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
            records = tuple(record_of(trial, goals, Architecture.from_choices) for trial in finished)
            if not 1 <= len(goals) <= 3:
                raise ValueError(f"{len(goals)} objectives")
    finally:
        if storage is not None:
            close_saved(storage)
    return goals, records


def load_study(path: Path) -> optuna.Study:
    """The study of a run's folder, for Optuna's own functions.

    Raises:
        StorageError: it is missing, damaged, or not one of this program.
    """
    if not path.is_file():
        raise StorageError(f"{path}: there is no study; one in a database is read by optuna.load_study")
    count_trials(path)
    return open_saved(path, name=STUDY_NAME)[1]


def load_database_study(storage: str, name: str, *, password: str) -> optuna.Study:
    """A study in a database, for Optuna's own functions.

    Args:
        storage: its address, as `search.storage` takes it.
        name: of the study there.
        password: of the database, if it is not part of the address.

    Raises:
        SettingError: it is no address.
        StorageError: the database is away, or has no such study.
    """
    from l2l_nas.nas.study.database import failures, open_storage, parse_address  # SQLAlchemy: only where needed

    address = parse_address(storage, password=password)
    address.refuse_missing()
    try:
        return optuna.load_study(study_name=name, storage=open_storage(address))
    except KeyError:
        raise StorageError(f"{address.shown}: there is no study '{name}'") from None
    except failures() as error:
        raise StorageError(f"{address.shown}: {address.explain(error)}") from None


def choices_of_trial(path: Path, number: int) -> tuple[str, ...]:
    """The architecture of a trial in a saved study.

    Raises:
        StorageError: there is no such study or trial, or it is damaged.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no such study; a trial's architecture is in the folder of a search")
    _, records = read_study(path)
    found = {record.number: record.architecture.choices for record in records}
    if number not in found:
        raise StorageError(f"{path}: has no trial {number}; it has 0 to {max(found, default=-1)}")
    return found[number]
