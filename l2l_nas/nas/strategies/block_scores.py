"""Scores of the blocks of a network that is taken apart; the networks with the best sums become trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from l2l_nas.cost.table import Limit
from l2l_nas.errors import ConstraintError
from l2l_nas.nas.strategies.block_solver import Block, best_paths, blocks_of, costs_of, key_of
from l2l_nas.nas.strategies.block_training import DistilBlocks
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.space.architecture import Architecture

# networks that a constraint refuses before it is given up
_MOST_REFUSED = 1000
_ORIGINAL = ""  # the key of the network as it is


class ScoreBlocks(Phase):
    """Scores each block, and proposes the networks with the best sums within the limits as the trials."""

    def __init__(self, scores: str) -> None:
        self._kind = scores
        self.values: dict[str, float | None] = {}

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            ConstraintError: no network is within the limits.
        """
        left = search.budget.trials - search.study.num_evaluated
        if left <= 0:
            return
        blocks = blocks_of(search.pool)
        if self._kind == "exchange":
            self._measure(search, blocks)
        scores = self._scores(search)
        sums = search.costs.sums(search.pool)
        limits = [
            (costs_of(search.pool, blocks, sums.get(one.cost.name, one.value)), one.most)
            for one in search.constraints
            if isinstance(one, Limit)
        ]
        named = {(index, name): scores[key_of(search.pool, (index, name))] for index, name in blocks}
        known = {record.architecture for record in search.study.records}
        found = (one for one in best_paths(search.pool, named, limits=limits) if one not in known)
        refused = 0
        for network in found:
            search.callback.poll()
            if search.is_allowed(network):
                search.study.propose(network)
                left -= 1
            else:  # a limit that is no sum over blocks, or a constraint of the user's own
                refused += 1
            if not left:
                return
            if refused > _MOST_REFUSED:
                if left < search.budget.trials:
                    return  # fewer than asked for
                raise ConstraintError(
                    f"none of the {refused} networks with the best sums of scores is within the limits; raise them, or "
                    "add smaller candidates"
                )

    def _scores(self, search: SearchContext) -> dict[str, float]:
        """Of each block, what it is worse by than the original's; a bad one where it is not known."""
        if self._kind == "error":
            return _errors(search)
        goal, first = search.goals[0], self.values[_ORIGINAL]
        worse: dict[str, float] = {}
        for index, name in blocks_of(search.pool):
            key = key_of(search.pool, (index, name))
            value = first if name == search.pool.original.choices[index] else self.values[key]
            if value is not None and first is not None:
                worse[key] = first - value if goal.maximize else value - first
        most = max(worse.values(), default=0.0)
        keys = [key_of(search.pool, block) for block in blocks_of(search.pool)]
        return {key: worse.get(key, 10 * abs(most) + 1) for key in keys}

    def _measure(self, search: SearchContext, blocks: list[Block]) -> None:
        """The first metric of the original, and of each network with one other block; None where it is not finite."""
        original, name = search.pool.original, search.goals[0].name
        networks = {_ORIGINAL: original} | {
            key_of(search.pool, (index, other)): Architecture(
                (*original.choices[:index], other, *original.choices[index + 1 :])
            )
            for index, other in blocks
            if other != original.choices[index]
        }
        left = [key for key in networks if key not in self.values]
        search.callback.phase("scores", total=len(networks), done=len(self.values))
        for start in range(0, len(left), search.budget.population):
            search.callback.poll()
            some = left[start : start + search.budget.population]
            found = search.evaluator.score_all([networks[key] for key in some])
            for key, one in zip(some, found, strict=True):
                value = math.nan if one is None else one[name]
                self.values[key] = value if math.isfinite(value) else None
            search.callback.advance(len(self.values))
            search.save_when_due()

    def results(self, search: SearchContext) -> Mapping[str, Any]:
        """See `Phase`: of each block its score, and its error of imitation."""
        if self._kind == "exchange" and not self.values:
            return {}
        scores, errors = self._scores(search), _errors(search)
        return {"blocks": {key: {"score": score, "error": errors.get(key)} for key, score in scores.items()}}

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        return {"block_values": self.values}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        found = state.get("block_values", {}).items()
        self.values = {str(key): None if value is None else float(value) for key, value in found}


def _errors(search: SearchContext) -> dict[str, float]:
    return next(dict(phase.errors) for phase in search.phases if isinstance(phase, DistilBlocks))
