"""What every sampler must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from l2l_nas.nas.objectives import Goal, State, TrialResult
from l2l_nas.nas.study.storage import Unsaved
from l2l_nas.nas.study.study import Study, optuna_as_it_was, quiet_optuna
from l2l_nas.testing.problems import small_pool

_GOALS = (Goal("accuracy", True), Goal("parameters", False))


def check_sampler(build: Callable[[int], Any], *, num_goals: int = 1, trials: int = 30) -> None:
    """A sampler proposes candidates that there are, whatever became of its proposals, and its seed decides which.

    Args:
        build: a sampler of a seed.
        num_goals: objectives that it is tried with, 1 or 2.
        trials: how many it proposes.

    Raises:
        AssertionError: it does not.
    """
    with optuna_as_it_was():
        quiet_optuna()
        first, again = (_proposals(build(3), num_goals, trials) for _ in range(2))
        assert first == again, "two samplers of one seed proposed different architectures for the same outcomes"
        assert len(set(first)) > 1, f"all of {trials} proposals are the same architecture"


def _proposals(sampler: Any, num_goals: int, trials: int) -> list[tuple[str, ...]]:
    pool = small_pool()
    names = [{one.name for one in position.candidates} for position in pool.positions]
    study = Study(Unsaved(), pool=pool, goals=_GOALS[:num_goals], sampler=sampler, seed=0, num_trials=trials)
    found = []
    for number in range(trials):
        trial, architecture = study.ask()
        for position, choice, known in zip(pool.positions, architecture.choices, names, strict=True):
            assert choice in known, f"proposed '{choice}' at {position.name}, which has {', '.join(sorted(known))}"
        found.append(architecture.choices)
        state = {5: State.PRUNED, 7: State.FAILED}.get(number % 8, State.COMPLETE)
        values = {"accuracy": architecture.choices.count("tanh") / 4, "parameters": float(len(set(found)))}
        study.tell(trial, TrialResult(state, values if state is State.COMPLETE else None))
    return found
