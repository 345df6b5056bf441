"""What every rule of early stopping must do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from l2l_nas.nas.evaluation.early_stopping import EarlyStop
from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.testing.problems import small_pool

_RUNGS = ("25/100", "50/100")
_TRIALS = 40


def check_early_stop(build: Callable[[Sequence[Goal]], EarlyStop], *, num_goals: int = 1) -> None:
    """A rule gives a reason or None, the same for the same trials, and learns from those of an interrupted search.

    Args:
        build: a new rule for some goals.
        num_goals: objectives that it is tried with, 1 or 2.

    Raises:
        AssertionError: it does not.
    """
    goals = (Goal("accuracy", True), Goal("parameters", False))[:num_goals]
    (whole, records), (same, _) = (_seen(build(goals), 0, _TRIALS) for _ in range(2))
    assert whole == same, "two rules decide otherwise about the same trials"
    rule = build(goals)
    rule.learn(records[: _TRIALS // 2])
    later, _ = _seen(rule, _TRIALS // 2, _TRIALS)
    assert later == whole[_TRIALS // 2 :], "what it learns of earlier trials is not what it saw of them"


def _seen(rule: EarlyStop, start: int, end: int) -> tuple[list[list[str | None]], list[TrialRecord]]:
    """What a rule says of each of these trials, whose figures are random, and their records."""
    paths = UniformPaths(small_pool(depth=6), seed=1)
    reasons: list[list[str | None]] = []
    records = []
    for number in range(start, end):
        generator = np.random.default_rng(number)
        architecture = paths.path_at(number)
        said: list[str | None] = []
        rungs: dict[str, dict[str, float]] = {}
        for rung in _RUNGS:
            rungs[rung] = {"accuracy": float(generator.random()), "parameters": float(generator.integers(9))}
            said.append(rule.stop_reason(architecture, rung, rungs[rung]))
            assert said[-1] is None or (isinstance(said[-1], str) and said[-1]), f"gave {said[-1]!r} for a reason"
            if said[-1] is not None:
                break
        reasons.append(said)
        state = State.STOPPED if said[-1] else State.COMPLETE
        records.append(TrialRecord(number, architecture, state, metrics=rungs[rung], rungs=rungs))
    return reasons, records
