"""Sizes of networks that one search finds, each with a limit of its own.

[Note: sizes] A size is a share of the original's parameters that is removed at least: of those at positions with a
choice. Trials and finalists are divided among sizes; a network belongs to the smallest that it keeps to. Of each, the
best finalist goes on to the end. What is returned for a size is the best of all that are as small: a smaller network
that is better stands for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.feasible import least
from l2l_nas.cost.table import Costs, Limit
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SettingError
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """See [Note: sizes]."""

    share: float  # that is removed at least
    limit: Limit  # the parameters that are left at most

    @property
    def name(self) -> str:
        """In results, and of its folder."""
        return _name(self.share)

    def holds(self, architecture: Architecture) -> bool:
        """Whether an architecture is as small."""
        return self.limit.violation(architecture) is None


def sizes_of(pool: LayerPool, shares: Sequence[float]) -> tuple[Size, ...]:
    """Sizes by their shares, the largest networks first.

    Raises:
        SettingError: a share that is none, or more than the candidates allow.
    """
    if not all(0 < share < 1 for share in shares) or len(set(map(_name, shares))) < len(shares):
        raise SettingError(
            f"strategy.sizes are shares above 0 and below 1 that differ in six digits, got {list(shares)}"
        )
    costs = Costs([parameters_cost(pool)])
    whole = num_parameters(pool, pool.original)
    choosing = [layer for layer in pool.path(pool.original) if len(pool.positions[layer.position].candidates) > 1]
    count = sum(layout_of(pool, state).num_parameters for state in {s for layer in choosing for s in layer.states})
    smallest = least(pool, costs, "parameters")
    most = 1.0 if smallest is None or not count else (whole - num_parameters(pool, smallest)) / count
    for share in shares:
        if share > most:
            raise SettingError(
                f"strategy.sizes: candidates remove {most:.1%} of the layers' parameters at most, got {share:g}; add "
                "smaller candidates"
            )
    return tuple(Size(share, Limit(costs, "parameters", whole - share * count)) for share in sorted(shares))


def _name(share: float) -> str:
    return f"{share:g}"


def by_size(
    sizes: Sequence[Size], given: Sequence[T], architecture_of: Callable[[T], Architecture]
) -> dict[str, list[T]]:
    """What belongs to each size, in the given order; what is larger than all belongs to none."""
    found: dict[str, list[T]] = {size.name: [] for size in sizes}
    for one in given:
        kept = [size.name for size in sizes if size.holds(architecture_of(one))]
        if kept:
            found[kept[-1]].append(one)
    return found
