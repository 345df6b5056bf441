"""Warm-up: the shared weights are trained on random paths, so that a trial's score tells of its architecture.

[Note: catch-up] Candidates that joined the pool between two runs are trained until they had as many steps as the
others: untrained, they could only get bad scores. The paths of that are random ones that take new candidates wherever a
position has one to train, each up to its target: those of all positions are trained at a time. They are planned
beforehand, and a plan made again half way through is the rest of the first one, so that an interrupted catch-up goes on
as if nothing had been.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from l2l_nas.errors import ConstraintError
from l2l_nas.nas.callback import Numbers
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths

# draws for a step before it is given up, where constraints refuse the new candidates
_DRAWS = 50


class WarmUp(Phase):
    """Trains the shared weights on random paths, and candidates that joined later."""

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            TrialError: a layer raised, or memory did not suffice. All trials share the weights that are trained here,
                so that no step is left out.
        """
        self._warm_up(search)
        self._catch_up(search)

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        caught_up = {"newcomers": search.new_candidates, "introduced": search.catch_up_steps}
        return {"warm_steps": search.warm_steps, **(caught_up if any(caught_up.values()) else {})}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        budget, coverage = search.budget, search.coverage
        search.warm_steps = int(state.get("warm_steps", 0))
        search.catch_up_steps = int(state.get("introduced", 0))
        met = coverage.new_candidates() if search.warm_steps >= budget.warmup_steps else {}
        saved = state.get("newcomers", {})
        search.new_candidates = {
            row: {**saved.get(row, {}), **met.get(row, {})} for row in coverage.rows if row in met or row in saved
        }

    def _warm_up(self, search: SearchContext) -> None:
        total, done = search.budget.warmup_steps, search.warm_steps
        search.callback.phase("warm-up", total=total, done=min(done, total))
        if done >= total:
            return
        _train(
            search,
            "warm_steps",
            search.paths.path_at,
            shown=done,
            start=done,
            steps=total - done,
            total=search.budget.shared_steps,
        )
        search.callback.covered(search.coverage)

    def _catch_up(self, search: SearchContext) -> None:
        done = search.catch_up_steps
        plan = plan_catch_up(
            search.pool,
            search.coverage,
            targets=search.new_candidates,
            seed=search.seed,
            constraints=search.constraints,
            done=done,
        )
        search.new_candidates = search.new_candidates if plan else {}
        if not plan:
            return
        first = search.budget.steps  # numbers behind all others: see [Note: steps] in `default.py`
        search.callback.phase("catch-up", total=len(plan), done=0)
        _train(
            search,
            "catch_up_steps",
            lambda step: plan[step - first - done],
            shown=0,
            start=first + done,
            steps=len(plan),
            total=done + len(plan),
            offset=first,
        )
        search.new_candidates = {}
        search.callback.covered(search.coverage)


def _train(
    search: SearchContext,
    counter: Literal["warm_steps", "catch_up_steps"],
    path_at: Callable[[int], Architecture],
    *,
    shown: int,
    start: int,
    steps: int,
    total: int,
    offset: int = 0,
) -> None:
    """Train the shared weights, and count each step.

    Args:
        counter: of the search.
        shown: steps that the callback has seen of this phase.
        total: steps over which the learning rate rises and falls.
    """
    counted = getattr(search, counter)
    numbers = Numbers(search.callback, "warm-up" if counter == "warm_steps" else "catch-up", done=counted)
    paths: dict[int, Architecture] = {}

    def remembered(step: int) -> Architecture:
        paths[step] = path_at(step)
        return paths[step]

    def after_step(step: int, loss: float) -> None:
        taken = step + 1 - start
        setattr(search, counter, counted + taken)
        search.coverage.add("warmup", paths.pop(step))
        search.callback.advance(shown + taken, detail=f"loss {loss:.3f}")
        numbers.loss(loss)
        search.save_when_due()
        search.callback.poll()

    search.evaluator.train(
        remembered,
        start=start,
        steps=steps,
        learning_rate=search.budget.learning_rate,
        total=total,
        offset=offset,
        after_step=after_step,
    )


def plan_catch_up(
    pool: LayerPool,
    coverage: Coverage,
    *,
    targets: Mapping[str, Mapping[str, int]],
    seed: int,
    constraints: Sequence[Constraint],
    done: int,
) -> list[Architecture]:
    """The paths that are left to train, in order; see [Note: catch-up].

    Args:
        pool: with the new candidates.
        coverage: what was trained so far.
        targets: target warm-up steps of each new candidate, by row and candidate.
        done: how many paths were trained already.
    """
    uniform = UniformPaths(pool, seed=seed, constraints=constraints)
    missing = {
        (row, name): target - coverage.steps("warmup", row).get(name, 0)
        for row, row_targets in targets.items()
        for name, target in row_targets.items()
    }
    missing = {key: left for key, left in missing.items() if left > 0}

    def path_at(step: int) -> Architecture | None:
        """A path with at least one new candidate; None where the constraints leave none."""
        lacking = _lacking(pool, coverage, missing)
        for draw in range(_DRAWS):
            generator = random.Random(f"{seed}/newcomers/{step}/{draw}")
            try:
                base = uniform.path_at(-(1 + draw + _DRAWS * (step + 1)))
            except ConstraintError:
                return None
            choices = list(base.choices)
            # where all new candidates at once are refused, fewer of them may be allowed
            count = len(lacking) if draw < _DRAWS // 2 else generator.randint(1, len(lacking))
            for index, name in generator.sample(lacking, count):
                choices[index] = name
            path = pool.canonical(Architecture(tuple(choices)))
            if first_violation(path, constraints) is None:
                return path
        return None

    paths: list[Architecture] = []
    while missing and (path := path_at(done + len(paths))) is not None:
        paths.append(path)
        for index, name in enumerate(path.choices):
            key = (coverage.row_of(index), name)
            if key in missing:
                missing[key] -= 1
                if missing[key] <= 0:
                    del missing[key]
    return paths


def _lacking(pool: LayerPool, coverage: Coverage, missing: Mapping[tuple[str, str], int]) -> list[tuple[int, str]]:
    """By position, the new candidate that lacks most."""
    found = []
    for index, position in enumerate(pool.positions):
        row = coverage.row_of(index)
        options = [(missing[row, c.name], c.name) for c in position.candidates if (row, c.name) in missing]
        if options:
            found.append((index, max(options)[1]))
    return found
