"""A sampler of your own, of Optuna's kind: `sampler=examples/extensions/sampler.py:Neighbours`."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial


class Neighbours(optuna.samplers.BaseSampler):
    """Changes one choice of the best trial so far."""

    def __init__(self, seed: int) -> None:  # the search passes the run's seed, as the argument has this name
        self.rng = random.Random(seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {}

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        done: Sequence[FrozenTrial] = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
        sign = 1 if study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else -1
        best = max(done, key=lambda one: sign * one.values[0]) if done else None
        self.best = dict(best.params) if best else {}
        self.changed = self.rng.choice(list(self.best)) if self.best else None

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in self.best and param_name != self.changed:
            return self.best[param_name]
        return self.rng.choice(param_distribution.choices)  # type: ignore[attr-defined]
