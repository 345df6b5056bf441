"""Optuna's samplers by name. A new one is one entry here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import optuna

from l2l_nas.errors import SettingError, did_you_mean

Build = Callable[[int, int, int], optuna.samplers.BaseSampler]


def _random(seed: int, num_goals: int, num_trials: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


def _tpe(seed: int, num_goals: int, num_trials: int) -> optuna.samplers.BaseSampler:
    # Multivariate for two goals as well: independent TPE takes four times as long and repeats itself most.
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=max(5, min(20, num_trials // 4)))


def _nsga2(seed: int, num_goals: int, num_trials: int) -> optuna.samplers.BaseSampler:
    # Optuna's population of 50 would spend a search of 64 trials on one random generation.
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=max(8, min(50, num_trials // 6)))


SAMPLERS: dict[str, Build] = {"random": _random, "tpe": _tpe, "nsga2": _nsga2}


def build_sampler(
    name: str, *, seed: int, num_goals: int, num_trials: int, num_finished: int
) -> optuna.samplers.BaseSampler:
    """A sampler by name.

    Args:
        name: a key of `SAMPLERS`, or "auto": TPE for one goal, NSGA-II for two.
        num_trials: how many are asked for in all.
        num_finished: trials of the study so far. They are part of the seed, or a resumed sampler would draw its first
            proposals again.

    Raises:
        SettingError: no such name.
    """
    check_sampler(name)
    if name == "auto":
        name = "tpe" if num_goals == 1 else "nsga2"
    drawn = int(np.random.SeedSequence([seed, num_finished]).generate_state(1)[0])
    return SAMPLERS[name](drawn, num_goals, num_trials)


def check_sampler(name: str) -> None:
    """Refuse a name that is not a sampler's.

    Raises:
        SettingError: with those there are.
    """
    known = ("auto", *SAMPLERS)
    if name not in known:
        raise SettingError(f"search.sampler: no sampler '{name}'{did_you_mean(name, known)}")
