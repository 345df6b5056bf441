"""Finds allowed architectures where hardly any is: from a refused one, by changes that bring it nearer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

Excess = Callable[[Architecture], float]

# a change puts a candidate at one position, or at all of these
_Change = tuple[Sequence[int], str]


class Repair:
    """Changes architectures, one position at a time, towards what is allowed.

    In a shared pool a candidate may also take another one's place wherever that is: a layer that is used twice is gone
    only when all its places change.

    Args:
        excess: how far off an architecture is; 0 where it is allowed.
    """

    def __init__(self, pool: LayerPool, excess: Excess) -> None:
        self._pool = pool
        self._excess = excess
        self._varied = [
            index
            for index, position in enumerate(pool.positions)
            if len(position.candidates) > 1 and position.follows is None
        ]

    def descend(self, start: Architecture, generator: random.Random) -> tuple[Architecture, float]:
        """Take the first change that reduces the excess, until there is none: the architecture, and its excess."""
        best, value = start, self._excess(start)
        is_better = True
        while value > 0 and is_better:
            is_better = False
            for indices, name in self._changes(best, generator):
                other = self._changed(best, indices, name)
                reached = self._excess(other)
                if reached < value:
                    best, value, is_better = other, reached, True
                    break
        return best, value

    def wander(self, start: Architecture, generator: random.Random) -> Architecture:
        """A random walk among allowed architectures, four changes tried for each position.

        Each changes one position at random and is taken if it is allowed: Metropolis' rule for the uniform distribution
        (J. Chem. Phys. 21, 1087, 1953). So what `descend` reaches is mixed as far as what is allowed is connected.
        """
        current = start
        for _ in range(4 * len(self._varied)):
            index = generator.choice(self._varied)
            other = self._changed(current, (index,), generator.choice(self._pool.positions[index].candidates).name)
            if self._excess(other) == 0:
                current = other
        return current

    def _changes(self, architecture: Architecture, generator: random.Random) -> list[_Change]:
        changes: list[_Change] = [
            ((index,), candidate.name)
            for index in self._varied
            for candidate in self._pool.positions[index].candidates
            if candidate.name != architecture.choices[index]
        ]
        if self._pool.shared:
            for name in dict.fromkeys(architecture.choices):
                indices = [index for index in self._varied if architecture.choices[index] == name]
                if len(indices) > 1:
                    offered = [{c.name for c in self._pool.positions[index].candidates} for index in indices]
                    changes += [(indices, other) for other in sorted(set.intersection(*offered)) if other != name]
        generator.shuffle(changes)
        return changes

    def _changed(self, architecture: Architecture, indices: Sequence[int], name: str) -> Architecture:
        choices = list(architecture.choices)
        for index in indices:
            choices[index] = name
        return self._pool.canonical(Architecture(tuple(choices)))
