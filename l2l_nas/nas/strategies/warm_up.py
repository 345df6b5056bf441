"""Warm-up: the shared weights are trained on random paths, so that a trial's score tells of its architecture.

Candidates that joined the pool since then are trained until they had as many steps as the others; see `catch_up.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2l_nas.errors import SpaceError, TrialError
from l2l_nas.nas.strategies.catch_up import Introduction
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.suspects import to_retire
from l2l_nas.space.architecture import Architecture


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
        """See `Phase`."""
        if not search.new_candidates and not search.catch_up_steps:
            return {"warm_steps": search.warm_steps}
        return {
            "warm_steps": search.warm_steps,
            "newcomers": search.new_candidates,
            "introduced": search.catch_up_steps,
        }

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        """See `Phase`."""
        budget, coverage = search.budget, search.coverage
        search.warm_steps = int(state.get("warm_steps", 0))
        search.catch_up_steps = int(state.get("introduced", 0))
        met = coverage.new_candidates(budget.catch_up_fraction) if search.warm_steps >= budget.warmup_steps else {}
        saved = state.get("newcomers", {})
        search.new_candidates = {
            row: {**saved.get(row, {}), **met.get(row, {})} for row in coverage.rows if row in met or row in saved
        }

    def _warm_up(self, search: SearchContext) -> None:
        total = search.budget.warmup_steps
        search.callback.phase("warm-up", total=total, done=min(search.warm_steps, total))
        if search.warm_steps >= total:
            return
        paths: dict[int, Architecture] = {}

        def path_at(step: int) -> Architecture:
            paths[step] = search.paths.path_at(step)
            return paths[step]

        def after_step(step: int, loss: float) -> None:
            search.warm_steps = step + 1
            search.coverage.add("warmup", paths.pop(step))
            search.callback.advance(step + 1, detail=f"loss {loss:.3f}")
            search.save_when_due()
            search.callback.poll()

        search.trainer.fit(
            path_at,
            start=search.warm_steps,
            steps=total - search.warm_steps,
            schedule=search.budget.schedule(search.budget.learning_rate, search.budget.shared_steps),
            after_step=after_step,
        )
        search.callback.covered(search.coverage)

    def _catch_up(self, search: SearchContext) -> None:
        plan = Introduction(
            search.pool,
            search.coverage,
            targets=search.new_candidates,
            seed=search.seed,
            constraints=search.constraints,
        ).plan(done=search.catch_up_steps)
        search.new_candidates = search.new_candidates if plan else {}
        if not plan:
            return
        # numbers behind all others: see [Note: steps] in `default.py`
        first = search.budget.steps
        done = search.catch_up_steps
        start = first + done
        search.callback.phase("catch-up", total=len(plan), done=0)

        def after_step(step: int, loss: float) -> None:
            search.coverage.add("warmup", plan[step - start])
            search.catch_up_steps = done + step + 1 - start
            search.callback.advance(step + 1 - start, detail=f"loss {loss:.3f}")
            search.save_when_due()
            search.callback.poll()

        search.trainer.fit(
            lambda step: plan[step - start],
            start=start,
            steps=len(plan),
            schedule=search.budget.schedule(search.budget.learning_rate, done + len(plan)),
            offset=first,
            after_step=after_step,
        )
        search.new_candidates = {}
        search.callback.covered(search.coverage)
