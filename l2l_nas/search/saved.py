"""Where finished trials are kept: what a study needs of it, and the file `study.db` of a run that searches alone."""

from __future__ import annotations

import contextlib
import enum
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from sqlalchemy.exc import SQLAlchemyError

from l2l_nas.eps.identity import difference, joined
from l2l_nas.errors import StorageError
from l2l_nas.files import named_failures, sync_folder
from l2l_nas.search.quick import QuickWriter

_NAME = "search"
_BROKEN = (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, KeyError)


class Verdict(enum.Enum):
    """What becomes of a claim: this process evaluates it; another does, or has; all trials asked for are claimed."""

    OURS = enum.auto()
    TAKEN = enum.auto()
    FULL = enum.auto()


@dataclass(frozen=True)
class Kept:
    """A finished trial as it was saved.

    Args:
        number: in the saved study.
        is_ours: False if it counts as lost, since this process gave no sign of life for too long.
    """

    number: int
    is_ours: bool = True


Opened = tuple[Mapping[str, Any], list[FrozenTrial]]


class Store(Protocol):
    """Keeps a study's trials."""

    is_shared: bool
    """Whether other processes evaluate trials of this study."""

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """Create or find the study.

        Args:
            identity: what a study must have in common with this search, as JSON.

        Returns:
            Its space (see `space_of`) as it was when the study was made, and its finished trials.

        Raises:
            StorageError: it is damaged, of another search, or cannot be reached.
        """

    def claim(self, trial: FrozenTrial, *, total: int) -> Verdict:
        """Be the one that evaluates a trial.

        Args:
            trial: running; its number is that of the study in memory.
            total: how many are asked for in all.
        """

    def save(self, told: FrozenTrial) -> Kept:
        """Keep a finished trial; what was claimed survives from here on whatever happens.

        Raises:
            StorageError: it could not be written.
        """

    def news(self) -> list[FrozenTrial]:
        """Trials of others that began or ended since the last call, in the order of their numbers.

        Raises:
            StorageError: the storage is away.
        """

    def given_up(self, digest: str) -> bool:
        """Whether an architecture was lost so often that nobody tries it again."""

    def to_retry(self) -> list[FrozenTrial]:
        """Lost trials whose architectures nobody evaluates, nor has."""

    def close(self) -> None:
        """Let go of it."""


class Alone:
    """The part of a store that is about others, where there are none."""

    is_shared = False

    def claim(self, trial: FrozenTrial, *, total: int) -> Verdict:
        """See `Store`."""
        return Verdict.OURS

    def news(self) -> list[FrozenTrial]:
        """See `Store`."""
        return []

    def given_up(self, digest: str) -> bool:
        """See `Store`."""
        return False

    def to_retry(self) -> list[FrozenTrial]:
        """See `Store`."""
        return []


class Unsaved(Alone):
    """Keeps nothing, for benches."""

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """See `Store`."""
        return identity["space"], []

    def save(self, told: FrozenTrial) -> Kept:
        """See `Store`."""
        return Kept(told.number)

    def close(self) -> None:
        """See `Store`."""


