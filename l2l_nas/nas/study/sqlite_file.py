"""Studies in SQLite files: made whole or not at all, checked before Optuna opens them, failures named."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from l2l_nas.errors import L2LError, StorageError, described
from l2l_nas.files import named_failures, sync_folder

# of a run's study
STUDY_NAME = "search"
# so long another program may hold the file before that is an error
LOCK_SECONDS = 10.0
# what a file raises that is not a study, or cannot be written
BROKEN = (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, KeyError)
# all that Optuna's storage reads: where one is missing, it would make an empty one, or fail in its own words
_TABLES = {
    *("studies", "study_directions", "study_user_attributes", "study_system_attributes"),
    *("trials", "trial_params", "trial_values", "trial_user_attributes", "version_info", "alembic_version"),
    *("trial_system_attributes", "trial_intermediate_values", "trial_heartbeats"),
}


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
    now = [draft]
    try:
        storage = _connect(lambda: now[0], creates=True)
        study = optuna.create_study(storage=storage, study_name=name, directions=directions)
        name_metrics(study, metrics)
        for key, value in attributes.items():
            study.set_user_attr(key, value)
        close_saved(storage)
        with named_failures(path):
            os.replace(draft, path)
        sync_folder(path.parent)
        now[0] = path  # it opens its file anew, and another storage would find out anew how to read it
        return storage, study
    except BROKEN as error:
        raise unwritable(path, error) from error


def write_anew(
    path: Path, storage: RDBStorage, *, name: str, attributes: Mapping[str, Any], trials: Sequence[FrozenTrial]
) -> None:
    """Put other attributes and trials in place of those of one study; what else the file holds stays.

    That is made in memory, and SQLite copies it over the file in one transaction: after a kill at any moment the file
    holds what it held, or all that is new, and programs that have it open go on with it.

    Args:
        path: of the file.
        storage: of the file; it is closed.
        name: of the study.
        attributes: those of the study.
        trials: of the study, in the order of their numbers.

    Raises:
        one of BROKEN: it cannot be written; it is as it was.
    """
    memory = sqlite3.connect(":memory:", check_same_thread=False)
    made = RDBStorage("sqlite://", engine_kwargs={"creator": lambda: memory, "poolclass": StaticPool})
    try:
        for each in optuna.get_all_study_names(storage):
            old = storage.get_study_id_from_name(each)
            new = made.create_new_study(storage.get_study_directions(old), each)
            is_ours = each == name
            for key, value in (attributes if is_ours else storage.get_study_user_attrs(old)).items():
                made.set_study_user_attr(new, key, value)
            for key, value in storage.get_study_system_attrs(old).items():
                made.set_study_system_attr(new, key, value)
            for trial in trials if is_ours else storage.get_all_trials(old, deepcopy=False):
                made.create_new_trial(new, template_trial=trial)
        close_saved(storage)
        with contextlib.closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as file:
            memory.backup(file, progress=_refuse_busy)
    finally:
        close_saved(made)


def _refuse_busy(status: int, remaining: int, total: int) -> None:
    """SQLite would try for ever."""
    if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise sqlite3.OperationalError("database is locked")


def name_metrics(study: optuna.Study, names: Sequence[str]) -> None:
    """Give a study's objectives the names that a dashboard shows; those that it has stay."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(names))


def open_saved(path: Path, *, name: str) -> tuple[RDBStorage, optuna.Study]:
    """The study of a file that `count_trials` found to be whole.

    Raises:
        StorageError: it holds no study of this name, or values that none would have.
    """
    with readable(path):
        try:
            storage = _connect(lambda: path)
            study = optuna.load_study(storage=storage, study_name=name)
            study.user_attrs  # noqa: B018 - reads the file
            return storage, study
        except BROKEN as error:
            _refuse_locked(path, error)
            raise StorageError(
                f"{path}: holds no study named '{name}' ({_first_line(error)}); check the folder"
            ) from None
        except RuntimeError as error:  # of another version of Optuna's, or of none
            raise StorageError(f"{path}: {_first_line(error)}; or restore it from a copy") from None


def refuse_directions(study: optuna.Study, directions: Sequence[StudyDirection]) -> None:
    """Refuse a study whose objectives are not those that its attributes tell of: rows were lost.

    Raises:
        ValueError: what there is instead.
    """
    found = [direction.name.lower() for direction in study.directions]
    if found != [direction.name.lower() for direction in directions]:
        raise ValueError(f"objectives: {', '.join(found) or 'none'}")


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
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS)) as connection:
            damage = connection.execute("PRAGMA quick_check").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables >= _TABLES:
                raise sqlite3.DatabaseError(f"without {', '.join(sorted(_TABLES - tables))}")
            for version in ("SELECT version_num FROM alembic_version", "SELECT library_version FROM version_info"):
                rows = connection.execute(version).fetchall()
                if len(rows) != 1 or not isinstance(rows[0][0], str):
                    raise sqlite3.DatabaseError("of no known version")
            for table in sorted(_TABLES):  # text that is none is told here, not by a warning of Optuna's
                for _ in connection.execute(f"SELECT * FROM {table}"):
                    pass
            numbers = [number for (number,) in connection.execute("SELECT number FROM trials ORDER BY trial_id")]
            if numbers != list(range(len(numbers))):
                raise sqlite3.DatabaseError("trials are not numbered as they should be")
            return len(numbers)
    except (sqlite3.Error, TypeError, ValueError) as error:
        _refuse_locked(path, error)
        raise StorageError(
            f"{path}: damaged, not a study ({str(error).splitlines()[0]}); restore it from a copy, or start a new run"
        ) from None


def _connect(path: Callable[[], Path], *, creates: bool = False) -> RDBStorage:
    """Open a file by its path: in an address, a `?`, `%` or brace of a folder's name would mean something else.

    Args:
        path: asked at each connection.
        creates: tables that are missing, which would hide that a study lost them.
    """

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path(), timeout=LOCK_SECONDS, check_same_thread=False)

    return RDBStorage(
        "sqlite://",
        engine_kwargs={"creator": connect, "poolclass": QueuePool},
        skip_table_creation=not creates,
    )


def address_of(path: Path) -> str:
    """A file's address, for other programs that take one."""
    return URL.create("sqlite", database=str(path)).render_as_string()


@contextlib.contextmanager
def readable(place: object) -> Iterator[None]:
    """Report whatever comes of reading a study that is damaged, or somebody else's, in one line.

    Optuna and SQLAlchemy trust what a database holds: a value of a wrong type raises whatever meets it first.

    Raises:
        StorageError: something was raised.
    """
    try:
        yield
    except (L2LError, MemoryError):
        raise
    except Exception as error:
        _refuse_locked(place, error)
        raise StorageError(
            f"{place}: does not read as a study of this program ({_first_line(error)}); restore it from a copy, or "
            "start a new run"
        ) from error


def _refuse_locked(place: object, error: BaseException) -> None:
    """Raises StorageError: another program is at work in the file, which may be whole."""
    if "database is locked" in str(error) or "database table is locked" in str(error):
        raise StorageError(
            f"{place}: locked by another program, such as a viewer of databases; close that, or wait for it, and give "
            "the same command again"
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
    advice = "check that the folder can be written"
    if "full" in cause:
        advice = "free some space"
    elif "locked" in cause:
        advice = "another program is at work in it: close that, or wait for it"
    return StorageError(f"{path}: {cause.splitlines()[0]}; {advice}, then go on with: resume=FOLDER")


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return described(cause).splitlines()[0]
