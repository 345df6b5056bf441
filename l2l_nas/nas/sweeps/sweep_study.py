"""The study of a sweep: each trial is a whole run with other settings, and is saved from the moment it begins.

Runs take minutes, so trials are written to SQLite as they start and as they end (a search's own trials, of which there
are hundreds a minute, only as they end). What a killed sweep leaves running is found there and goes on. The sampler
reads a copy in memory: combinations that were tried already are answered there, and never become a trial.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.retries import is_given_up, losses_in_a_row, why_given_up
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler
from l2l_nas.nas.study.sqlite_file import (
    BROKEN,
    close_saved,
    count_trials,
    create_saved,
    open_saved,
    readable,
    refuse_directions,
    unwritable,
)
from l2l_nas.nas.sweeps.sweep_space import Setting, Values, plain, values_of

_NAME = "sweep"
# proposals that repeat before a random combination takes the sampler's place
_PATIENCE = 25
# the most combinations that are gone through one by one
_COUNTABLE = 100_000
# samplers that go from value to neighbouring value, or through all
_FINITE = ("gp_hamming", "evolution", "local", "grid")
# fewer runs say nothing of what matters
_LEAST_FOR_IMPORTANCE = 4


@dataclass(frozen=True)
class SweepRecord:
    """A run of a sweep.

    Args:
        number: from 0; also the name of its folder.
        settings: what it had for the swept settings.
        state: complete, failed, or running.
        values: by goal name; empty unless complete.
        reason: why it failed.
        seconds: what it took.
    """

    number: int
    settings: Values
    state: Literal["complete", "failed", "running"]
    values: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


class SweepStudy:
    """Asks a sampler for settings and keeps what became of each run in an SQLite file.

    Args:
        path: the file; created unless `resume`.
        settings: what is swept.
        goals: one or two.
        sampler: its name.
        seed: of the sampler.
        num_trials: runs in all, those before a resume included.
        fixed: what all runs have in common; runs with others could not be compared.
        resume: go on with the study in `path`.

    Raises:
        SettingError: no such sampler, or one that does not suit the settings.
        StorageError: the file cannot be written; or, on resume, is missing, damaged, or of another sweep.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: Sequence[Setting],
        goals: Sequence[Goal],
        sampler: str,
        seed: int,
        num_trials: int,
        fixed: Mapping[str, Any],
        resume: bool,
    ) -> None:
        check_sweep(sampler, settings, num_trials=num_trials)
        self._path = path
        self._goals = tuple(goals)
        self._num_trials = num_trials
        self._distributions = {setting.name: setting.distribution() for setting in settings}
        self._num_combinations = math.prod(setting.count for setting in settings)  # 0: without end
        identity = {
            "settings": {setting.name: str(setting) for setting in settings},
            "goals": {goal.name: "up" if goal.maximize else "down" for goal in goals},
            "fixed": dict(fixed),
        }
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        num_before = count_trials(path) if resume else 0
        self._memory = optuna.create_study(
            directions=directions,
            sampler=build_sampler(sampler, seed=seed, num_trials=num_trials, num_finished=num_before),
        )
        self._random = random.Random(f"{seed} {num_before}")
        self._storage: RDBStorage
        if resume:
            self._storage, self._saved = open_saved(path, name=_NAME)
            with readable(path):
                self._refuse_other(identity)
                refuse_directions(self._saved, directions)
        else:
            names = [goal.name for goal in goals]
            self._storage, self._saved = create_saved(
                path, name=_NAME, directions=directions, metrics=names, attributes=identity
            )
        # it only records: all that it is asked for was chosen before
        self._saved.sampler = optuna.samplers.RandomSampler(seed=0)
        self._left: deque[int] = deque()
        self.left_behind: set[int] = set()  # runs that were begun, and whose processes were lost
        self._numbers: dict[int, int] = {}  # of a trial in the file -> of the same in memory
        self._known: dict[tuple[Any, ...], Sequence[float] | None] = {}
        with readable(path):
            self._read_back()

    @property
    def records(self) -> tuple[SweepRecord, ...]:
        """All runs that were begun, in order."""
        return tuple(self._record(trial) for trial in self._saved.get_trials(deepcopy=False))

    @property
    def front(self) -> tuple[int, ...]:
        """With one goal the best run; with two, those that no other beats on both."""
        return tuple(trial.number for trial in self._saved.best_trials)

    def ask(self) -> SweepRecord | None:
        """The next run; None when as many as asked for were begun, or every combination was.

        Runs whose processes were lost come first, under their own numbers; one that is given up has failed then.

        Raises:
            StorageError: the file could not be written.
        """
        try:
            if self._left:
                number = self._left.popleft()
                crashes = int(self._saved.get_trials(deepcopy=False)[number].user_attrs.get("crashes", 0))
                if is_given_up(crashes):
                    self.tell(number, reason=why_given_up(crashes))
                return self.records[number]
            if len(self._saved.get_trials(deepcopy=False)) >= self._num_trials:
                return None
            proposal = self._propose()
            if proposal is None:
                return None
            self._saved.enqueue_trial(proposal.params)
            begun = self._saved.ask(self._distributions)
        except BROKEN as error:
            raise unwritable(self._path, error) from error
        self._numbers[begun.number] = proposal.number
        return SweepRecord(begun.number, _plain_values(begun.params), "running")

    def tell(
        self, number: int, *, values: Mapping[str, float] | None = None, reason: str = "", seconds: float = 0.0
    ) -> None:
        """Record that a run ended; when this returns, it is in the file.

        Args:
            number: of the run.
            values: by goal name; None if it failed.
            reason: why it failed.
            seconds: what it took.

        Raises:
            StorageError: the file could not be written.
        """
        ordered = None if values is None else [float(values[goal.name]) for goal in self._goals]
        state = TrialState.FAIL if ordered is None else TrialState.COMPLETE
        trial = self._saved.get_trials(deepcopy=False)[number]
        try:
            self._set(trial, "seconds", round(seconds, 3))
            if reason:
                self._set(trial, "reason", reason)
            self._saved.tell(number, ordered, state=state)
        except BROKEN as error:
            raise unwritable(self._path, error) from error
        self._known[self._key(trial.params)] = ordered
        self._tell_sampler(self._numbers[number], ordered)

    def lost(self, number: int, *, progress: int) -> None:
        """Have a run asked for once more whose process ended without the sweep.

        Args:
            number: of the run.
            progress: how far it has come, in whatever unit; see `losses_in_a_row`.

        Raises:
            StorageError: the file could not be written.
        """
        trial = self._saved.get_trials(deepcopy=False)[number]
        before, at = (int(trial.user_attrs.get(name, 0)) for name in ("crashes", "progress"))
        try:
            self._set(trial, "crashes", losses_in_a_row(before, has_progressed=progress > at))
            self._set(trial, "progress", progress)
        except BROKEN as error:
            raise unwritable(self._path, error) from error
        self._go_on_with(number)

    def _go_on_with(self, number: int) -> None:
        self._left.append(number)
        self.left_behind.add(number)

    def importances(self) -> dict[str, float]:
        """How much of the first goal's variance each setting explains (fANOVA: Hutter et al., ICML 2014).

        Shares of 1, largest first; empty where too few runs are complete, or all are alike.
        """
        complete = self._saved.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        scores = {trial.values[0] for trial in complete}
        if len(self._distributions) < 2 or len(complete) < _LEAST_FOR_IMPORTANCE or len(scores) < 2:
            return {}
        found = optuna.importance.get_param_importances(
            self._saved,
            evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
            target=lambda trial: trial.values[0],
        )
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    def close(self) -> None:
        """Close the file."""
        close_saved(self._storage)

    def _read_back(self) -> None:
        """Trials of before, for the sampler; and those that were begun and have no end."""
        while any(trial.state is TrialState.WAITING for trial in self._saved.get_trials(deepcopy=False)):
            self._saved.ask(self._distributions)  # killed between two commits
        for trial in self._saved.get_trials(deepcopy=False):
            self._numbers[trial.number] = trial.number
            self._known[self._key(trial.params)] = trial.values
            if not trial.state.is_finished():
                self._go_on_with(trial.number)  # it ended with the sweep, and may not have been what ended it
        for trial in self._saved.get_trials():
            if trial.state is TrialState.FAIL:
                trial.values = self._worst()
                trial.state = TrialState.COMPLETE if trial.values else TrialState.PRUNED
            self._memory.add_trial(trial)

    def _propose(self) -> Trial | None:
        """A trial in memory of a combination that no run has."""
        if self._num_combinations and len(self._known) >= self._num_combinations:
            return None
        for _ in range(_PATIENCE):
            trial = self._memory.ask(self._distributions)
            if self._key(trial.params) not in self._known:
                break
            self._answer(trial)
        else:
            untried = self._untried()
            if untried is None:
                return None
            self._memory.enqueue_trial(untried)
            trial = self._memory.ask(self._distributions)
        self._known[self._key(trial.params)] = None
        return trial

    def _answer(self, trial: Trial) -> None:
        """Tell the sampler what it could know: the values of the run that had these settings."""
        trial.set_user_attr("cached", True)
        self._tell_sampler(trial.number, self._known[self._key(trial.params)])

    def _tell_sampler(self, number: int, values: Sequence[float] | None) -> None:
        """A run that failed counts as the worst so far.

        Samplers forget failed trials: with a setting of which one value in three always fails, TPE and GP spent 22 of
        30 runs on that value.
        """
        values = values or self._worst()
        self._memory.tell(number, values, state=TrialState.COMPLETE if values else TrialState.PRUNED)

    def _worst(self) -> list[float] | None:
        complete = [values for values in self._known.values() if values is not None]
        goals = enumerate(self._goals)
        return [(min if goal.maximize else max)(one[i] for one in complete) for i, goal in goals] if complete else None

    def _untried(self) -> dict[str, Any] | None:
        """A random combination that no run has; None if none is found."""
        if 0 < self._num_combinations <= _COUNTABLE:
            every = itertools.product(*(values_of(one) for one in self._distributions.values()))
            return self._named(self._random.choice([one for one in every if one not in self._known]))
        sampler = optuna.samplers.RandomSampler(seed=self._random.randrange(2**32))
        scratch = optuna.create_study(sampler=sampler)
        for _ in range(_PATIENCE):
            params = scratch.ask(self._distributions).params
            if self._key(params) not in self._known:
                return dict(params)
        return None

    def _key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(plain(params[name]) for name in self._distributions)

    def _named(self, key: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._distributions, key, strict=True))

    def _set(self, trial: FrozenTrial, name: str, value: Any) -> None:
        storage = self._storage
        study_id = storage.get_study_id_from_name(_NAME)
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        storage.set_trial_user_attr(trial_id, name, value)

    def _record(self, trial: FrozenTrial) -> SweepRecord:
        states: dict[TrialState, Literal["complete", "failed"]] = {
            TrialState.COMPLETE: "complete",
            TrialState.FAIL: "failed",
        }
        names = [goal.name for goal in self._goals]
        return SweepRecord(
            number=trial.number,
            settings=_plain_values(trial.params),
            state=states.get(trial.state, "running"),
            values=dict(zip(names, trial.values, strict=True)) if trial.state is TrialState.COMPLETE else {},
            reason=str(trial.user_attrs.get("reason", "")),
            seconds=float(trial.user_attrs.get("seconds", 0.0)),
        )

    def _refuse_other(self, identity: Mapping[str, Mapping[str, Any]]) -> None:
        found = self._saved.user_attrs
        for kind, what in (("settings", "is over"), ("goals", "is for"), ("fixed", "has")):
            before, now = dict(found.get(kind, {})), dict(identity[kind])
            if kind == "fixed":  # a setting that only one version knows says nothing
                before, now = ({name: one[name] for name in before.keys() & now} for one in (before, now))
            if before != now:
                close_saved(self._storage)
                raise StorageError(
                    f"{self._path}: this sweep {what} {_differences(before, now)}, not {_differences(now, before)}; "
                    "resume it with what it was started with, or choose another folder"
                )


