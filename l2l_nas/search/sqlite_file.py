"""Studies in SQLite files: made whole or not at all, checked before Optuna opens them, failures named."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from sqlalchemy.exc import SQLAlchemyError

from l2l_nas.errors import StorageError
from l2l_nas.files import named_failures, sync_folder

# of a run's study
STUDY_NAME = "search"
# what a file raises that is not a study, or cannot be written
BROKEN = (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, KeyError)


def create_saved(
    path: Path,
    *,
    name: str,
    directions: Sequence[StudyDirection],
    metrics: Sequence[str],
    attributes: Mapping[str, Any],
) -> tuple[RDBStorage, optuna.Study]:
    """A new study, under its file's name only when it is whole: Optuna needs several commits to make one.

    Raises:
        StorageError: it cannot be written.
    """
    draft = draft_of(path)
    with named_failures(path):
        for leftover in path.parent.glob(draft.name + "*"):
            leftover.unlink()
    try:
        storage = RDBStorage(f"sqlite:///{draft}")
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        name_metrics(study, metrics)
        for key, value in attributes.items():
            study.set_user_attr(key, value)
        close_saved(storage)
        with named_failures(path):
            os.replace(draft, path)
        sync_folder(path.parent)
        storage = RDBStorage(f"sqlite:///{path}")
        return storage, optuna.load_study(storage=storage, study_name=name)
    except BROKEN as error:
        raise unwritable(path, error) from error


def name_metrics(study: optuna.Study, names: Sequence[str]) -> None:
    """Give a study's objectives the names that a dashboard shows; those that it has stay."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(names))


def open_saved(path: Path, *, name: str) -> tuple[RDBStorage, optuna.Study]:
    """The study of a file that `count_trials` found to be whole.

    Raises:
        StorageError: it holds no study of this name.
    """
    try:
        storage = RDBStorage(f"sqlite:///{path}")
        study = optuna.load_study(storage=storage, study_name=name)
        study.user_attrs  # noqa: B018 - reads the file
        return storage, study
    except BROKEN as error:
        raise StorageError(f"{path}: holds no study named '{name}' ({_first_line(error)}); check the folder") from None


def count_trials(path: Path) -> int:
    """How many trials a file holds, read without Optuna, whose storage would create what is missing.

    Raises:
        StorageError: it is missing or damaged.
    """
    if not path.is_file():
        raise StorageError(f"{path}: there is no study to resume; check the folder, or start without resume")
    try:
        # "rw" creates nothing, and unlike "ro" may roll back what a killed process left half written
        address = f"file:{quote(str(path))}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
            damage = connection.execute("PRAGMA quick_check").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            return int(connection.execute("SELECT COUNT(*) FROM trials").fetchone()[0])
    except sqlite3.Error as error:
        raise StorageError(
            f"{path}: damaged, not a study ({str(error).splitlines()[0]}); restore it from a copy, or start a new run"
        ) from None


def close_saved(storage: RDBStorage) -> None:
    """Let go of the file."""
    storage.remove_session()
    storage.engine.dispose()


def draft_of(path: Path) -> Path:
    """Where a study is made; a kill may leave it behind."""
    return path.with_name(f".{path.name}.tmp")


def unwritable(path: Path, error: BaseException) -> StorageError:
    """What to tell of a file that could not be written."""
    cause = str(getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error)
    advice = "free some space" if "full" in cause else "check that the folder can be written"
    return StorageError(f"{path}: {cause.splitlines()[0]}; {advice}, then go on with: resume=FOLDER")


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error)
    return text.splitlines()[0] if text else type(error).__name__
