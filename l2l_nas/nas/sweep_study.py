"""The study of a sweep: each trial is a whole run with other settings.

Optuna's own study, in a journal, is all that there is. It knows a run from the moment it begins: what a killed sweep
left running is found there and goes on. A proposal that repeats a run gets that run's values and is no run.
"""

from __future__ import annotations

import itertools
import math
import random
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

# what one run of a sweep has for its settings, by name
Values = Mapping[str, str | int | float]


@dataclass(frozen=True)
class SweepRecord:
    """A run of a sweep.

    Args:
        number: from 0; also the name of its folder.
        settings: what it had for the swept settings.
        values: by goal name; empty unless complete.
        seconds, reason: what it took, or why it failed, where its folder was read.
    """

    number: int
    settings: Values
    state: Literal["complete", "failed", "running"]
    values: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""


class SweepStudy:
    """Asks a sampler for settings and keeps what became of each run in a journal.

    Args:
        path: the file; created unless `resume`.
        distributions: by setting, see `listed` and `between`; checked by `check_sweep`.
        goals: one or two.
        fixed: settings that all runs have in common; runs with others could not be compared.
        sampler, seed: the sampler's name and seed.
        num_runs: in all, those before a resume included.
        resume: go on with the study in `path`, which must be about the same.

    Raises:
        StorageError: the file cannot be written; or, on resume, is missing, damaged, or of another sweep.
    """

    def __init__(
        self,
        path: Path,
        distributions: Mapping[str, BaseDistribution],
        goals: Sequence[Goal],
        fixed: Mapping[str, Any],
        *,
        sampler: str,
        seed: int,
        num_runs: int,
        resume: bool,
    ) -> None:
        self.goals = goals
        self.settings = {name: described(one) for name, one in distributions.items()}
        self._path = path
        self._distributions = dict(distributions)
        self._num_runs = num_runs
        self._num_combinations = count(distributions)
        about = {
            "settings": self.settings,
            "goals": {goal.name: "up" if goal.maximize else "down" for goal in goals},
            "fixed": dict(fixed),
        }
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        if resume:
            self._study = open_journal(path, name=_NAME)
            with readable(path):
                self._refuse_other(about)
                refuse_directions(self._study, directions)
        else:
            names = [goal.name for goal in goals]
            self._study = create_journal(path, name=_NAME, directions=directions, metrics=names, attributes=about)
        with readable(path):
            trials, runs = self._study.get_trials(deepcopy=False), self._runs()
            self._study.sampler = build_sampler(sampler, seed=seed, num_trials=num_runs, num_finished=len(trials))
            self._random = random.Random(f"{seed} {len(trials)}")
            for trial in trials:
                if trial.state is TrialState.RUNNING and trial not in runs:  # a kill left it between two commits
                    self._study.tell(trial.number, state=TrialState.FAIL)
            # runs whose processes were lost
            self._left = [number for number, trial in enumerate(runs) if trial.state is TrialState.RUNNING]

    @property
    def records(self) -> tuple[SweepRecord, ...]:
        """All runs that were begun, in order."""
        return tuple(self._record(number, trial) for number, trial in enumerate(self._runs()))

    @property
    def front(self) -> tuple[int, ...]:
        """With one goal the best run; with two, those that no other beats on both."""
        best = {trial.number for trial in self._study.best_trials}
        return tuple(number for number, trial in enumerate(self._runs()) if trial.number in best)

    def ask(self) -> SweepRecord | None:
        """The next run; None when as many as asked for were begun, or every combination was.

        Runs whose processes were lost come first, under their own numbers.

        Raises:
            StorageError: the file could not be written.
        """
        if self._left:
            return self.records[self._left.pop(0)]
        known = {self._key(trial): trial for trial in self._runs()}
        if len(known) >= min(self._num_runs, self._num_combinations or self._num_runs):
            return None
        for _ in range(_PATIENCE):
            trial = self._study.ask(self._distributions)
            before = known.get(self._key(trial))
            if before is None:
                return self.records[-1]
            values = before.values if before.state is TrialState.COMPLETE else None
            self._study.tell(trial, values, state=TrialState.COMPLETE if values else TrialState.PRUNED)
        if not 0 < self._num_combinations <= _COUNTABLE:
            return None
        every = itertools.product(*map(values_of, self._distributions.values()))
        untried = self._random.choice([one for one in every if one not in known])
        self._study.enqueue_trial(dict(zip(self._distributions, untried, strict=True)))
        self._study.ask(self._distributions)
        return self.records[-1]

    def tell(self, number: int, values: Mapping[str, float] | None) -> None:
        """Record that a run ended; when this returns, it is in the file.

        Args:
            number: of the run.
            values: by goal name; None if it failed.

        Raises:
            StorageError: the file could not be written.
        """
        ordered = None if values is None else [float(values[goal.name]) for goal in self.goals]
        state = TrialState.FAIL if ordered is None else TrialState.COMPLETE
        with readable(self._path):
            self._study.tell(self._runs()[number].number, ordered, state=state)

    def importances(self) -> dict[str, float]:
        """How much of the first goal's variance each setting explains (fANOVA: Hutter et al., ICML 2014).

        Shares of 1, largest first; empty where too few runs are complete, or all are alike.
        """
        scores = [record.values[self.goals[0].name] for record in self.records if record.state == "complete"]
        if len(self._distributions) < 2 or len(scores) < _LEAST_FOR_IMPORTANCE or len(set(scores)) < 2:
            return {}
        found = optuna.importance.get_param_importances(
            self._study,
            evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0),
            target=lambda trial: trial.values[0],
        )
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    def _key(self, trial: FrozenTrial | optuna.trial.Trial) -> tuple[Any, ...]:
        return tuple(plain(trial.params[name]) for name in self._distributions)

    def _runs(self) -> list[FrozenTrial]:
        """Trials that are runs: neither repeats, nor cut short by a kill before they had all settings."""
        first: dict[tuple[Any, ...], FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.params.keys() == self._distributions.keys():
                first.setdefault(self._key(trial), trial)
        return list(first.values())

    def _record(self, number: int, trial: FrozenTrial) -> SweepRecord:
        settings = dict(zip(self._distributions, self._key(trial), strict=True))
        if trial.state is not TrialState.COMPLETE:
            return SweepRecord(number, settings, "failed" if trial.state is TrialState.FAIL else "running")
        values = {goal.name: value for goal, value in zip(self.goals, trial.values, strict=True)}
        return SweepRecord(number, settings, "complete", values)

    def _refuse_other(self, about: Mapping[str, Mapping[str, Any]]) -> None:
        for kind, what in (("settings", "is over"), ("goals", "is for"), ("fixed", "has")):
            before, now = dict(self._study.user_attrs.get(kind, {})), dict(about[kind])
            if kind == "fixed":  # a setting that only one version knows says nothing
                before, now = ({name: one[name] for name in before.keys() & now} for one in (before, now))
            if before != now:
                raise StorageError(
                    f"{self._path}: this sweep {what} {_differences(before, now)}, not {_differences(now, before)}; "
                    "resume it with what it was started with, or choose another folder"
                )


def check_sweep(sampler: str, distributions: Mapping[str, BaseDistribution]) -> None:
    """Refuse a sweep that makes no sense, before anything is written.

    Raises:
        SettingError: no such sampler, one that cannot sweep these settings, or no settings.
    """
    if sampler not in SAMPLERS:
        raise SettingError(f"hydra.sweeper.sampler: no sampler '{sampler}'{did_you_mean(sampler, SAMPLERS)}")
    if not distributions:
        raise SettingError(
            "nothing to sweep: give a setting some values or a range, such as train.learning_rate=interval(0.001,0.01)"
        )
    for name, one in distributions.items():
        is_listed = isinstance(one, CategoricalDistribution) or (isinstance(one, IntDistribution) and not one.log)
        if sampler in _FINITE and not is_listed:
            raise SettingError(
                f"hydra.sweeper.sampler={sampler} goes from value to value, and {name}={described(one)} lists "
                "none: give it choice(...), or take hydra.sweeper.sampler=tpe"
            )
    if sampler == "grid" and count(distributions) > _COUNTABLE:
        raise SettingError(f"hydra.sweeper.sampler=grid goes through at most {_COUNTABLE:,} combinations")


def count(distributions: Mapping[str, BaseDistribution]) -> int:
    """How many combinations there are; 0: no end of them."""
    return math.prod(len(values_of(one)) for one in distributions.values())


def listed(values: Sequence[str]) -> CategoricalDistribution:
    """Of a setting with a few values, in a fixed order: Optuna takes another order for another space."""
    return CategoricalDistribution(sorted(set(values)))


def between(
    name: str, low: float, high: float, *, is_whole: bool = False, is_log: bool = False, step: float = 0
) -> BaseDistribution:
    """Of a setting that is a number between two, both included.

    Args:
        name: of the setting.
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
    num_steps = round((distribution.high - distribution.low) / distribution.step)
    return [plain(distribution.low + index * distribution.step) for index in range(num_steps + 1)]


def plain(value: Any) -> Any:
    """The value without the rounding errors of adding steps: 0.3 rather than 0.30000000000000004."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _differences(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    """What differs, as one would write it; "nothing" where only the others have something."""
    missing = object()
    pairs = [f"{name}={value}" for name, value in these.items() if those.get(name, missing) != value]
    return ", ".join(pairs) or "nothing"
