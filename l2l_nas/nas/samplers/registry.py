"""Samplers by name: our own, and those of Optuna whose defaults are other ones here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.samplers.evolution import Random, RegularizedEvolution
from l2l_nas.plugins import is_named, made, name_and_arguments

# of a seed, how many trials are asked for, and arguments of its own
Build = Callable[..., optuna.samplers.BaseSampler]


def _tpe(seed: int, num_trials: int, n_startup_trials: int | None = None) -> optuna.samplers.BaseSampler:
    # Multivariate for two goals as well: independent TPE takes four times as long and repeats itself most.
    return optuna.samplers.TPESampler(
        seed=seed, multivariate=True, n_startup_trials=n_startup_trials or _first_draws(num_trials)
    )


def _nsga2(seed: int, num_trials: int, population_size: int | None = None) -> optuna.samplers.BaseSampler:
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=population_size or _generation(num_trials))


def _gp_hamming(seed: int, num_trials: int) -> optuna.samplers.BaseSampler:
    from l2l_nas.nas.samplers.hamming_gp import HammingGP  # its scipy takes half a second, and few processes propose

    climbs = max(1, min(4, num_trials // 50))
    start = 10 if climbs > 1 else max(5, min(20, num_trials // 6))
    return HammingGP(seed=seed, start=start, climbs=climbs, merge=num_trials * 11 // 20)


def _evolution(seed: int, num_trials: int, population_size: int | None = None) -> optuna.samplers.BaseSampler:
    return RegularizedEvolution(seed=seed, population=population_size or _first_draws(num_trials))


def _first_draws(num_trials: int) -> int:
    """Random trials before a model or a population means anything: a quarter, at most 20."""
    return max(5, min(20, num_trials // 4))


def _generation(num_trials: int) -> int:
    """Optuna's 50 would spend a search of 64 trials on one random generation."""
    return max(8, min(50, num_trials // 6))


SAMPLERS: dict[str, Build] = {
    "random": lambda seed, num_trials: Random(seed=seed),
    "tpe": _tpe,
    "nsga2": _nsga2,
    "gp_hamming": _gp_hamming,
    "evolution": _evolution,
}


def build_sampler(
    sampler: str | Mapping[str, Any] | optuna.samplers.BaseSampler,
    *,
    seed: int,
    num_trials: int,
    num_finished: int,
) -> optuna.samplers.BaseSampler:
    """A sampler by name; one that is built already is taken as it is.

    Args:
        sampler: a key of `SAMPLERS`, or `FILE.py:NAME` or `MODULE.NAME` of a class or function that gives one, such as
            `optuna.samplers.GPSampler`. It is given the seed, if it takes one of that name. A dict has the name, as
            "name", and the arguments of the sampler.
        num_trials: how many are asked for in all.
        num_finished: trials of the study so far. They are part of the seed, or a resumed sampler would draw its first
            proposals again.

    Raises:
        SettingError: no such name; or what is named gives no sampler.
        L2LError: what is named raised something.
    """
    if isinstance(sampler, optuna.samplers.BaseSampler):
        return sampler
    check_sampler(sampler)
    drawn = int(np.random.SeedSequence([seed, num_finished]).generate_state(1)[0])
    name, arguments = name_and_arguments(sampler)
    if not is_named(name):
        return SAMPLERS[name](drawn, num_trials, **arguments)
    own: optuna.samplers.BaseSampler = made(
        sampler,
        setting="sampler",
        offered={"seed": drawn},
        is_right=lambda one: isinstance(one, optuna.samplers.BaseSampler),
        kind="an optuna.samplers.BaseSampler",
    )
    return own


def check_sampler(sampler: str | Mapping[str, Any] | optuna.samplers.BaseSampler) -> None:
    """Refuse a sampler that there is not. Raises SettingError: no such name, with those there are."""
    if isinstance(sampler, optuna.samplers.BaseSampler):
        return
    if not isinstance(sampler, str | Mapping):
        raise SettingError(f"sampler: expected a name or an optuna.samplers.BaseSampler, got {sampler!r}")
    name, _ = name_and_arguments(sampler)
    if name not in SAMPLERS and not is_named(name):
        raise SettingError(f"no sampler '{name}'{did_you_mean(name, SAMPLERS)}")
