"""The study: an in-memory one that the sampler reads, and the saved one that gets each finished trial in one commit.

Every `suggest` of a saved study is a commit of its own (126 ms for 24 choices on SQLite); one `add_trial` is 20 ms.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from l2l_nas.eps.layout import fingerprint
from l2l_nas.errors import StorageError
from l2l_nas.search.records import Goal, State, TrialRecord
from l2l_nas.search.samplers import build_sampler
from l2l_nas.search.saved import BROKEN, close_saved, count_trials, create_saved, open_saved, unwritable
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

STUDY_NAME = "search"
_STATES: dict[State, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "stopped": TrialState.PRUNED,  # told apart from the one above by an attribute
    "failed": TrialState.FAIL,
}


def record_of(
    trial: FrozenTrial, goals: Sequence[Goal], architecture_of: Callable[[Sequence[str]], Architecture]
) -> TrialRecord:
    """What a finished trial of a study tells.

    Raises:
        KeyError, TypeError, ValueError, StopIteration: it is not one of this program.
    """
    names = [goal.name for goal in goals]
    values = dict(zip(names, trial.values, strict=True)) if trial.state is TrialState.COMPLETE else {}
    attributes = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        architecture=architecture_of(attributes["architecture"]),
        state="stopped" if "stopped" in attributes else _state_of(trial),
        values=values,
        cached=bool(attributes.get("cached", False)),
        reason=str(attributes.get("reason", "")),
        seconds=float(attributes.get("seconds", 0.0)),
        weights=dict(attributes.get("weights", {})),
        worker=int(attributes.get("worker", 0)),
        metrics={n.removeprefix("metric_"): v for n, v in attributes.items() if n.startswith("metric_")},
        rungs=dict(attributes.get("rungs", {})),
    )


class Study:
    """Asks a sampler for architectures and records what became of them in `study.db`.

    Args:
        path: the SQLite file; created unless `resume`. None keeps the study in memory alone, for benches.
        pool: what is searched.
        goals: one to three.
        sampler: its name.
        seed: of the sampler.
        num_trials: how many trials are asked for in all.
        resume: go on with the study in `path`.
        data: a hash of what trials are scored on; a study of other data is refused.

    Raises:
        StorageError: the file cannot be written; or, on resume, is missing, damaged, of another space or other goals.
        SettingError: no such sampler, or one that does not suit a space of this size.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        pool: LayerPool,
        goals: Sequence[Goal],
        sampler: str,
        seed: int,
        num_trials: int,
        resume: bool,
        data: str = "",
    ) -> None:
        self._path = path or Path()
        self._pool = pool
        self._goals = tuple(goals)
        self._data = data
        self._distributions: dict[str, BaseDistribution] = {
            position.name: CategoricalDistribution(sorted(c.name for c in position.candidates))
            for position in pool.positions
            if len(position.candidates) > 1
        }
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        num_finished = count_trials(self._path) if resume else 0
        self._memory = optuna.create_study(
            directions=directions,
            sampler=build_sampler(
                sampler,
                seed=seed,
                num_goals=len(goals),
                num_trials=num_trials,
                num_finished=num_finished,
                size=pool.size,
            ),
        )
        self._storage: RDBStorage | None = None
        self._saved: optuna.Study | None = None
        if path is not None:
            self._storage, self._saved = self._open() if resume else self._create(directions)
        self._records: list[TrialRecord] = []
        if resume and self._saved is not None:
            trials = self._saved.get_trials(deepcopy=False)
            try:
                self._records = [self._record(trial) for trial in trials if trial.state.is_finished()]
            except (KeyError, ValueError, TypeError) as error:
                raise StorageError(
                    f"{path}: a trial does not read as one of this program ({error}); start a new run"
                ) from None
            self._memory.add_trials([trial for trial in trials if trial.state.is_finished()])

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All finished trials, in order."""
        return tuple(self._records)

    def close(self) -> None:
        """Close the file."""
        if self._storage is not None:
            close_saved(self._storage)

    def ask(self) -> tuple[Trial, Architecture]:
        """The sampler's next proposal, in canonical form."""
        trial = self._memory.ask(self._distributions)
        choices = (trial.params.get(position.name, position.candidates[0].name) for position in self._pool.positions)
        return trial, self._pool.canonical(Architecture(tuple(choices)))

    def propose(self, architecture: Architecture) -> None:
        """Make the next `ask` give this architecture."""
        named = zip(self._pool.positions, architecture.choices, strict=True)
        self._memory.enqueue_trial({p.name: name for p, name in named if p.name in self._distributions})

    def tell(
        self,
        trial: Trial,
        architecture: Architecture,
        *,
        state: State,
        values: Mapping[str, float] | None = None,
        cached: bool = False,
        reason: str = "",
        seconds: float = 0.0,
        attributes: Mapping[str, float] | None = None,
        weights: Mapping[str, Any] | None = None,
        worker: int = 0,
        rungs: Mapping[str, Mapping[str, float]] | None = None,
    ) -> TrialRecord:
        """Record a finished trial; when this returns, it is in the saved study.

        Args:
            values: by goal name, for a complete trial.
            attributes: further figures to keep with it, such as other metrics.
            weights: which weights it was scored with; see `Ledger`.
            worker: the process that evaluated it.
            rungs: metrics that it had on its way; see `TrialRecord`.

        Raises:
            StorageError: the study could not be written.
        """
        trial.set_user_attr("architecture", list(architecture.choices))
        trial.set_user_attr("digest", architecture.digest)
        trial.set_user_attr("cached", cached)
        trial.set_user_attr("seconds", seconds)
        for name, value in (attributes or {}).items():
            trial.set_user_attr(f"metric_{name}", value)
        if reason:
            trial.set_user_attr("reason", reason)
        if weights:
            trial.set_user_attr("weights", dict(weights))
        if worker:
            trial.set_user_attr("worker", worker)
        if state == "stopped":
            trial.set_user_attr("stopped", True)
        if rungs:
            trial.set_user_attr("rungs", {rung: dict(metrics) for rung, metrics in rungs.items()})
        ordered = [float(values[goal.name]) for goal in self._goals] if values is not None else None
        told = self._memory.tell(trial, ordered, state=_STATES[state])
        # trials may finish in another order than they were asked for: the saved study numbers them as they finish
        record = replace(self._record(told), number=len(self._records))
        try:
            if self._saved is not None:
                self._saved.add_trial(told)
        except BROKEN as error:
            raise unwritable(self._path, error) from error
        self._records.append(record)
        return record

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        return record_of(trial, self._goals, self._pool.architecture)

    def _identity(self) -> dict[str, Any]:
        return {
            "fingerprint": fingerprint(self._pool),
            "goals": [[goal.name, goal.maximize] for goal in self._goals],
            "data": self._data,
        }

    def _create(self, directions: list[StudyDirection]) -> tuple[RDBStorage, optuna.Study]:
        return create_saved(self._path, name=STUDY_NAME, directions=directions, attributes=self._identity())

    def _open(self) -> tuple[RDBStorage, optuna.Study]:
        storage, study = open_saved(self._path, name=STUDY_NAME)
        try:
            self._refuse_other(study.user_attrs)
        except StorageError:
            close_saved(storage)
            raise
        return storage, study

    def _refuse_other(self, found: Mapping[str, Any]) -> None:
        identity = self._identity()
        if found.get("fingerprint") != identity["fingerprint"]:
            raise StorageError(
                f"{self._path}: this study searches another space; resume it with the space it was started with"
            )
        if found.get("data") != identity["data"]:
            raise StorageError(
                f"{self._path}: this study was scored on other validation data; resume it with the data it was "
                "started with"
            )
        if found.get("goals") != identity["goals"]:
            before, now = (
                ", ".join(f"{name} {'up' if up else 'down'}" for name, up in goals)
                for goals in (found.get("goals") or [], identity["goals"])
            )
            raise StorageError(
                f"{self._path}: this study's objectives are {before}, not {now}; resume it with those it was "
                "started with"
            )


def _state_of(trial: FrozenTrial) -> State:
    return next(name for name, state in _STATES.items() if state is trial.state)


def quiet_optuna() -> None:
    """Leave the terminal to the progress line."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def choices_of_trial(path: Path, number: int) -> tuple[str, ...]:
    """The architecture of a trial in a saved study.

    Raises:
        StorageError: there is no such study or trial, or it is damaged.
    """
    if not path.is_file():
        raise StorageError(f"{path}: no such study; a trial's architecture is in the folder of a search")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as connection:
            query = (
                "SELECT trials.number, value_json FROM trials JOIN trial_user_attributes USING (trial_id) "
                "WHERE key = 'architecture'"
            )
            found = {int(key): json.loads(text) for key, text in connection.execute(query)}
        choices = Architecture.from_choices(found[number]).choices if number in found else None
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise StorageError(f"{path}: damaged, not a study ({error}); restore it from a copy") from None
    if choices is None:
        raise StorageError(f"{path}: has no trial {number}; it has 0 to {max(found, default=-1)}")
    return choices
