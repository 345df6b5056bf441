"""Architectures in a loop of your own: Optuna asks, you train and tell."""

from __future__ import annotations

from optuna.trial import BaseTrial

from l2l_nas.arguments import check_kind, check_methods
from l2l_nas.nas.study.choices import choices_in
from l2l_nas.nas.study.study import choices_of
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


def suggest(trial: BaseTrial, pool: LayerPool) -> Architecture:
    """The architecture that an Optuna trial chooses, in canonical form.

    A trial has one parameter for each position with a choice. Its name is the position's, its choices are the names of
    the candidates. The pool's constraints are not asked.

    Args:
        trial: of `study.ask()`, or of the function that `study.optimize` calls.

    Raises:
        SettingError: no trial, or no pool.

    Example:
        >>> study.optimize(lambda trial: train_and_score(suggest(trial, pool)), n_trials=64)
    """
    check_methods("suggest: trial", trial, ["suggest_categorical"], wanted="a trial of Optuna's")
    check_kind("suggest: pool", pool, LayerPool, wanted="a LayerPool")
    chosen = {
        name: trial.suggest_categorical(name, one.choices)  # type: ignore[attr-defined]
        for name, one in choices_in(pool).items()
    }
    return pool.canonical(choices_of(chosen, pool))
