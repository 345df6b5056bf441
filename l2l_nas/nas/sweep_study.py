"""The study of a sweep: each trial is a whole run with other settings, in a journal of Optuna's.

A trial is in the file from the moment it begins, so what a killed sweep left running is found there and goes on. A
proposal that was tried before gets what came of it, and is no run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from l2l_nas.errors import SettingError, user_code
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.samplers.registry import build_sampler
from l2l_nas.nas.study.journal import create_journal, open_journal, readable, refuse_directions
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.plugins import is_named

# samplers that take ranges, too; those of our own go from value to value
SWEEP_SAMPLERS = ("tpe", "random", "nsga2", "nsga3", "gp")
_NAME = "sweep"
# proposals in a row that were tried before, until one that was not tried takes their place, or there are no others
_MOST_REPEATS = 25
_COUNTABLE = 100_000  # combinations that are gone through to find one


class SweepStudy:
    """Asks a sampler for settings, and keeps what became of each run.

    Args:
        path: the file; made if it is not there.
        distributions: by setting, see `listed` and `between`.
        goals: what is optimised.
        sampler, seed: the sampler's name and seed.
        num_runs: in all, those before a resume included.

    Raises:
        StorageError: the file cannot be written, is damaged, or has other objectives.
        L2LError: the sampler is the user's own, and raised something.
    """

    def __init__(
        self,
        path: Path,
        distributions: Mapping[str, BaseDistribution],
        goals: Sequence[Goal],
        *,
        sampler: str,
        seed: int,
        num_runs: int,
    ) -> None:
        quiet_optuna()
        self._path, self._distributions, self._num_runs = path, dict(distributions), num_runs
        self._own_sampler = sampler if is_named(sampler) else ""
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        if not path.exists():
            names = [goal.name for goal in goals]
            create_journal(path, name=_NAME, directions=directions, metrics=names, attributes={})
        self._study = open_journal(path, name=_NAME)
        with readable(path):
            refuse_directions(self._study, directions)
            before = self._study.get_trials(deepcopy=False)
            self._random = random.Random(f"{seed} {len(before)}")
            self._study.sampler = build_sampler(sampler, seed=seed, num_trials=num_runs, num_finished=len(before))
            runs = self._trials()
            for trial in before:
                if trial.state is TrialState.RUNNING and trial not in runs:  # killed while it was asked for
                    with self._naming_sampler():
                        self._study.tell(trial.number, state=TrialState.FAIL)

    @property
    def runs(self) -> dict[int, dict[str, Any]]:
        """The settings of each run, by its trial's number."""
        # floats without the rounding errors of adding steps: 0.3 rather than 0.30000000000000004
        return {
            trial.number: {
                name: float(f"{value:.12g}") if isinstance(value, float) else value
                for name, value in trial.params.items()
            }
            for trial in self._trials()
        }

    @property
    def num_finished(self) -> int:
        """Runs that are over."""
        return sum(trial.state.is_finished() for trial in self._trials())

    @property
    def best(self) -> list[int]:
        """With one goal the best runs; with more, those that no other beats on all."""
        runs = {trial.number for trial in self._trials()}
        return [trial.number for trial in self._study.best_trials if trial.number in runs]

    def ask(self, most: int) -> list[int]:
        """Numbers of the next runs: those that a kill left running, then new ones; none when there are no more.

        Args:
            most: how many at once.

        Raises:
            StorageError: the file could not be written.
            UserCodeError: the user's own sampler raised something.
        """
        with readable(self._path):
            runs = self._trials()
            batch = [trial.number for trial in runs if trial.state is TrialState.RUNNING][:most]
            combinations = math.prod(len(_values_of(one)) for one in self._distributions.values())
            total = min(self._num_runs, combinations or self._num_runs)
            while len(batch) < most and len(runs) < total:
                number = self._ask_new({self._key(run): run for run in runs}, combinations)
                if number is None:
                    break
                batch.append(number)
                runs = self._trials()
        return batch

    def _ask_new(self, known: Mapping[tuple[Any, ...], FrozenTrial], combinations: int) -> int | None:
        """The number of a trial with settings that no run has; None if the sampler has no others."""
        with self._naming_sampler():
            for _ in range(_MOST_REPEATS):
                trial = self._study.ask(self._distributions)
                before = known.get(self._key(trial))
                if before is None:
                    return trial.number
                # it gets what came of its run, if that is over
                is_over = before.state.is_finished()
                self._study.tell(trial, before.values, state=before.state if is_over else TrialState.PRUNED)
            if not 0 < combinations <= _COUNTABLE:
                return None
            every = itertools.product(*map(_values_of, self._distributions.values()))
            untried = self._random.choice([one for one in every if one not in known])
            self._study.enqueue_trial(dict(zip(self._distributions, untried, strict=True)))
            return self._study.ask(self._distributions).number

    def tell(self, number: int, values: Sequence[float] | None) -> None:
        """Record that a run ended; when this returns, it is in the file.

        Args:
            number: of its trial.
            values: in the order of the goals; None if it failed.

        Raises:
            StorageError: the file could not be written.
            UserCodeError: the user's own sampler raised something; the run is in the file.
        """
        with readable(self._path), self._naming_sampler():
            self._study.tell(number, values, state=TrialState.FAIL if values is None else TrialState.COMPLETE)

    def _key(self, trial: FrozenTrial | Trial) -> tuple[Any, ...]:
        return tuple(trial.params[name] for name in self._distributions)

    def _naming_sampler(self) -> contextlib.AbstractContextManager[None]:
        """Around what may call a sampler of the user's own: the file is not at fault for what that raises."""
        return user_code(f"sampler {self._own_sampler}") if self._own_sampler else contextlib.nullcontext()

    def _trials(self) -> list[FrozenTrial]:
        """Trials that are runs: the first with its settings, and none that a kill cut short before it had them all."""
        first: dict[tuple[Any, ...], FrozenTrial] = {}
        for trial in self._study.get_trials(deepcopy=False):
            if trial.params.keys() == self._distributions.keys():
                first.setdefault(self._key(trial), trial)
        return list(first.values())


def _values_of(distribution: BaseDistribution) -> Sequence[Any]:
    """Every value; none of one that has no end of them, or steps between floats."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution):
        return range(distribution.low, distribution.high + 1, distribution.step)
    return ()


def listed(values: Sequence[str]) -> BaseDistribution:
    """Of a setting with a few values."""
    return CategoricalDistribution(sorted(set(values)))


def between(
    name: str, low: float, high: float, *, is_whole: bool = False, is_log: bool = False, step: float | None = None
) -> BaseDistribution:
    """Of a setting that is a number between two, both included.

    Args:
        name: of the setting.
        step: only low, low + step, ... up to high; None for every number.

    Raises:
        SettingError: no such range.
    """
    try:
        if not is_whole:
            return FloatDistribution(low, high, log=is_log, step=step)
        if any(number % 1 for number in (low, high, step or 1)):
            raise ValueError("it takes whole numbers")
        return IntDistribution(int(low), int(high), log=is_log, step=int(step or 1))
    except ValueError as error:
        raise SettingError(f"{name}: no range from {low:g} to {high:g}: {error}") from None


def ends_of(distribution: BaseDistribution) -> Sequence[Any]:
    """Every value of one that lists them, the lowest and the highest of a range."""
    if isinstance(distribution, IntDistribution | FloatDistribution):
        return distribution.low, distribution.high
    assert isinstance(distribution, CategoricalDistribution)
    return distribution.choices
