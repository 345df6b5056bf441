"""Taking a network apart: blocks imitate the original's, are scored one by one, and the best sums become trials.

    l2l_nas.search(problem, strategy=blockwise(samples=64, steps=100), trial_weights="fork", limits={"parameters": 1e6})
    python -m l2l_nas search strategy=blockwise search.trial_weights=fork search.limits.parameters=1e6

The original is the first candidate of each position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from l2l_nas.cost.table import Limit
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, SettingError, SpaceError
from l2l_nas.nas.evaluation.evaluator import InlineExecutor
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.blockwise import BlockDistillation, BlockSettings
from l2l_nas.training.metrics import measured
from l2l_nas.training.teach import TaughtBatches, TaughtTask

SCORES = ("exchange", "error")
# networks that a constraint refuses before it is given up
_MOST_REFUSED = 1000
_ORIGINAL = ""  # the key of the network as it is

Block = tuple[int, str]  # a layer by index of its position and name


def blockwise(
    samples: int = 64,
    steps: int = 100,
    learning_rate: float = 1e-3,
    scores: str = "exchange",
    teacher: float = 0.5,
) -> list[Phase]:
    """The phases of a blockwise search.

    Args:
        samples: of the training part, whose values in the original the candidates imitate.
        steps: of each candidate.
        learning_rate: peak, of these.
        scores: what a block's score is: "exchange", by how much the original's first metric is worse on the validation
            part with this block in place of its own; "error", how well it imitates.
        teacher: share of the original's outputs in the loss of trials and finalists; 0 for tasks without classes.

    Raises:
        SettingError: a setting out of range.
    """
    if scores not in SCORES:
        raise SettingError(f"strategy.scores: expected {' or '.join(SCORES)}, got '{scores}'")
    if samples < 2:
        raise SettingError(f"strategy.samples must be at least 2, got {samples}")
    settings = BlockSettings(steps=steps, learning_rate=learning_rate)
    taught = [Teach(teacher)] if teacher else []
    return [*taught, DistilBlocks(samples, settings), ScoreBlocks(scores), Trials(), Finalists(), RandomSearch()]


class DistilBlocks(Phase):
    """Trains each candidate to imitate the original of its position.

    Args:
        samples: how many of the training part.
    """

    def __init__(self, samples: int, settings: BlockSettings) -> None:
        self._samples, self._settings = samples, settings
        self.errors: dict[str, float] = {}

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`.

        Raises:
            SettingError: trials would not use these weights, or parameters are updated in groups.
            SpaceError: a pool that cannot be taken apart.
        """
        if budget.trial_weights == "scratch":
            raise SettingError(
                "strategy=blockwise trains blocks, and with search.trial_weights=scratch no trial uses them; write "
                "search.trial_weights=shared or fork"
            )
        BlockDistillation(server, server.pool.original, Relay)
        if not server.pool.is_separable:
            raise SpaceError("the blocks of this pool depend on each other, so that their scores do not add up")

    def run(self, search: SearchContext) -> None:
        total = sum(len(position.candidates) for position in search.pool.positions)
        search.callback.phase("blocks", total=total, done=len(self.errors))
        settings = replace(self._settings, micro_batch=min(self._settings.batch_size, search.trainer.micro_batch))
        distillation = BlockDistillation(
            search.server, search.pool.original, _relays(search), settings, seed=search.seed
        )
        for key, error in distillation.run(self._inputs(search), done=self.errors, poll=search.callback.poll):
            self.errors[key] = error
            search.callback.advance(len(self.errors))
            search.save_when_due()

    def _inputs(self, search: SearchContext) -> Batch:
        batches = search.trainer.batches
        parts = []
        for step in itertools.count():
            parts.append(batches.at(step)[0])
            if sum(len(part[0]) for part in parts) >= self._samples:
                return tuple(torch.cat(tensors)[: self._samples] for tensors in zip(*parts, strict=True))
        raise AssertionError

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        return {"block_errors": self.errors}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        self.errors = {str(key): float(value) for key, value in state.get("block_errors", {}).items()}


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
            (_costs_of(search.pool, blocks, sums.get(one.cost.name, one.value)), one.most)
            for one in search.constraints
            if isinstance(one, Limit)
        ]
        named = {(index, name): scores[_key(search.pool, (index, name))] for index, name in blocks}
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
            key = _key(search.pool, (index, name))
            value = first if name == search.pool.original.choices[index] else self.values[key]
            if value is not None and first is not None:
                worse[key] = first - value if goal.maximize else value - first
        most = max(worse.values(), default=0.0)
        keys = [_key(search.pool, block) for block in blocks_of(search.pool)]
        return {key: worse.get(key, 10 * abs(most) + 1) for key in keys}

    def _measure(self, search: SearchContext, blocks: list[Block]) -> None:
        """The first metric of the original, and of each network with one other block; None where it is not finite."""
        original, name = search.pool.original, search.goals[0].name
        networks = {_ORIGINAL: original} | {
            _key(search.pool, (index, other)): Architecture(
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


class Teach(Phase):
    """From here on networks learn from the original's outputs, too.

    Args:
        share: of these in the loss.
    """

    is_saved = False

    def __init__(self, share: float) -> None:
        self._share = share

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
            SettingError: a share outside of 0 to 1, or worker processes.
        """
        if not isinstance(search.executor, InlineExecutor):
            raise SettingError("strategy.teacher: worker processes have no teacher; use search.workers=1, or teacher=0")
        relay, original = _relays(search)(search.server), search.pool.original
        trainer = search.trainer

        def teacher(inputs: Batch) -> Batch:
            return relay.predict(original, inputs, micro_batch=trainer.micro_batch)

        task = TaughtTask(measured(trainer.task), share=self._share)
        search.evaluator.learn_from(replace(trainer, task=task, batches=TaughtBatches(trainer.batches, teacher)))


def _errors(search: SearchContext) -> dict[str, float]:
    return next(dict(phase.errors) for phase in search.phases if isinstance(phase, DistilBlocks))


def _key(pool: LayerPool, block: Block) -> str:
    return f"{pool.positions[block[0]].name}/{block[1]}"


def _costs_of(pool: LayerPool, blocks: list[Block], of: Any) -> dict[Block, float]:
    """What each block adds to a cost: the difference to the original, and the original's cost spread over positions."""
    original = pool.original
    whole = of(original)
    found = {}
    for index, name in blocks:
        changed = Architecture((*original.choices[:index], name, *original.choices[index + 1 :]))
        found[index, name] = of(changed) - whole + whole / len(pool)
    return found


def _relays(search: SearchContext) -> Any:

    def relay_of(server: ParamServer) -> Relay:
        whole = search.relay
        return Relay(
            server,
            slots=1 if len(server.pool) == 1 else 2,
            update=whole.update,
            precision=whole.precision,
            device=str(whole.device.torch_device),
            seed=whole.seed,
        )

    return relay_of


def blocks_of(pool: LayerPool) -> list[Block]:
    """All blocks, in the order of positions."""
    return [(index, one.name) for index, position in enumerate(pool.positions) for one in position.candidates]


def best_paths(
    pool: LayerPool, scores: Mapping[Block, float], *, limits: Sequence[tuple[Mapping[Block, float], float]] = ()
) -> Iterator[Architecture]:
    """Architectures in the order of the sum of their blocks' scores, lowest first.

    One block a position, sums of costs within their limits: a program with one variable for each block, solved by HiGHS
    through scipy. Each architecture that was found is excluded from the next program.

    Args:
        scores: of each block, finite.
        limits: costs of each block, and the most that their sum may be.

    Raises:
        ConstraintError: no architecture is within the limits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes half a second, and few searches need it

    blocks = blocks_of(pool)
    column = {block: number for number, block in enumerate(blocks)}
    one_each = np.zeros((len(pool), len(blocks)))
    for number, (index, _) in enumerate(blocks):
        one_each[index, number] = 1.0
    rules = [LinearConstraint(one_each, 1, 1)]
    for costs, most in limits:
        # as shares of the limit, so that a tolerance means the same for parameters and for milliseconds
        rules.append(LinearConstraint(np.array([[costs[block] / most for block in blocks]]), -np.inf, 1.0))
    goal = np.array([scores[block] for block in blocks])
    number = 0
    while True:
        found = milp(goal, constraints=rules, integrality=np.ones(len(blocks)), bounds=Bounds(0, 1))
        if found.x is None:
            if not number:
                raise ConstraintError("no architecture is within the limits; raise them, or add smaller candidates")
            return
        taken = found.x > 0.5
        choices = [name for (_, name), is_taken in zip(blocks, taken, strict=True) if is_taken]
        yield pool.architecture(choices)
        number += 1
        row = np.zeros((1, len(blocks)))
        row[0, [column[block] for block in enumerate(choices)]] = 1.0
        rules.append(LinearConstraint(row, -np.inf, len(pool) - 1))
