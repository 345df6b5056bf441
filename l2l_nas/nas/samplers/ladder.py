"""Architectures on the way from the smallest one to the largest, as alike in all positions as their size allows.

With several goals of which one rises with size and another falls, such a ladder is a front that random architectures
do not come near to: these are nearly all of a middle size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from l2l_nas.nas.samplers.base import Genotype, Space

_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, lie evenly wherever one stops


def ladder(space: Space, size: Callable[[Genotype], float], count: int) -> list[Genotype]:
    """So many architectures in equal steps of rank: both ends first, then what halves the widest gap.

    Args:
        size: of an architecture; it ranks the candidates of each position, beside equal choices at all others.
    """
    first = tuple(values[0] for values in space.values())

    def ranked(index: int, values: list[Any]) -> list[Any]:
        return sorted(values, key=lambda value: size((*first[:index], value, *first[index + 1 :])))

    order = [ranked(index, list(values)) for index, values in enumerate(space.values())]

    def rung(height: float) -> Genotype:
        # a rung between two ranks has the upper one at an even share of the positions
        return tuple(
            values[min(int(height * (len(values) - 1) + (index + 1) * _GOLDEN % 1), len(values) - 1)]
            for index, values in enumerate(order)
        )

    return list(dict.fromkeys(rung(height) for height in _heights(count)))


def _heights(count: int) -> list[float]:
    """0, 1, a half, the quarters, the eighths, ..."""
    heights, parts = [0.0, 1.0], 2
    while len(heights) < count:
        heights += [odd / parts for odd in range(1, parts, 2)]
        parts *= 2
    return heights[:count]
