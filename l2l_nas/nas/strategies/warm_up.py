"""Warm-up: the shared weights are trained on random paths, so that a trial's score tells of its architecture.

Candidates that joined the pool since then are trained until they had as many steps as the others; see `catch_up.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from l2l_nas.errors import SpaceError, TrialError
from l2l_nas.nas.strategies.catch_up import plan_catch_up
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.suspects import to_retire
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.schedule import Schedule


class WarmUp(Phase):
    """Trains the shared weights on random paths, and candidates that joined later."""

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            TrialError: a layer raised, or memory did not suffice. All trials share the weights that are trained here,
                so that no step is left out.
        """
        try:
            self._warm_up(search)
            self._catch_up(search)
        except SpaceError as error:
            if error.candidate is None:
                raise
            places = [one.name for one in search.pool.positions if error.candidate in [c.name for c in one.candidates]]
            cell = f"{error.position if len(places) == 1 else '*'}/{error.candidate}"
            raise TrialError(f"{error}; leave it out, and go on with: resume=FOLDER {to_retire([cell])}") from error

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        caught_up = {"newcomers": search.new_candidates, "introduced": search.catch_up_steps}
        return {"warm_steps": search.warm_steps, **(caught_up if any(caught_up.values()) else {})}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        budget, coverage = search.budget, search.coverage
        search.warm_steps = int(state.get("warm_steps", 0))
        search.catch_up_steps = int(state.get("introduced", 0))
        met = coverage.new_candidates(budget.catch_up_fraction) if search.warm_steps >= budget.warmup_steps else {}
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
            schedule=search.budget.schedule(search.budget.learning_rate, search.budget.shared_steps),
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
            schedule=search.budget.schedule(search.budget.learning_rate, done + len(plan)),
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
    schedule: Schedule,
    offset: int = 0,
) -> None:
    """Train the shared weights, and count each step.

    Args:
        counter: of the search.
        shown: steps that the callback has seen of this phase.
    """
    counted = getattr(search, counter)
    paths: dict[int, Architecture] = {}

    def remembered(step: int) -> Architecture:
        paths[step] = path_at(step)
        return paths[step]

    def after_step(step: int, loss: float) -> None:
        taken = step + 1 - start
        setattr(search, counter, counted + taken)
        search.coverage.add("warmup", paths.pop(step))
        search.callback.advance(shown + taken, detail=f"loss {loss:.3f}")
        search.save_when_due()
        search.callback.poll()

    search.trainer.fit(remembered, start=start, steps=steps, schedule=schedule, offset=offset, after_step=after_step)
