"""Three ways to prune a published language model, as strategies; see `python -m benchmarks pruning`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from l2l_nas import Architecture, Phase
from l2l_nas.nas.strategies.block_training import DistilBlocks, Teach
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.training.blockwise import BlockSettings

ATTENTION, FEED_FORWARD = "attention_", "feedforward_"


class Propose(Phase):
    """Makes networks the trials; `networks` chooses them."""

    def networks(self, search: SearchContext) -> list[Architecture]:
        """The networks, in order."""
        raise NotImplementedError

    def run(self, search: SearchContext) -> None:
        """See `Phase`."""
        for network in self.networks(search):
            search.study.propose(network)


class Dropped(Propose):
    """Networks without some whole blocks, an attention and a feed-forward network each."""

    def __init__(self, count: int) -> None:
        self._count = count

    def without(self, search: SearchContext, blocks: Sequence[int]) -> Architecture:
        """The original without these blocks."""
        gone = {f"{kind}{index}" for kind in (ATTENTION, FEED_FORWARD) for index in blocks}
        pool = search.pool
        names = zip(pool.positions, pool.original.choices, strict=True)
        return Architecture(tuple("skip" if position.name in gone else name for position, name in names))

    def blocks(self, search: SearchContext) -> range:
        """Numbers of the blocks."""
        return range(sum(position.name.startswith(ATTENTION) for position in search.pool.positions))


class AtRandom(Dropped):
    """Draws, each without other blocks."""

    def networks(self, search: SearchContext) -> list[Architecture]:
        """See `Propose`."""
        generator = random.Random(search.seed)
        draws: dict[tuple[int, ...], None] = {}
        while len(draws) < search.budget.trials:
            draws[tuple(sorted(generator.sample(self.blocks(search), self._count)))] = None
        return [self.without(search, draw) for draw in draws]


class LeastEffect(Dropped):
    """The network without the blocks whose loss on the validation part, each dropped alone, is least."""

    def networks(self, search: SearchContext) -> list[Architecture]:
        """See `Propose`."""
        blocks = self.blocks(search)
        found = search.evaluator.score_all([self.without(search, [block]) for block in blocks])
        losses = {block: one["loss"] for block, one in zip(blocks, found, strict=True) if one is not None}
        print("losses without a block:", {block: round(loss, 4) for block, loss in losses.items()})
        return [self.without(search, sorted(losses, key=losses.__getitem__)[: self._count])]


class Uniform(Propose):
    """The network whose feed-forward networks all are their position's second candidate, the narrower one."""

    def networks(self, search: SearchContext) -> list[Architecture]:
        """See `Propose`."""
        names = [position.candidates[position.name.startswith(FEED_FORWARD)].name for position in search.pool.positions]
        return [Architecture(tuple(names))]


def random_blocks(count: int = 5, teacher: float = 0.5) -> list[Phase]:
    """Strategy of the arm `random`."""
    return [Teach(teacher), AtRandom(count), Trials(), Finalists()]


def least_effect(count: int = 5, teacher: float = 0.5) -> list[Phase]:
    """Strategy of the arm `effect`."""
    return [Teach(teacher), LeastEffect(count), Trials(), Finalists()]


def uniform(samples: int = 32, teacher: float = 0.5) -> list[Phase]:
    """Strategy of the arm `uniform`: units are chosen by what they do for some samples."""
    return [Teach(teacher), DistilBlocks(samples, BlockSettings(steps=0)), Uniform(), Trials(), Finalists()]
