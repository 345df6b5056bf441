"""What every cost must do."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths


def check_cost(cost: Callable[[Architecture], float], pool: LayerPool, *, architectures: int = 50) -> None:
    """A cost is a finite number of an architecture, the same whenever it is asked.

    Args:
        cost: less is better.
        pool: whose architectures it is asked about.
        architectures: how many random ones.

    Raises:
        AssertionError: it is not; what the cost raises comes through.
    """
    paths = UniformPaths(pool, seed=0)
    drawn = [paths.path_at(step) for step in range(architectures)]
    first = [cost(one) for one in drawn]
    for architecture, value in zip(drawn, first, strict=True):
        is_number = isinstance(value, Real) and math.isfinite(value)
        assert is_number, f"gave {value!r} for {architecture}, expected a finite number"
    for architecture, value in zip(reversed(drawn), reversed(first), strict=True):
        again = cost(Architecture(architecture.choices))
        assert again == value, f"gave {value} and then {again} for {architecture}"
