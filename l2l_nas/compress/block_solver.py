"""The best networks by the sum of their blocks' scores, within limits: a program that HiGHS solves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from l2l_nas.errors import ConstraintError
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

Block = tuple[int, str]  # a layer by index of its position and name
Pair = tuple[Block, Block]  # of different positions, in their order
LinearLimit = tuple[Mapping[Block, float], float]  # what each block adds, and the most that the sum may be


def blocks_of(pool: LayerPool) -> list[Block]:
    """All blocks, in the order of positions."""
    return [(index, one.name) for index, position in enumerate(pool.positions) for one in position.candidates]


def changes_of(pool: LayerPool, architecture: Architecture) -> tuple[Block, ...]:
    """Its blocks that are not the original's, in the order of positions."""
    pairs = enumerate(zip(architecture.choices, pool.original.choices, strict=True))
    return tuple((index, name) for index, (name, own) in pairs if name != own)


def changed(pool: LayerPool, changes: Iterable[Block]) -> Architecture:
    """The original with these blocks in place of its own."""
    choices = list(pool.original.choices)
    for index, name in changes:
        choices[index] = name
    return Architecture(tuple(choices))


def key_of(pool: LayerPool, changes: Iterable[Block]) -> str:
    """The name of a network in results: `position/candidate` of each block; of the original it is empty."""
    return " ".join(f"{pool.positions[index].name}/{name}" for index, name in changes)


def costs_of(pool: LayerPool, blocks: list[Block], of: Callable[[Architecture], float]) -> dict[Block, float]:
    """What each block adds to a cost: the difference to the original, and the original's cost spread over positions."""
    whole = of(pool.original)
    found = {}
    for index, name in blocks:
        found[index, name] = of(changed(pool, [(index, name)])) - whole + whole / len(pool)
    return found


def best_paths(
    pool: LayerPool,
    scores: Mapping[Block, float],
    *,
    limits: Sequence[LinearLimit] = (),
    pairs: Mapping[Pair, float] | None = None,
) -> Iterator[Architecture]:
    """Architectures in the order of the sum of their blocks' scores and pairs, lowest first.

    One block a position, sums of costs within their limits: a program with one variable for each block, solved by HiGHS
    through scipy. The product of a pair's variables is a variable of its own, bounded by both and by their sum less 1
    (McCormick, Mathematical Programming 10, 1976). Each architecture that was found is excluded from the next program.

    Args:
        scores: of each block, finite.
        limits: costs that are sums.
        pairs: what blocks of two positions add where both are there.

    Raises:
        ConstraintError: no architecture is within the limits.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes half a second, and few searches need it

    blocks, products = blocks_of(pool), list(pairs or {})
    column = {block: number for number, block in enumerate(blocks)}
    width = len(blocks) + len(products)
    one_each = np.zeros((len(pool), width))
    for number, (index, _) in enumerate(blocks):
        one_each[index, number] = 1.0
    rules = [LinearConstraint(one_each, 1, 1)]
    for costs, most in limits:
        # as shares of the limit, so that a tolerance means the same for parameters and for milliseconds
        shares = [costs[block] / most for block in blocks] + [0.0] * len(products)
        rules.append(LinearConstraint(np.array([shares]), -np.inf, 1.0))
    if products:
        rules.append(_products([(column[one], column[other]) for one, other in products], len(blocks)))
    goal = np.array([scores[block] for block in blocks] + [(pairs or {})[pair] for pair in products])
    whole = np.arange(width) < len(blocks)  # a product of whole variables is whole
    number = 0
    exact = {"mip_rel_gap": 0}  # by default HiGHS stops at 1e-4 of the sum, and others behind may be lower
    while True:
        found = milp(goal, constraints=rules, integrality=whole, bounds=Bounds(0, 1), options=exact)
        if found.x is None:
            if not number:
                raise ConstraintError("no architecture is within the limits; raise them, or add smaller candidates")
            return
        taken = found.x[: len(blocks)] > 0.5
        choices = [name for (_, name), is_taken in zip(blocks, taken, strict=True) if is_taken]
        yield pool.architecture(choices)
        number += 1
        row = np.zeros((1, width))
        row[0, [column[block] for block in enumerate(choices)]] = 1.0
        rules.append(LinearConstraint(row, -np.inf, len(pool) - 1))


def _products(factors: Sequence[tuple[int, int]], start: int) -> Any:
    """Rules that make variables from `start` on the products of these columns."""
    from scipy.optimize import LinearConstraint

    rows = np.zeros((3 * len(factors), start + len(factors)))
    most = np.zeros(len(rows))
    for number, (one, other) in enumerate(factors):
        first = 3 * number
        rows[first : first + 3, start + number] = 1.0, 1.0, -1.0
        rows[first, one] = rows[first + 1, other] = -1.0
        rows[first + 2, [one, other]] = 1.0
        most[first + 2] = 1.0
    return LinearConstraint(rows, -np.inf, most)