class StudyFile(Alone):
    """A SQLite file that one process at a time writes: each finished trial in one commit.

    Args:
        path: created unless `resume`.
        resume: go on with the study that it holds.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self._resume = resume
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None
        self._quick: QuickWriter | None = None

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """See `Store`."""
        if not self._resume:
            self._create(identity, directions)
            return identity["space"], []
        self._refuse_damaged()
        study = self._open(identity)
        finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
        return study.user_attrs["space"], finished

    def save(self, told: FrozenTrial) -> Kept:
        """See `Store`."""
        assert self._study is not None
        try:
            if self._quick is None:
                self._quick = QuickWriter(self._path, name=_NAME)
            if self._quick.can_add(told):
                return Kept(self._quick.add(told))
            self._study.add_trial(told)
            return Kept(self._study.get_trials(deepcopy=False)[-1].number)
        except _BROKEN as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        """See `Store`."""
        if self._quick is not None:
            self._quick.close()
        if self._storage is not None:
            _close(self._storage)

    def _refuse_damaged(self) -> None:
        """Look at the file without Optuna, whose storage would create what is missing."""
        if not self._path.is_file():
            raise StorageError(f"{self._path}: there is no study to resume; check the folder, or start without resume")
        try:
            # "rw" creates nothing, and unlike "ro" may roll back what a killed process left half written
            address = f"file:{quote(str(self._path))}?mode=rw"
            with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
                damage = connection.execute("PRAGMA quick_check").fetchone()[0]
                if damage != "ok":
                    raise sqlite3.DatabaseError(damage)
                connection.execute("SELECT COUNT(*) FROM trials").fetchone()
        except sqlite3.Error as error:
            raise StorageError(
                f"{self._path}: damaged, not a study ({str(error).splitlines()[0]}); restore it from a copy, or "
                "start a new run"
            ) from None

    def _create(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> None:
        """A new study, under its name only when it is whole: Optuna needs several commits to make one."""
        draft = draft_of(self._path)
        with named_failures(self._path):
            for leftover in self._path.parent.glob(draft.name + "*"):
                leftover.unlink()
        try:
            storage = RDBStorage(f"sqlite:///{draft}")
            study = optuna.create_study(storage=storage, study_name=_NAME, directions=directions)
            for name, value in identity.items():
                study.set_user_attr(name, value)
            _close(storage)
            with named_failures(self._path):
                os.replace(draft, self._path)
            sync_folder(self._path.parent)
            self._storage = RDBStorage(f"sqlite:///{self._path}")
            self._study = optuna.load_study(storage=self._storage, study_name=_NAME)
        except _BROKEN as error:
            raise _unwritable(self._path, error) from error

    def _open(self, identity: Mapping[str, Any]) -> optuna.Study:
        try:
            self._storage = RDBStorage(f"sqlite:///{self._path}")
            self._study = optuna.load_study(storage=self._storage, study_name=_NAME)
            found = self._study.user_attrs
        except _BROKEN as error:
            raise StorageError(
                f"{self._path}: holds no study named '{_NAME}' ({_first_line(error)}); check the folder"
            ) from None
        try:
            refuse_other(str(self._path), found, identity)
            space = joined(found["space"], identity["space"])
            if space != found["space"]:
                self._study.set_user_attr("space", space)
        except _BROKEN as error:
            raise _unwritable(self._path, error) from error
        except StorageError:
            _close(self._storage)
            raise
        return self._study


def refuse_other(place: str, found: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a study of another search.

    Args:
        place: where it is saved, for the message.
        found: the study's attributes.
        identity: this search's; attributes that it lacks are not compared.

    Raises:
        StorageError: with what differs.
    """
    reason = difference(found.get("space"), identity["space"])
    if reason == "another space":
        raise StorageError(f"{place}: this study searches another space; resume it with the space it was started with")
    if reason:
        raise StorageError(f"{place}: this study knows {reason}; give the new one another name")
    if found.get("data") != identity["data"]:
        raise StorageError(
            f"{place}: this study was scored on other validation data; resume it with the data it was started with"
        )
    if found.get("goals") != identity["goals"]:
        before, now = (
            ", ".join(f"{name} {'up' if up else 'down'}" for name, up in goals)
            for goals in (found.get("goals") or [], identity["goals"])
        )
        raise StorageError(
            f"{place}: this study's objectives are {before}, not {now}; resume it with those it was started with"
        )
    scoring, ours = found.get("scoring") or {}, identity.get("scoring") or {}
    for name in ours:
        if ours[name] != scoring.get(name):
            raise StorageError(
                f"{place}: this study's trials are scored with {name}={scoring.get(name)}, not {ours[name]}; "
                "give the same value, or another search.study"
            )


def _close(storage: RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()


def draft_of(path: Path) -> Path:
    """Where a study is made; a kill may leave it behind."""
    return path.with_name(f".{path.name}.tmp")


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error)
    return text.splitlines()[0] if text else type(error).__name__


def _unwritable(path: Path, error: BaseException) -> StorageError:
    cause = str(getattr(error.__cause__, "orig", None) or getattr(error, "orig", None) or error)
    advice = "free some space" if "full" in cause else "check that the folder can be written"
    return StorageError(f"{path}: {cause.splitlines()[0]}; {advice}, then go on with resume=FOLDER")
