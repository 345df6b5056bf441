"""The best networks by the sum of their blocks' scores, within limits: a program that HiGHS solves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from l2l_nas.errors import ConstraintError
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

Block = tuple[int, str]  # a layer by index of its position and name


def blocks_of(pool: LayerPool) -> list[Block]:
    """All blocks, in the order of positions."""
    return [(index, one.name) for index, position in enumerate(pool.positions) for one in position.candidates]


def key_of(pool: LayerPool, block: Block) -> str:
    """Its name in results: `position/candidate`."""
    return f"{pool.positions[block[0]].name}/{block[1]}"


def costs_of(pool: LayerPool, blocks: list[Block], of: Callable[[Architecture], float]) -> dict[Block, float]:
    """What each block adds to a cost: the difference to the original, and the original's cost spread over positions."""
    original = pool.original
    whole = of(original)
    found = {}
    for index, name in blocks:
        changed = Architecture((*original.choices[:index], name, *original.choices[index + 1 :]))
        found[index, name] = of(changed) - whole + whole / len(pool)
    return found


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
