"""What every extension of a search must do: samplers, strategies, callbacks, early stopping and costs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.evaluation.early_stopping import EarlyStop
from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.study.reading import read_study
from l2l_nas.nas.study.storage import Unsaved
from l2l_nas.nas.study.study import Study, optuna_as_it_was, quiet_optuna
from l2l_nas.runs.api import SearchResult
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.testing.problems import searched, small_pool

_GOALS = (Goal("accuracy", True), Goal("parameters", False))
_RUNGS = ("25/100", "50/100")
_TRIALS = 40  # that a rule of early stopping sees
_STOPS = (7,)  # polls, of which there is one a step and one a trial


def check_sampler(build: Callable[[int], Any], *, num_goals: int = 1, trials: int = 30) -> None:
    """A sampler proposes candidates that there are, whatever became of its proposals, and its seed decides which.

    Args:
        build: a sampler of a seed.
        num_goals: objectives that it is tried with, 1 or 2.
        trials: how many it proposes.
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
        study.tell(trial, state, values if state is State.COMPLETE else {})
    return found


def check_strategy(build: Callable[[], Sequence[Phase]], **said: Any) -> None:
    """A search by these phases returns a network, takes no more trials than it was given, and goes on after a stop.

    Args:
        build: new phases each time.
        said: settings that it needs, as `l2l_nas.search` takes them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        whole = searched(Path(scratch) / "whole", strategy=build(), **said)
        asked = _checked(whole, "a search in one go")
        for place in _STOPS:
            folder = Path(scratch) / f"stopped{place}"
            stopper = _Stopper(place)
            searched(folder, strategy=build(), callbacks=[stopper], **said)
            if not stopper.is_over:
                continue  # it had ended before
            gone_on = searched(folder, strategy=build(), resume=str(folder), **said)
            found = _checked(gone_on, f"a search that was stopped at its poll {place} and went on")
            assert found == asked, f"stopped at its poll {place} and resumed, it evaluated {found} trials, not {asked}"


class _Stopper(Callback):
    def __init__(self, place: int) -> None:
        self.left, self.is_over = place, False

    def poll(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.is_over = True
            raise Stopped


def _checked(result: SearchResult, when: str) -> int:
    pool = small_pool()
    pool.path(pool.architecture(result.best.architecture.choices))  # raises if the pool has no such network
    assert result.network() is not None
    evaluated = sum(result.content["trials"][state] for state in ("complete", "stopped", "failed"))
    assert 0 < evaluated <= 6, f"{when}: {evaluated} trials of 6 were evaluated"
    drawn = [tuple(trial.user_attrs["architecture"]) for trial in result.study.trials if not trial.user_attrs["cached"]]
    assert len(set(drawn)) == len(drawn), f"{when}: an architecture was evaluated twice"
    return evaluated


def check_callback(build: Callable[[], Callback]) -> None:
    """A search that it sees is the search that nobody sees, also when it goes on.

    Args:
        build: a new callback each time.
    """
    with tempfile.TemporaryDirectory() as scratch:
        alone = searched(Path(scratch) / "alone")
        folder = Path(scratch) / "seen"
        seen = searched(folder, callbacks=[build()])
        events = read_study(folder / "study.log").events
        problems = [event["problem"] for event in events if event["event"] == "callback"]
        assert not problems, problems[0]
        assert _outcome(seen) == _outcome(alone), "with the callback, the search found something else than without"
        more = searched(folder, callbacks=[build()], resume=str(folder), trials=8)
        assert len(more.study.trials) > len(alone.study.trials), "with the callback, a search did not go on"


def _outcome(result: SearchResult) -> list[object]:
    return [result.best.values, [(one.params, one.values) for one in result.study.trials]]


def check_early_stop(build: Callable[[Sequence[Goal]], EarlyStop], *, num_goals: int = 1) -> None:
    """A rule gives a reason or None, the same for the same trials, and learns from those of an interrupted search.

    Args:
        build: a new rule for some goals.
        num_goals: objectives that it is tried with, 1 or 2.
    """
    goals = _GOALS[:num_goals]
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


def check_cost(cost: Callable[[Architecture], float], pool: LayerPool, *, architectures: int = 50) -> None:
    """A cost is a finite number of an architecture, the same whenever it is asked.

    Args:
        cost: less is better.
        pool: whose architectures it is asked about.
        architectures: how many random ones.
    """
    paths = UniformPaths(pool, seed=0)
    drawn = [paths.path_at(step) for step in range(architectures)]
    first = [cost(one) for one in drawn]
    for architecture, value in zip(drawn, first, strict=True):
        is_number = isinstance(value, Real) and math.isfinite(value)
        assert is_number, f"gave {value!r} for {architecture}, expected a finite number"
    for architecture, value in zip(reversed(drawn), reversed(first), strict=True):
        again = cost(Architecture(architecture.choices))
        assert again == value, f"gave {value} and then {again} for {architecture}"
