"""Where finished trials are stored: what a study needs of it, and the file `study.db` of a run's folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from l2l_nas.eps.identity import difference, joined
from l2l_nas.errors import StorageError
from l2l_nas.nas.study.encoding import all_choices, expressed
from l2l_nas.nas.study.sqlite_file import (
    BROKEN,
    STUDY_NAME,
    close_saved,
    count_trials,
    create_saved,
    name_metrics,
    open_saved,
    readable,
    refuse_directions,
    unwritable,
    write_anew,
)
from l2l_nas.training.data import other_data

Opened = tuple[Mapping[str, Any], list[FrozenTrial]]


class Store(Protocol):
    """Keeps a study's trials."""

    place: str
    """Where, for messages."""

    is_in_folder: bool
    """Whether it lies in the run's folder."""

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """Create or find the study.

        Args:
            identity: what a study must have in common with this search, as JSON.

        Returns:
            Its space (see `space_of`), whose candidates are the choices of its parameters, and its finished trials.

        Raises:
            StorageError: it is damaged, of another search, or cannot be reached.
        """

    def save(self, ended: FrozenTrial) -> int:
        """Keep a finished trial, from here on whatever happens; returns its number.

        Raises:
            StorageError: it could not be written.
        """

    def note(self, name: str, content: Any) -> None:
        """Keep something with the study, as JSON, in place of what it had under this name.

        Raises:
            StorageError: it could not be written.
        """

    def noted(self, name: str) -> Any:
        """What `note` stored; None if there is nothing.

        Raises:
            StorageError: it could not be read.
        """

    def close(self) -> None:
        """Let go of it."""


class Unsaved:
    """Keeps nothing, for benches."""

    place = "the study"
    is_in_folder = True

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """See `Store`."""
        return identity["space"], []

    def save(self, ended: FrozenTrial) -> int:
        """See `Store`."""
        return ended.number

    def note(self, name: str, content: Any) -> None:
        """See `Store`."""

    def noted(self, name: str) -> Any:
        """See `Store`."""
        return None

    def close(self) -> None:
        """See `Store`."""


class StudyFile:
    """A SQLite file: each finished trial in one commit. Whoever writes it holds the lock of its folder.

    Args:
        path: created unless `resume`.
        resume: go on with the study that it holds.
        say: tells of what takes a while.
    """

    is_in_folder = True

    def __init__(self, path: Path, *, resume: bool, say: Callable[[str], None] = lambda line: None) -> None:
        self.place = str(path)
        self._path = path
        self._resume = resume
        self._say = say
        self._storage: RDBStorage | None = None
        self._study: optuna.Study | None = None

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """See `Store`."""
        if not self._resume:
            self._storage, self._study = create_saved(
                self._path,
                name=STUDY_NAME,
                directions=directions,
                metrics=[name for name, _ in identity["goals"]],
                attributes=identity,
            )
            return identity["space"], []
        count_trials(self._path)
        self._storage, self._study = open_saved(self._path, name=STUDY_NAME)
        try:
            with readable(self._path):
                found = self._study.user_attrs
                refuse_other(self.place, found, identity)
                refuse_directions(self._study, directions)
                self._study.metric_names  # noqa: B018 - reads the file
                before, now = found["space"], identity["space"]
                trials = self._study.get_trials(deepcopy=False)
                finished = [trial for trial in trials if trial.state.is_finished()]
                choices = all_choices(now["candidates"], before["candidates"], finished)
                space = {**joined(before, now), "candidates": choices}
                anew = [expressed(trial, choices) if trial.state.is_finished() else trial for trial in trials]
            if any(one is not other for one, other in zip(anew, trials, strict=True)):
                self._write_anew({**found, "space": space}, anew)
                finished = [trial for trial in anew if trial.state.is_finished()]
            elif space != before:
                self._study.set_user_attr("space", space)
            name_metrics(self._study, [name for name, _ in identity["goals"]])
        except StorageError:
            close_saved(self._storage)
            raise
        except (*BROKEN, ValueError) as error:  # the latter of trials that another program added
            close_saved(self._storage)
            raise unwritable(self._path, error) from error
        return space, finished

    def _write_anew(self, attributes: Mapping[str, Any], trials: Sequence[FrozenTrial]) -> None:
        """Give all trials the choices of today: Optuna keeps one set of them for a parameter of a study."""
        assert self._storage is not None
        self._say(f"{self.place}: other candidates than before, so its {len(trials):,} trials are written anew")
        write_anew(self._path, self._storage, name=STUDY_NAME, attributes=attributes, trials=trials)
        self._storage, self._study = open_saved(self._path, name=STUDY_NAME)

    def save(self, ended: FrozenTrial) -> int:
        """See `Store`. Trials are numbered as they finish, which may be in another order than they were asked for."""
        assert self._study is not None
        try:
            self._study.add_trial(ended)
            return self._study.get_trials(deepcopy=False)[-1].number
        except BROKEN as error:
            raise unwritable(self._path, error) from error

    def note(self, name: str, content: Any) -> None:
        """See `Store`."""
        assert self._study is not None
        try:
            self._study.set_user_attr(name, content)
        except BROKEN as error:
            raise unwritable(self._path, error) from error

    def noted(self, name: str) -> Any:
        """See `Store`."""
        assert self._study is not None
        try:
            return self._study.user_attrs.get(name)
        except BROKEN as error:
            raise unwritable(self._path, error) from error

    def close(self) -> None:
        """See `Store`."""
        if self._storage is not None:
            close_saved(self._storage)


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
    other = other_data(found.get("data"), identity["data"])
    if other:
        raise StorageError(
            f"{place}: this study was {'scored' if other == 'validation' else 'trained'} on other {other} data; resume "
            "it with the data it was started with"
        )
    if found.get("goals") != identity["goals"]:
        before, now = (
            ", ".join(f"{name} {'up' if up else 'down'}" for name, up in goals)
            for goals in (found.get("goals") or [], identity["goals"])
        )
        raise StorageError(
            f"{place}: this study's objectives are {before}, not {now}; resume it with those it was started with"
        )
    scoring, ours = dict(found.get("scoring") or {}), dict(identity.get("scoring") or {})
    for name in {**scoring, **ours} if ours else ():
        before, now = (one.get(name, "its default") for one in (scoring, ours))
        if before != now:
            raise StorageError(
                f"{place}: this study's trials are scored with another {name}: {before}, not {now}; give the same "
                "value, or another search.study"
            )
