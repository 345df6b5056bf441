"""A study that many processes work on, on many machines: one database, every trial evaluated once.

What trials say is read in `leases.py`; here is what a process does about it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from l2l_nas.eps.identity import joined
from l2l_nas.errors import StorageError
from l2l_nas.files import read_bytes, write_atomically
from l2l_nas.nas.distributed.heartbeat import BEAT, EVERY, Heartbeat
from l2l_nas.nas.distributed.leases import Leases
from l2l_nas.nas.distributed.outbox import Outbox
from l2l_nas.nas.study.attributes import RESULT, is_worker_name, token_of
from l2l_nas.nas.study.database import Address, Patience, close_storage, failures, is_outage, open_storage
from l2l_nas.nas.study.sqlite_file import name_metrics, readable
from l2l_nas.nas.study.storage import LeaseAnswer, Opened, SavedTrial, refuse_other

# how long a study may be without its attributes before whoever joins it writes them: its maker was killed in between
_MAKING_SECONDS = 3.0


@dataclass(frozen=True)
class _Lease:
    """A lease of ours: where it is, and its token."""

    number: int
    token: str


class SharedStudy:
    """See `SharedStore`.

    Args:
        address: where.
        name: of the study.
        folder: of this process's run; results wait there while the database is away.
        is_known: whether this run has been in the study before, so that it must be there.
        lost_after: trials of processes that give no sign of life for so many seconds are evaluated anew.
        retry_seconds: how long to wait for a database that is away.
    """

    def __init__(
        self, address: Address, *, name: str, folder: Path, is_known: bool, lost_after: float, retry_seconds: float
    ) -> None:
        self.place = f"{address.shown}, study '{name}'"
        self._address = address
        self._name = name
        self._is_known = is_known
        self._lost_after = lost_after
        self._worker = worker_of(folder)
        self._pending = Outbox(folder / "pending.jsonl")
        self.patience = Patience(
            address,
            seconds=retry_seconds,
            advice="what was finished stays; when the database is back, go on with: resume=FOLDER",
        )
        self._ours: dict[int, _Lease] = {}  # by number in memory
        self._numbers: set[int] = set()  # of leases of ours that run
        self._known: dict[int, TrialState] = {}  # what is known of trials, by number
        self._leases = Leases(())
        self._storage: BaseStorage | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def seed_offset(self) -> int:
        """A number that no other process has."""
        return int(self._worker[:15], 16)

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """See `Store`."""
        with readable(self.place):
            return self._open(identity, directions)

    def _open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        if self._is_known:
            self._address.refuse_missing()
        storage = open_storage(self._address)
        try:
            study_id = self._join(storage, identity, directions)
        except failures() as error:
            close_storage(storage)
            raise StorageError(
                f"{self._address.shown}: {self._address.explain(error)}; give the same command again"
            ) from None
        except StorageError:
            close_storage(storage)
            raise
        self._storage, self._study_id = storage, study_id
        self._heartbeat = Heartbeat(storage, study_id, lost_after=self._lost_after)
        self._recover()
        finished = [trial for trial in self._read() if trial.state.is_finished()]
        self._known = {trial.number: trial.state for trial in finished}
        return self.patience(lambda: storage.get_study_user_attrs(study_id))["space"], finished

    def lease(self, trial: FrozenTrial, *, total: int) -> LeaseAnswer:
        """See `SharedStore` and [Note: leases]."""
        verdict, lease = self._lease(trial, total=total)
        if lease is not None:
            self._ours[trial.number] = lease
        return verdict

    def save(self, ended: FrozenTrial) -> SavedTrial:
        """See `Store`."""
        lease = self._ours.pop(ended.number, None)
        if lease is None:
            number = self._create(ended, token=None).number
            self._known[number] = ended.state
            return SavedTrial(number)
        entry = {
            "lease": lease.token,
            "number": lease.number,
            "state": ended.state.name,
            "values": ended.values if ended.state is TrialState.COMPLETE else None,
            "intermediate": {str(step): value for step, value in ended.intermediate_values.items()},
            "result": {
                name: value for name, value in ended.user_attrs.items() if name not in ("architecture", "digest")
            },
        }
        self._pending.add(entry)
        try:
            return SavedTrial(lease.number, is_ours=self._deliver(entry))
        except failures() as error:
            if not is_outage(error):
                raise self.patience.failed(error, 0.0) from None
            return SavedTrial(lease.number)  # it waits in the folder, and is delivered before anything else is done

    def news(self) -> list[FrozenTrial]:
        """See `SharedStore`."""
        assert self._heartbeat is not None
        self._heartbeat.check()
        for entry in list(self._pending.entries):
            self.patience(partial(self._deliver, entry))
        self._close_lost()
        fresh = []
        for trial in self.patience(self._read):
            if trial.number in self._numbers or trial.state is TrialState.WAITING:  # by another program
                continue
            if self._known.get(trial.number) is not trial.state:
                self._known[trial.number] = trial.state
                fresh.append(trial)
        return fresh

    def note(self, name: str, content: Any) -> None:
        """See `Store`. Of several processes, the last one's stays."""
        assert self._storage is not None
        self.patience(partial(self._storage.set_study_user_attr, self._study_id, name, content))

    def noted(self, name: str) -> Any:
        """See `Store`."""
        assert self._storage is not None
        return self.patience(partial(self._storage.get_study_user_attrs, self._study_id)).get(name)

    def given_up(self, digest: str) -> bool:
        """See `SharedStore`."""
        return self._leases.given_up(digest)

    def to_retry(self) -> list[FrozenTrial]:
        """See `SharedStore`."""
        return self._leases.to_retry()

    def close(self) -> None:
        """See `Store`: trials that were not finished are free for others."""
        if self._storage is None or self._heartbeat is None:
            return
        with contextlib.suppress(*failures()):
            for lease in self._ours.values():
                self._lose(lease.number, "its process was stopped", released=True)
        self._heartbeat.close()
        close_storage(self._storage)

    # -- the study ----------------------------------------------------------------------------------------------------

    def _join(self, storage: BaseStorage, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> int:
        """Find the study, or make it; two that make it at once join one."""
        try:
            study_id = storage.get_study_id_from_name(self._name)
        except KeyError:
            if self._is_known:
                raise StorageError(
                    f"{self.place}: there is no such study any more; restore the database, or start a new run"
                ) from None
            try:
                study_id = storage.create_new_study(directions, self._name)
                for name, value in identity.items():
                    storage.set_study_user_attr(study_id, name, value)
            except DuplicatedStudyError:
                study_id = storage.get_study_id_from_name(self._name)
        deadline = time.monotonic() + _MAKING_SECONDS
        found = storage.get_study_user_attrs(study_id)
        while not identity.keys() <= found.keys() and time.monotonic() < deadline:
            time.sleep(0.1)
            found = storage.get_study_user_attrs(study_id)
        if not identity.keys() <= found.keys():
            if storage.get_n_trials(study_id):
                raise StorageError(f"{self.place}: made by another program; choose another name by search.study")
            for name, value in identity.items():
                if name not in found:
                    storage.set_study_user_attr(study_id, name, value)
            found = storage.get_study_user_attrs(study_id)
        refuse_other(self.place, found, identity)
        space = joined(found["space"], identity["space"])
        if space != found["space"]:
            storage.set_study_user_attr(study_id, "space", space)
        study = optuna.load_study(study_name=self._name, storage=storage)
        name_metrics(study, [name for name, _ in identity["goals"]])
        return study_id

    def _read(self) -> list[FrozenTrial]:
        """All trials as they are now."""
        assert self._storage is not None
        trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
        self._leases = Leases(trials)
        return trials

    def _recover(self) -> None:
        """Deliver what waits in the folder; free what this run left behind when it was killed."""
        assert self._storage is not None
        for entry in list(self._pending.entries):
            self.patience(partial(self._deliver_late, entry))
        for trial in self.patience(self._read):
            if trial.state is TrialState.RUNNING and trial.user_attrs.get("worker") == self._worker:
                self._lose(trial.number, "its process was started again")

    # -- leases -------------------------------------------------------------------------------------------------------

    def _lease(self, trial: FrozenTrial, *, total: int) -> tuple[LeaseAnswer, _Lease | None]:
        token = uuid.uuid4().hex
        leased = self._create(trial, token=token)
        verdict, reason = self._leases.verdict(leased, total=total)
        if verdict is LeaseAnswer.OURS:
            self._numbers.add(leased.number)
            return verdict, _Lease(leased.number, token)
        self.patience(partial(self._withdraw, leased.number, reason))
        return verdict, None

    def _create(self, trial: FrozenTrial, *, token: str | None) -> FrozenTrial:
        """Add a trial, and read it back with all that others have added.

        The database may go away after it took the trial and before it said so: then the trial is there, once more for
        every try. The first one counts.
        """
        assert self._storage is not None
        storage = self._storage
        attributes = dict(trial.user_attrs)
        key = token or uuid.uuid4().hex
        system = {**trial.system_attrs, "l2l_nas:key": key}
        if token is not None:
            assert self._heartbeat is not None
            system[EVERY] = self._heartbeat.interval
            attributes |= {"lease": token, "worker": self._worker}
            retry_of = self._leases.retried(attributes["digest"])
            if retry_of is not None:
                attributes["retry_of"] = retry_of
        template = create_trial(
            state=trial.state,
            values=trial.values if trial.state is TrialState.COMPLETE else None,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=attributes,
            system_attrs=system,
        )
        tries = 0

        def add() -> list[FrozenTrial]:
            nonlocal tries
            tries += 1
            found = self._with_key(key) if tries > 1 else []
            if not found:
                storage.create_new_trial(self._study_id, template_trial=template)
                found = self._with_key(key)
            if found and token is not None and self._heartbeat is not None:
                self._heartbeat.add(found[0].number, self._id_of(found[0].number))  # also where a try before made it
            return found

        first, *others = self.patience(add)
        for other in others:
            if not other.state.is_finished():
                self.patience(partial(self._withdraw, other.number, "added twice"))
        return first

    def _with_key(self, key: str) -> list[FrozenTrial]:
        return [trial for trial in self._read() if trial.system_attrs.get("l2l_nas:key") == key]

    def _id_of(self, number: int) -> int:
        """By which the storage knows a trial."""
        assert self._storage is not None
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)

    def _withdraw(self, number: int, reason: str) -> None:
        assert self._storage is not None
        assert self._heartbeat is not None
        trial_id = self._id_of(number)
        with contextlib.suppress(UpdateFinishedTrialError):
            for name, value in {"cached": True, "reason": reason, "withdrawn": True}.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            self._storage.set_trial_state_values(trial_id, TrialState.PRUNED)
        self._heartbeat.remove(number)

    def _lose(self, number: int, reason: str, *, released: bool = False) -> None:
        """Fail a trial whose process is gone; see [Note: lost trials]."""
        assert self._storage is not None
        trial_id = self._id_of(number)
        with contextlib.suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial_id, "lost", reason)
            if released:
                self._storage.set_trial_user_attr(trial_id, "released", True)
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _close_lost(self) -> None:
        """Fail trials of others that were silent for too long."""
        assert self._heartbeat is not None
        for number in self._heartbeat.silent:
            reason = f"its process gave no sign of life for {self._heartbeat.patience(number):g} s"
            self.patience(partial(self._lose, number, reason))

    # -- results ------------------------------------------------------------------------------------------------------

    def _deliver(self, entry: dict[str, Any]) -> bool:
        """Write a result into the study; False if the trial was given to others meanwhile.

        Raises:
            one of `failures()`: the database is away; nothing is lost.
        """
        is_ours = self._finish(entry)
        self._pending.drop(entry)
        return is_ours

    def _finish(self, entry: Mapping[str, Any]) -> bool:
        assert self._storage is not None
        assert self._heartbeat is not None
        number, state = int(entry["number"]), TrialState[entry["state"]]
        attributes = {**entry["result"], RESULT: state.name}  # the last one, so that all are there if it is
        trial_id = self._id_of(number)
        try:
            for step, value in entry.get("intermediate", {}).items():  # 0.2.0 stored none
                self._storage.set_trial_intermediate_value(trial_id, int(step), float(value))
            for name, value in attributes.items():
                self._storage.set_trial_user_attr(trial_id, name, value)
            self._storage.set_trial_state_values(trial_id, state, entry["values"])
            is_ours = True
        except UpdateFinishedTrialError:
            # either it was given away, or an earlier try came through and was not answered
            saved = self._storage.get_trial(trial_id)
            is_ours = saved.state is state and attributes.items() <= saved.user_attrs.items()
        self._heartbeat.remove(number)
        self._numbers.discard(number)
        if is_ours:
            self._known[number] = state
        return is_ours

    def _deliver_late(self, entry: dict[str, Any]) -> None:
        """Write a result that an earlier process of this run left; if its trial counts as lost, as the retry of it."""
        trials = self._read()
        found = next((trial for trial in trials if token_of(trial) == entry["lease"]), None)
        if found is not None and not self._finish(entry):
            self._read()
            if found.user_attrs["digest"] in {trial.user_attrs["digest"] for trial in self._leases.to_retry()}:
                again = create_trial(
                    state=TrialState.RUNNING,
                    params=found.params,
                    distributions=found.distributions,
                    user_attrs={name: found.user_attrs[name] for name in ("architecture", "digest")},
                    system_attrs={name: value for name, value in found.system_attrs.items() if name != BEAT},
                )
                _, lease = self._lease(again, total=len(trials) + 2)
                if lease is not None:
                    self._finish({**entry, "number": lease.number})
        self._pending.drop(entry)


def worker_of(folder: Path) -> str:
    """The name of a run among those that share a study: 32 hexadecimal digits, stored in its folder.

    A second line says which folder on which machine that is: a copy of the folder is another run and gets another name,
    else each of the two would take the running trial of the other for one that it left behind.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    path = folder / "worker"
    text = read_bytes(path).decode("utf-8", "replace") if path.exists() else ""
    name, _, place = (line.strip() for line in text.partition("\n"))
    here = hashlib.sha256(os.fsencode(f"{platform.node()}:{folder.resolve()}")).hexdigest()[:16]
    if not is_worker_name(name) or place not in ("", here):  # version 0.1.0 wrote one line
        name = uuid.uuid4().hex
    if place != here:
        write_atomically(path, f"{name}\n{here}\n")
    return name
