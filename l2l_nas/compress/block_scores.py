"""Scores of the blocks of a network that is taken apart, and a prediction from them: the best predicted become trials.

[Note: rounds of scores] Blocks that stand alone in the original each cost little where together they may cost much. So
before trials are proposed, the best predicted networks are scored whole, several rounds of them. Where a prediction was
wrong, neighbouring changes of such networks are measured as pairs, and the next round goes by a prediction that knows
them; see [Note: a prediction]. All that is measured are networks, known by their changes: a block is a network with one
change, a pair one with two. What a round is about to measure is stored before, so that a search that was stopped goes
on with the same networks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from l2l_nas.compress.block_prediction import Changes, SumPrediction, pairs_to_measure
from l2l_nas.compress.block_solver import Block, best_paths, blocks_of, changed, changes_of, costs_of, key_of
from l2l_nas.compress.block_speed import ScorePasses
from l2l_nas.compress.block_training import FROM_ORIGINAL, DistilBlocks
from l2l_nas.cost.table import Limit
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, L2LError, SettingError
from l2l_nas.nas.objectives import Goal, ranked
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.sizes import Size, sizes_of
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.text.recall import num_repeated

# networks that a constraint refuses before it is given up
_MOST_REFUSED = 1000
_NETWORKS = 8  # scored whole in a round
_WRONG = 0.05  # of what a network is worse by: an error above it is looked into


@dataclass
class ScoreRound:
    """What a round measures: networks by what they were predicted to be worse by, then pairs."""

    networks: dict[Changes, float]
    pairs: list[Changes] | None = None  # None: not known yet


@dataclass
class BlockValues:
    """What was measured: the first metric of networks by their changes; None where it is not finite."""

    maximize: bool
    found: dict[Changes, float | None] = field(default_factory=dict)

    def worse(self, changes: Changes) -> float | None:
        """What a network is worse by than the original; None where that is not known."""
        first, value = self.found.get(()), self.found.get(changes)
        if first is None or value is None:
            return None
        return first - value if self.maximize else value - first

    def adds_up(self, changes: Changes) -> bool:
        """Whether the score of each of these blocks is known, so that their sum tells anything."""
        return all(self.worse((block,)) is not None for block in changes)

    def prediction(self, pool: LayerPool) -> SumPrediction:
        """From all that was measured; what is not finite is bad."""
        singles = {block: 0.0 if block in _own(pool) else self.worse((block,)) for block in blocks_of(pool)}
        known, bad = _with_bad(singles)
        pairs = {}
        for changes in self.found:
            if len(changes) == 2 and self.adds_up(changes):
                one, other = changes
                worse = self.worse(changes)
                pairs[one, other] = bad if worse is None else worse - known[one] - known[other]
        return SumPrediction(known, pairs).fitted(self.networks())

    def networks(self) -> dict[Changes, float]:
        """Those of more changes than a pair has and of known blocks, by what they are worse by."""
        found = {one: self.worse(one) for one in self.found if len(one) > 2 and self.adds_up(one)}
        return {changes: worse for changes, worse in found.items() if worse is not None}


class ScoreBlocks(Phase):
    """Scores each block, and proposes the best networks within the limits as the trials.

    Args:
        scores: "exchange", "divergence", "recall" or "error"; see `blockwise`.
        rounds: see [Note: rounds of scores]; the last one proposes.
        pairs: to be measured in a round at most.
        sizes: among which rounds, trials and finalists are divided, as shares; see [Note: sizes] in `sizes.py`.
    """

    def __init__(self, scores: str, *, rounds: int = 1, pairs: int = 0, sizes: Sequence[float] = ()) -> None:
        self._kind, self._num_rounds, self._most_pairs, self._shares = scores, rounds, pairs, tuple(sizes)
        self._found: dict[Changes, float | None] = {}
        self._original: dict[str, float] = {}  # its metrics, if they are not what blocks are scored by
        self._rounds: list[ScoreRound] = []

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`.

        Raises:
            SettingError: sizes that cannot be had, or not with so few finalists and goals.
        """
        sizes = sizes_of(server.pool, self._shares)
        if sizes and budget.num_goals < 2:
            raise SettingError("strategy.sizes asks for a front: name two objectives, objectives=[loss,parameters]")
        last = budget.rounds[-1].finalists if budget.rounds else 0
        if budget.finalists and last < len(sizes):
            raise SettingError(
                f"strategy.sizes are {len(sizes)}, and {last} of search.finalists={budget.finalists} are trained to "
                "the end; ask for more, or for search.finalist_rounds=1"
            )

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """See `Phase`: as many passes as all rounds take, if each has something new."""
        if self._kind == "error":
            return speed
        pool, population = context.evaluator.server.pool, context.evaluator.budget.population
        passes = ScorePasses(pool, population=population, extra=int(self._kind in FROM_ORIGINAL))
        singles = [changed(pool, [block]) for block in blocks_of(pool) if block not in _own(pool)]
        scored = passes([pool.original, *singles])
        if self._num_rounds > 1 and singles:
            pairs = min(self._most_pairs, len(singles)) / len(singles)  # which begin as late as single blocks do
            scored += (self._num_rounds - 1) * (_NETWORKS + pairs * scored)
        if self._kind == "recall":
            scored *= 1 + num_repeated(context.evaluator.validation) / len(context.evaluator.validation)
        return replace(speed, fixed=speed.fixed + scored * speed.score)

    @property
    def num_networks(self) -> int:
        """How many kinds of networks are looked for: one for each size."""
        return max(1, len(self._shares))

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            ConstraintError: no network is within the limits.
            L2LError: the original's own metric is not known.
        """
        search.sizes = sizes_of(search.pool, self._shares)
        left = search.budget.trials - search.study.num_evaluated
        if left <= 0:
            return
        if self._kind != "error":
            singles = [(block,) for block in blocks_of(search.pool) if block not in _own(search.pool)]
            self._measure(search, [(), *singles], "scores")
            self._check_original(search)
            for number in range(self._num_rounds - 1):
                if not self._round(search, number):
                    break
        tried = {record.architecture for record in search.study.records} | {*search.enqueued}
        new = (network for network in self._trials(search) if network not in tried)
        for network in itertools.islice(new, left):
            search.study.propose(network)

    def _check_original(self, search: SearchContext) -> None:
        name = search.goals[0].name
        if self._kind in FROM_ORIGINAL and not self._original:
            (whole,) = search.evaluator.score_all([search.pool.original])
            self._original = dict(whole or {})
        if self._found[()] is None or (self._kind in FROM_ORIGINAL and name not in self._original):
            raise L2LError(
                f"strategy=blockwise compares networks with the original, whose {name} on the validation part is not "
                "finite or could not be measured; check its weights, or use scores=error"
            )

    def _metric(self, search: SearchContext) -> Goal:
        """What networks are scored by."""
        return Goal(self._kind, maximize=False) if self._kind in FROM_ORIGINAL else search.goals[0]

    def _trials(self, search: SearchContext) -> Iterator[Architecture]:
        """Networks to propose, the best first; of sizes, that one's next of which there are fewest.

        Their order does not depend on how many of them have a trial, so that a search that was stopped goes on with
        those that it would have had.
        """
        known: set[Architecture] = set()
        if not search.sizes:
            yield from self._best(search)
            return
        counts = {size.name: 0 for size in search.sizes}
        streams = {size.name: self._best(search, size) for size in search.sizes}
        while streams:
            name = min(streams, key=counts.__getitem__)
            network = next((one for one in streams[name] if one not in known), None)
            if network is None:
                del streams[name]
                continue
            known.add(network)
            counts[name] += 1
            yield network

    def _round(self, search: SearchContext, number: int) -> bool:
        """Score the best predicted networks; returns whether any was new."""
        if len(self._rounds) == number:
            predicted = self._prediction(search)
            sizes: Sequence[Size | None] = search.sizes or [None]
            each = max(2, _NETWORKS // len(sizes))
            best = [itertools.islice(self._predicted(search, predicted, size), each) for size in sizes]
            changes = [changes_of(search.pool, network) for network in itertools.chain(*best)]
            self._rounds.append(ScoreRound({one: predicted.of(one) for one in changes if one not in self._found}))
        this, values = self._rounds[number], self._values(search)
        self._measure(search, list(this.networks), "networks")
        if this.pairs is None:
            measured = {changes: values.worse(changes) for changes in this.networks if values.adds_up(changes)}
            errors = {one: worse - this.networks[one] for one, worse in measured.items() if worse is not None}
            wrong = {one: error for one, error in errors.items() if abs(error) > _WRONG * abs(measured[one] or 0.0)}
            known = values.prediction(search.pool).pairs
            this.pairs = list(pairs_to_measure(wrong, known, self._most_pairs))
        self._measure(search, this.pairs, "pairs")
        return bool(this.networks)

    def _measure(self, search: SearchContext, networks: Sequence[Changes], phase: str) -> None:
        """The first metric of networks that are not measured yet; so many share the layers in which they agree."""
        left = [changes for changes in networks if changes not in self._found]
        search.callback.phase(phase, total=len(networks), done=len(networks) - len(left))
        name, evaluator = self._metric(search).name, search.evaluator
        own = FROM_ORIGINAL.get(self._kind)
        score = evaluator.score_all if own is None else partial(evaluator.do, own)
        for start in range(0, len(left), search.budget.population):
            search.callback.poll()
            some = left[start : start + search.budget.population]
            scores = score([changed(search.pool, changes) for changes in some])
            for changes, one in zip(some, scores, strict=True):
                value = math.nan if one is None else one[name]
                self._found[changes] = value if math.isfinite(value) else None
            search.callback.advance(sum(changes in self._found for changes in networks))
            search.save_when_due()

    def _values(self, search: SearchContext) -> BlockValues:
        return BlockValues(self._metric(search).maximize, self._found)

    def _prediction(self, search: SearchContext) -> SumPrediction:
        pool = search.pool
        if self._kind != "error":
            return self._values(search).prediction(pool)
        errors = _errors(search)
        known, _ = _with_bad({block: errors[key_of(pool, [block])] for block in blocks_of(pool)})
        return SumPrediction(known, {})

    def _predicted(self, search: SearchContext, predicted: SumPrediction, size: Size | None) -> Iterator[Architecture]:
        """Allowed networks, of a size if one is named, the best predicted first.

        Raises:
            ConstraintError: no network is within the limits.
        """
        pool = search.pool
        sums = search.costs.sums(pool)
        constraints = [*search.constraints, *([] if size is None else [size.limit])]
        limits = [
            (costs_of(pool, blocks_of(pool), sums.get(one.cost.name, one.value)), one.most)
            for one in constraints
            if isinstance(one, Limit)
        ]
        scores = {block: predicted.factor * score for block, score in predicted.singles.items()}
        refused = found = 0
        pairs = {pair: predicted.pair_factor * worse for pair, worse in predicted.pairs.items()}
        for network in best_paths(pool, scores, limits=limits, pairs=pairs):
            search.callback.poll()
            if search.is_allowed(network) and (size is None or size.holds(network)):
                yield network
                found += 1
            else:  # a limit that is no sum over blocks, or a constraint of the user's own
                refused += 1
            if refused > _MOST_REFUSED:
                if found:
                    return
                raise ConstraintError(
                    f"none of the {refused} networks with the best sums of scores is within the limits; raise them, or "
                    "add smaller candidates"
                )

    def _best(self, search: SearchContext, size: Size | None = None) -> Iterator[Architecture]:
        """Allowed networks of a size, the best first: by what was measured, else as is predicted.

        Of rounds, the best measured is the first in any case, as those that are predicted to be better may not be.
        """
        pool, values, predicted = search.pool, self._values(search), self._prediction(search)
        worse = {changed(pool, changes): values.worse(changes) for changes in self._found}
        scored = sorted(((value, one) for one, value in worse.items() if value is not None), key=_first)
        small = [(value, one) for value, one in scored if size is None or size.holds(one)]
        measured = (pair for pair in small if search.is_allowed(pair[1]))
        others = (
            (predicted.of(changes_of(pool, network)), network)
            for network in self._predicted(search, predicted, size)
            if network not in worse
        )
        if self._rounds:
            yield from (network for _, network in itertools.islice(measured, 1))
        yield from (network for _, network in heapq.merge(measured, others, key=_first))

    def results(self, search: SearchContext) -> Mapping[str, Any]:
        """See `Phase`: of each block its score, and its error of imitation; of networks what was predicted."""
        sizes = {"sizes": [_entry(search, size) for size in search.sizes]} if search.sizes else {}
        if self._kind != "error" and self._found.get(()) is None:
            return sizes
        pool, errors, predicted = search.pool, _errors(search), self._prediction(search)
        scores = {key_of(pool, [block]): score for block, score in predicted.singles.items()}
        blocks = {key: {"score": score, "error": errors.get(key)} for key, score in scores.items()}
        more = {"prediction": self._figures(search, predicted)} if self._rounds else {}
        goal = search.goals[0].name
        # of the original, with the scores of networks
        first = self._original.get(goal) if self._kind in FROM_ORIGINAL else self._found.get(())
        whole = {"values": {goal: first}, "costs": search.figures(pool.original)}
        original = {} if first is None else {"original": whole}
        scored_by = "error" if self._kind == "error" else self._metric(search).name
        return {"blocks": blocks, "scored_by": scored_by, **original, **more, **sizes}

    def _figures(self, search: SearchContext, predicted: SumPrediction) -> dict[str, Any]:
        """How far the prediction is off: errors of networks that it did not know, and what it told of each before."""
        pool, values, goal = search.pool, self._values(search), self._metric(search)
        sign, first, scored = -1 if goal.maximize else 1, self._found[()], values.networks()
        assert first is not None  # else there are no results
        left_out = predicted.left_out(scored)
        errors = [left_out[one] - worse for one, worse in scored.items()]
        return {
            "metric": goal.name,
            "factor": predicted.factor,
            "pair_factor": predicted.pair_factor,
            "error": math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else None,
            "pairs": {key_of(pool, pair): worse for pair, worse in predicted.pairs.items()},
            "networks": [
                {
                    "architecture": list(changed(pool, one).choices),
                    "round": number,
                    "predicted": first + sign * worse,
                    "measured": self._found.get(one),
                }
                for number, this in enumerate(self._rounds, 1)
                for one, worse in this.networks.items()
            ],
        }

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        def key(changes: Changes) -> str:
            return key_of(search.pool, changes)

        rounds = [
            {
                "networks": {key(one): predicted for one, predicted in this.networks.items()},
                "pairs": None if this.pairs is None else list(map(key, this.pairs)),
            }
            for this in self._rounds
        ]
        values = {key(one): value for one, value in self._found.items()}
        return {"block_values": values, "block_original": self._original, "block_rounds": rounds}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        blocks = {key_of(search.pool, [block]): block for block in blocks_of(search.pool)}

        def known(content: Mapping[str, Any]) -> dict[Changes, Any]:  # without candidates that are gone
            split = {key: key.split() for key in content}
            keys = [key for key, names in split.items() if blocks.keys() >= set(names)]
            return {tuple(blocks[name] for name in split[key]): content[key] for key in keys}

        found = known(state.get("block_values", {}))
        self._found = {changes: None if value is None else float(value) for changes, value in found.items()}
        original = state.get("block_original", {})
        self._original = {str(name): float(value) for name, value in original.items()}
        self._rounds = [
            ScoreRound(
                {changes: float(predicted) for changes, predicted in known(this["networks"]).items()},
                None if this["pairs"] is None else list(known(dict.fromkeys(this["pairs"]))),
            )
            for this in state.get("block_rounds", ())
        ]


def _entry(search: SearchContext, size: Size) -> dict[str, Any]:
    """What was found for a size: a finalist, or the best trial where none were trained; None where there is none."""
    found = search.of_sizes.get(size.name)
    if found is None:
        records = [record for record in search.allowed(search.study.records) if record.in_space]
        best = [record for record in ranked(records, search.goals) if size.holds(record.architecture)]
        found = Finalist(best[0], search.figures(best[0].architecture)) if best else None
    return {"removed": size.share, "most": size.limit.most, "best": found and found.entry()}


def _with_bad(scores: Mapping[Block, float | None]) -> tuple[dict[Block, float], float]:
    """The scores of blocks and, in place of those that are not finite, one that is worse by far; that one, too."""
    finite = {block: score for block, score in scores.items() if score is not None and math.isfinite(score)}
    bad = 10 * max(map(abs, finite.values()), default=0.0) + 1
    return {block: finite.get(block, bad) for block in scores}, bad


def _own(pool: LayerPool) -> set[tuple[int, str]]:
    """The original's blocks."""
    return set(enumerate(pool.original.choices))


def _first(pair: tuple[float, Architecture]) -> float:
    return pair[0]


def _errors(search: SearchContext) -> dict[str, float]:
    return next(dict(phase.errors) for phase in search.phases if isinstance(phase, DistilBlocks))