def check_sweep(sampler: str, settings: Sequence[Setting], *, num_trials: int) -> None:
    """Refuse a sweep that makes no sense, before anything is written.

    Raises:
        SettingError: no such sampler, one that cannot sweep these settings, or no runs.
    """
    if num_trials < 1:
        raise SettingError(f"hydra.sweeper.trials must be at least 1, got {num_trials}")
    if sampler not in SAMPLERS:
        raise SettingError(f"hydra.sweeper.sampler: no sampler '{sampler}'{did_you_mean(sampler, SAMPLERS)}")
    if not settings:
        raise SettingError(
            "nothing to sweep: give a setting some values or a range, such as train.learning_rate=interval(0.001,0.01)"
        )
    for setting in settings:
        if sampler in _FINITE and not setting.is_listed:
            raise SettingError(
                f"hydra.sweeper.sampler={sampler} goes from value to value, and {setting.name}={setting} lists "
                "none: give it choice(...), or take hydra.sweeper.sampler=tpe"
            )
    if sampler == "grid" and math.prod(setting.count for setting in settings) > _COUNTABLE:
        raise SettingError(f"hydra.sweeper.sampler=grid goes through at most {_COUNTABLE:,} combinations")


def _plain_values(params: Mapping[str, Any]) -> Values:
    return {name: plain(value) for name, value in params.items()}


def _differences(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    """What differs, as one would write it; "nothing" where only the others have something."""
    missing = object()
    pairs = [f"{name}={value}" for name, value in these.items() if those.get(name, missing) != value]
    return ", ".join(pairs) or "nothing"
