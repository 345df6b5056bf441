"""Reads a saved study: for a report, without the pool that was searched; or for Optuna's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import optuna

from l2l_nas.errors import SpaceError, StorageError
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.nas.study.journal import STUDY_NAME, open_journal, readable
from l2l_nas.nas.study.study import record_of
from l2l_nas.space.architecture import Architecture


def read_study(path: Path) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials.

    Raises:
        StorageError: the study is missing, damaged, or not one of this program.
    """
    study = load_study(path)
    with readable(path):
        goals = tuple(Goal(str(name), bool(maximize)) for name, maximize in study.user_attrs["goals"])
        finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
        if not 1 <= len(goals) <= 3:
            raise ValueError(f"{len(goals)} objectives")
        return goals, tuple(record_of(trial, goals, _architecture) for trial in finished)


def _architecture(choices: Sequence[str]) -> Architecture:
    try:
        return Architecture.from_choices(choices)
    except SpaceError as error:
        raise ValueError(str(error)) from None


def load_study(path: Path) -> optuna.Study:
    """The study of a run's folder, for Optuna's own functions.

    Raises:
        StorageError: it is missing, damaged, or not one of this program.
    """
    return open_journal(path, name=STUDY_NAME)


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
    from l2l_nas.nas.study.database import (  # SQLAlchemy: only where needed
        failures,
        newest_name,
        open_storage,
        parse_address,
    )

    address = parse_address(storage, password=password)
    address.refuse_missing()
    opened = open_storage(address)
    try:
        return optuna.load_study(study_name=newest_name(opened, name), storage=opened)
    except KeyError:
        raise StorageError(f"{address.shown}: there is no study '{name}'") from None
    except failures() as error:
        raise StorageError(f"{address.shown}: {address.explain(error)}") from None


def choices_of_trial(path: Path, number: int) -> tuple[str, ...]:
    """The architecture of a trial in a saved study.

    Raises:
        StorageError: there is no such study or trial, or it is damaged.
    """
    _, records = read_study(path)
    found = {record.number: record.architecture.choices for record in records}
    if number not in found:
        raise StorageError(f"{path}: has no trial {number}; it has 0 to {max(found, default=-1)}")
    return found[number]
