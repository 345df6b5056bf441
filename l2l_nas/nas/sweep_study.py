"""The study of a sweep: each trial is a whole run with other settings.

Optuna's own study, in a journal, is all that there is. It knows a run from the moment it begins: what a killed sweep
left running is found there and goes on. A proposal that repeats a run gets that run's values and is no run.
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
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler
from l2l_nas.nas.study.journal import create_journal, open_journal, readable, refuse_directions

_NAME = "sweep"
# proposals that repeat before a random combination takes the sampler's place
_PATIENCE = 25
# the most combinations that are gone through one by one
_COUNTABLE = 100_000
# samplers that go from value to neighbouring value, or through all
_FINITE = ("gp_hamming", "evolution", "local", "grid")
# fewer runs say nothing of what matters
_LEAST_FOR_IMPORTANCE = 4

_STATES: Mapping[TrialState, Literal["complete", "failed"]] = {
    TrialState.COMPLETE: "complete",
    TrialState.FAIL: "failed",
}
# what one run of a sweep has for its settings, by name
Values = Mapping[str, str | int | float]


@dataclass(frozen=True)
class SweepRecord:
    """A run of a sweep.

    Args:
        number: from 0; also the name of its folder.
        settings: what it had for the swept settings.
        state: complete, failed, or running.
        values: by goal name; empty unless complete.
        seconds, reason: what it took, or why it failed, where its folder was read.
    """

    number: int
    settings: Values
    state: Literal["complete", "failed", "running"]
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep is about; one that goes on must be about the same.

    Args:
        distributions: by setting, see `listed` and `between`.
        goals: one or two.
        fixed: settings that all runs have in common; runs with others could not be compared.
    """

    distributions: Mapping[str, BaseDistribution]
    goals: Sequence[Goal]
    fixed: Mapping[str, Any]

    @property
    def identity(self) -> dict[str, dict[str, Any]]:
        """The same as plain data."""
        return {
            "settings": {name: described(one) for name, one in self.distributions.items()},
            "goals": {goal.name: "up" if goal.maximize else "down" for goal in self.goals},
            "fixed": dict(self.fixed),
        }

    @property
    def count(self) -> int:
        """How many combinations there are; 0: no end of them."""
        return math.prod(len(values_of(one)) for one in self.distributions.values())

    def key(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a run, to compare it with others."""
        return tuple(plain(params[name]) for name in self.distributions)


class SweepStudy:
    """Asks a sampler for settings and keeps what became of each run in a journal.

    Args:
        path: the file; created unless `resume`.
        plan: what it is about.
        sampler: its name.
        seed: of the sampler.
        num_runs: in all, those before a resume included.
        resume: go on with the study in `path`.

    Raises:
        SettingError: no such sampler, or one that does not suit the settings.
        StorageError: the file cannot be written; or, on resume, is missing, damaged, or of another sweep.
    """

    def __init__(self, path: Path, plan: SweepPlan, *, sampler: str, seed: int, num_runs: int, resume: bool) -> None:
        check_sweep(sampler, plan)
        self._path = path
        self._plan = plan
        self._num_runs = num_runs
        self._distributions = dict(plan.distributions)
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in plan.goals]
        if resume:
            self._study = open_journal(path, name=_NAME)
            with readable(path):
                self._refuse_other(plan.identity)
                refuse_directions(self._study, directions)
        else:
            names = [goal.name for goal in plan.goals]
            self._study = create_journal(
                path, name=_NAME, directions=directions, metrics=names, attributes=plan.identity
            )
        num_before = len(self._study.get_trials(deepcopy=False))
        self._study.sampler = build_sampler(sampler, seed=seed, num_trials=num_runs, num_finished=num_before)
        self._random = random.Random(f"{seed} {num_before}")
        with readable(path):
            runs = {trial.number for trial in self._runs}
            for trial in self._study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
                if trial.number not in runs:  # a kill left it between two commits
                    self._study.tell(trial.number, state=TrialState.FAIL)
            running = [record.number for record in self.records if record.state == "running"]
        self._left = deque(running)
        self.left_behind = frozenset(running)  # runs that were begun, and whose processes were lost

    @property
    def records(self) -> tuple[SweepRecord, ...]:
        """All runs that were begun, in order."""
        return tuple(self._record(number, trial) for number, trial in enumerate(self._runs))

    @property
    def front(self) -> tuple[int, ...]:
        """With one goal the best run; with two, those that no other beats on both."""
        best = {trial.number for trial in self._study.best_trials}
        return tuple(number for number, trial in enumerate(self._runs) if trial.number in best)

    def ask(self) -> SweepRecord | None:
        """The next run; None when as many as asked for were begun, or every combination was.

        Runs whose processes were lost come first, under their own numbers.

        Raises:
            StorageError: the file could not be written.
        """
        if self._left:
            return self.records[self._left.popleft()]
        known = {self._plan.key(trial.params): trial for trial in self._runs}
        if len(known) >= min(self._num_runs, self._plan.count or self._num_runs):
            return None
        for _ in range(_PATIENCE):
            trial = self._study.ask(self._distributions)
            before = known.get(self._plan.key(trial.params))
            if before is None:
                return self.records[len(known)]
            values = before.values if before.state is TrialState.COMPLETE else None
            self._study.tell(trial, values, state=TrialState.COMPLETE if values else TrialState.PRUNED)
        untried = self._untried(known)
        if untried is None:
            return None
        self._study.enqueue_trial(untried)
        self._study.ask(self._distributions)
        return self.records[len(known)]

    def tell(self, number: int, values: Mapping[str, float] | None) -> None:
        """Record that a run ended; when this returns, it is in the file.

        Args:
            number: of the run.
            values: by goal name; None if it failed.

        Raises:
            StorageError: the file could not be written.
        """
        ordered = None if values is None else [float(values[goal.name]) for goal in self._plan.goals]
        state = TrialState.FAIL if ordered is None else TrialState.COMPLETE
        with readable(self._path):
            self._study.tell(self._runs[number].number, ordered, state=state)

    def importances(self) -> dict[str, float]:
        """How much of the first goal's variance each setting explains (fANOVA: Hutter et al., ICML 2014).

        Shares of 1, largest first; empty where too few runs are complete, or all are alike.
        """
        scores = [record.values[self._plan.goals[0].name] for record in self.records if record.state == "complete"]
        if len(self._distributions) < 2 or len(scores) < _LEAST_FOR_IMPORTANCE or len(set(scores)) < 2:
            return {}
        found = optuna.importance.get_param_importances(
            self._study,
            evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
            target=lambda trial: trial.values[0],
        )
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    @property
    def _runs(self) -> list[FrozenTrial]:
        """Trials that are runs: neither repeats, nor cut short by a kill before they had all settings."""
        first: dict[tuple[Any, ...], FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.params.keys() == self._distributions.keys():
                first.setdefault(self._plan.key(trial.params), trial)
        return list(first.values())

    def _untried(self, known: Mapping[tuple[Any, ...], FrozenTrial]) -> dict[str, Any] | None:
        """A random combination that no run has; None where they cannot be counted."""
        if not 0 < self._plan.count <= _COUNTABLE:
            return None
        every = itertools.product(*map(values_of, self._distributions.values()))
        chosen = self._random.choice([one for one in every if one not in known])
        return dict(zip(self._distributions, chosen, strict=True))

    def _record(self, number: int, trial: FrozenTrial) -> SweepRecord:
        values = trial.values if trial.state is TrialState.COMPLETE else None
        return SweepRecord(
            number=number,
            settings={name: plain(trial.params[name]) for name in self._distributions},
            state=_STATES.get(trial.state, "running"),
            values={goal.name: value for goal, value in zip(self._plan.goals, values or (), strict=False)},
        )

    def _refuse_other(self, identity: Mapping[str, Mapping[str, Any]]) -> None:
        found = self._study.user_attrs
        for kind, what in (("settings", "is over"), ("goals", "is for"), ("fixed", "has")):
            before, now = dict(found.get(kind, {})), dict(identity[kind])
            if kind == "fixed":  # a setting that only one version knows says nothing
                before, now = ({name: one[name] for name in before.keys() & now} for one in (before, now))
            if before != now:
                raise StorageError(
                    f"{self._path}: this sweep {what} {_differences(before, now)}, not {_differences(now, before)}; "
                    "resume it with what it was started with, or choose another folder"
                )


def check_sweep(sampler: str, plan: SweepPlan) -> None:
    """Refuse a sweep that makes no sense, before anything is written.

    Raises:
        SettingError: no such sampler, one that cannot sweep these settings, or no settings.
    """
    if sampler not in SAMPLERS:
        raise SettingError(f"hydra.sweeper.sampler: no sampler '{sampler}'{did_you_mean(sampler, SAMPLERS)}")
    if not plan.distributions:
        raise SettingError(
            "nothing to sweep: give a setting some values or a range, such as train.learning_rate=interval(0.001,0.01)"
        )
    for name, one in plan.distributions.items():
        is_listed = isinstance(one, CategoricalDistribution) or (isinstance(one, IntDistribution) and not one.log)
        if sampler in _FINITE and not is_listed:
            raise SettingError(
                f"hydra.sweeper.sampler={sampler} goes from value to value, and {name}={described(one)} lists "
                "none: give it choice(...), or take hydra.sweeper.sampler=tpe"
            )
    if sampler == "grid" and plan.count > _COUNTABLE:
        raise SettingError(f"hydra.sweeper.sampler=grid goes through at most {_COUNTABLE:,} combinations")


def listed(values: Sequence[str]) -> CategoricalDistribution:
    """Of a setting with a few values, in a fixed order: Optuna takes another order for another space."""
    return CategoricalDistribution(sorted(set(values)))


def between(
    name: str, low: float, high: float, *, is_whole: bool = False, is_log: bool = False, step: float = 0
) -> BaseDistribution:
    """Of a setting that is a number between two, both included.

    Args:
        name: of the setting.
        is_whole: whether it is a whole number.
        is_log: whether factors matter rather than differences.
        step: only low, low + step, ... up to high; 0 for every number.

    Raises:
        SettingError: no such range.
    """
    if not low <= high:
        raise SettingError(f"{name}: the range from {low:g} to {high:g} is empty")
    if is_log and low <= 0:
        raise SettingError(f"{name}: a range with tag(log, ...) begins above 0, not at {low:g}")
    if is_log and step > is_whole:
        raise SettingError(f"{name}: tag(log, ...) goes with an interval, not with steps of {step:g}")
    if not is_whole:
        return FloatDistribution(low, high, log=is_log, step=step or None)
    if not all(float(bound).is_integer() for bound in (low, high, step)):
        raise SettingError(f"{name} takes whole numbers: no range from {low:g} to {high:g}")
    return IntDistribution(int(low), int(high), log=is_log, step=int(step or 1))


def described(distribution: BaseDistribution) -> str:
    """As the command line writes it."""
    if isinstance(distribution, CategoricalDistribution):
        return f"choice({','.join(map(str, distribution.choices))})"
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    is_whole = isinstance(distribution, IntDistribution)
    if step and not (is_whole and step == 1):  # what ends a range is not part of it
        return f"range({low:.12g},{high + step:.12g},{step:.12g})"
    text = f"interval({low:.12g},{high:.12g})"
    return f"tag(log,{text})" if distribution.log else f"int({text})" if is_whole else text


def ends_of(distribution: BaseDistribution) -> list[Any]:
    """Every value of one that lists them, the lowest and the highest of a range."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return [distribution.low, distribution.high]


def values_of(distribution: BaseDistribution) -> list[Any]:
    """All values of a distribution that has a finite number of them; none of another."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if not distribution.step:
        return []
    count = round((distribution.high - distribution.low) / distribution.step) + 1
    return [plain(distribution.low + index * distribution.step) for index in range(count)]


def plain(value: Any) -> Any:
    """The value without the rounding errors of adding steps: 0.3 rather than 0.30000000000000004."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _differences(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    """What differs, as one would write it; "nothing" where only the others have something."""
    missing = object()
    pairs = [f"{name}={value}" for name, value in these.items() if those.get(name, missing) != value]
    return ", ".join(pairs) or "nothing"
