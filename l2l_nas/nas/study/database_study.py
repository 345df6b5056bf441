"""A study in a database, or in another of Optuna's storages outside the run's folder, which one process writes.

[Note: driver] The process that asks and tells, its driver, leaves its name in the study's attribute `driver`, and
clears it when it ends. Storages have no locks that survive a connection, so the name is read again before each trial is
written: of two processes that both took the study, the one that was first stops. A process that was killed leaves its
name behind. Where that shows (the same machine, and the process is gone or was at work in this very folder, whose lock
is ours) the next one takes over; otherwise a person has to say so, as nothing here can tell.

[Note: growth] A database keeps one set of choices for a parameter as long as a study lives. Where candidates joined, a
new study takes over, `digits (2)` of `digits`, with all trials of the one before, under the same numbers. The old one
names it in `continued_in`, which is written last: what a kill left half made is made anew.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from l2l_nas.eps.identity import joined
from l2l_nas.errors import StorageError
from l2l_nas.files import is_process_alive
from l2l_nas.nas.study.choices import as_choices, with_choices
from l2l_nas.nas.study.database import Address, close_storage, failures, is_outage, newest_name, open_storage
from l2l_nas.nas.study.journal import name_metrics, readable, refuse_directions
from l2l_nas.nas.study.storage import Opened, refuse_other

T = TypeVar("T")

_ADVICE = "what was finished stays; when the database is back, go on with: resume=FOLDER"
_LONGEST_PAUSE = 2.0


class DatabaseStudy:
    """See `Store` and [Note: driver].

    Args:
        is_known: whether this run has been in the study before, so that it must be there.
        retry_seconds: how long to wait for a database that is away.
        waiting: called with a line each time that the database does not answer; may raise.
        say: tells where the study goes on, if not where it was.
    """

    is_in_folder = False

    def __init__(
        self,
        address: Address,
        *,
        name: str,
        folder: Path,
        is_known: bool,
        retry_seconds: float,
        waiting: Callable[[str], None] = lambda line: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.place = f"{address.shown}, study '{name}'"
        self._address = address
        self._name = name
        self._is_known = is_known
        self._retry_seconds = retry_seconds
        self._driver = {
            "host": platform.node(),
            "process": os.getpid(),
            "folder": str(folder.resolve()),
            "since": datetime.now().isoformat(sep=" ", timespec="seconds"),
        }
        self._waiting = waiting
        self._say = say

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        if self._is_known:
            self._address.refuse_missing()
        self._storage: BaseStorage = open_storage(self._address)
        self._study_id = -1
        try:
            with readable(self.place):
                return self._join(identity, directions)
        except BaseException:
            self.close()
            raise

    def _join(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """Be the one that drives the study."""
        storage = self._storage
        self._study_id = self._find(identity, directions)
        found = storage.get_study_user_attrs(self._study_id)
        refuse_other(self.place, found, identity)
        study = optuna.load_study(study_name=self._name, storage=storage)
        refuse_directions(study, directions)
        self._refuse_driven(found.get("driver"))
        storage.set_study_user_attr(self._study_id, "driver", self._driver)
        name_metrics(study, [name for name, _ in identity["goals"]])
        space = joined(found["space"], identity["space"])
        if space["candidates"] != found["space"]["candidates"]:
            self._grow(study, space)
        elif space != found["space"]:
            storage.set_study_user_attr(self._study_id, "space", space)
        trials = storage.get_all_trials(self._study_id, deepcopy=False)
        return space, [trial for trial in trials if trial.state.is_finished()]

    def save(self, ended: FrozenTrial) -> int:
        storage, study_id = self._storage, self._study_id
        before = self._do(lambda: storage.get_n_trials(study_id))

        def add() -> int:
            self._refuse_taken()
            if storage.get_n_trials(study_id) > before:  # by a try that the database took, and went away
                last = storage.get_all_trials(study_id, deepcopy=False)[-1]
                if last.user_attrs == ended.user_attrs:
                    return last.number
            trial_id = storage.create_new_trial(study_id, template_trial=ended)
            return storage.get_trial_number_from_id(trial_id)

        return self._do(add)

    def note(self, name: str, content: Any) -> None:
        self._do(lambda: self._storage.set_study_user_attr(self._study_id, name, content))

    def noted(self, name: str) -> Any:
        return self._do(lambda: self._storage.get_study_user_attrs(self._study_id)).get(name)

    def close(self) -> None:
        """See `Store`: another process may write the study from now on."""
        with contextlib.suppress(*failures(), StorageError), readable(self.place):
            self._refuse_taken()
            self._storage.set_study_user_attr(self._study_id, "driver", None)
        close_storage(self._storage)

    def _find(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> int:
        """The study's id in the storage. One that is missing is made; one that was cut off then is completed."""
        storage = self._storage
        try:
            study_id = storage.get_study_id_from_name(self._name)
        except KeyError:
            if self._is_known:
                raise StorageError(
                    f"{self.place}: there is no such study any more; restore the database, or start a new run"
                ) from None
            try:
                study_id = storage.create_new_study(directions, self._name)
            except DuplicatedStudyError:
                study_id = storage.get_study_id_from_name(self._name)
        self._rename(newest_name(storage, self._name))
        study_id = storage.get_study_id_from_name(self._name)
        found = storage.get_study_user_attrs(study_id)
        missing = identity.keys() - found.keys()
        if missing and storage.get_n_trials(study_id):
            raise StorageError(f"{self.place}: made by another program; choose another name by search.study")
        for name in missing:
            storage.set_study_user_attr(study_id, name, identity[name])
        return study_id

    def _rename(self, name: str) -> None:
        self._name = name
        self.place = f"{self._address.shown}, study '{name}'"

    def _grow(self, old: optuna.Study, space: Mapping[str, Any]) -> None:
        """Go on in a study with more choices; see [Note: growth]."""
        storage, old_id, old_name = self._storage, self._study_id, self._name
        stem, _, number = old_name.rpartition(" (")
        first, count = (stem, int(number[:-1])) if stem and number[:-1].isdigit() else (old_name, 1)
        name = f"{first} ({count + 1})"
        with contextlib.suppress(KeyError):
            storage.delete_study(storage.get_study_id_from_name(name))
        study_id = storage.create_new_study(old.directions, name)
        name_metrics(optuna.load_study(study_name=name, storage=storage), old.metric_names or ())
        for key, value in {**old.user_attrs, "space": space}.items():
            storage.set_study_user_attr(study_id, key, value)
        trials = old.get_trials(deepcopy=False)
        follows, order = space.get("follows", {}), list(space["order"])
        choices = as_choices({name: space["candidates"][name] for name in order if name not in follows})
        for trial in trials:
            is_ours = "architecture" in trial.user_attrs
            storage.create_new_trial(study_id, with_choices(trial, choices, positions=order) if is_ours else trial)
        storage.set_study_user_attr(old_id, "continued_in", name)
        storage.set_study_user_attr(old_id, "driver", None)
        self._say(f"{self.place}: other candidates than before, so its {len(trials):,} trials go on in '{name}'")
        self._rename(name)
        self._study_id = study_id

    def _refuse_driven(self, other: Any) -> None:
        """Refuse a study that another process may be writing; see [Note: driver]."""
        if not isinstance(other, Mapping) or self._is_gone(other):
            return
        who = {name: str(other.get(name, "?")) for name in self._driver}
        raise StorageError(
            f"{self.place}: process {who['process']} on {who['host']} has been writing it since {who['since']}, in "
            f"{who['folder']}; wait until it ends, or take another search.study; if it was killed, say so: "
            f"optuna.load_study(study_name={self._name!r}, storage=...).set_user_attr('driver', None)"
        )

    def _is_gone(self, other: Mapping[str, Any]) -> bool:
        if other.get("host") != self._driver["host"]:
            return False
        process = other.get("process")
        return other.get("folder") == self._driver["folder"] or not (
            isinstance(process, int) and is_process_alive(process)
        )

    def _refuse_taken(self) -> None:
        found = self._storage.get_study_user_attrs(self._study_id).get("driver")
        if found != self._driver:
            by = f"process {found.get('process')} on {found.get('host')}" if isinstance(found, Mapping) else "nobody"
            raise StorageError(
                f"{self.place}: written by {by} now, so this process stops; its last trial is not in the study"
            )

    def _do(self, work: Callable[[], T]) -> T:
        """Do something with the storage, again and again while it is away, but not for too long."""
        began = time.monotonic()
        pause = 0.1
        with readable(self.place):
            while True:
                try:
                    return work()
                except failures() as error:
                    waited = time.monotonic() - began
                    if not is_outage(error) or waited >= self._retry_seconds:
                        after = f", {waited:.0f} s long" if waited >= 1 else ""
                        raise StorageError(
                            f"{self._address.shown}: {self._address.explain(error)}{after}; {_ADVICE}"
                        ) from None
                self._waiting(f"the database does not answer, retrying ({waited:.0f} s)")
                time.sleep(min(pause, self._retry_seconds))
                pause = min(2 * pause, _LONGEST_PAUSE)
