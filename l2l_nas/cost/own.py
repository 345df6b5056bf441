"""Costs of the user's own: by name, or as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from l2l_nas.arguments import check_function, check_table
from l2l_nas.errors import SettingError
from l2l_nas.plugins import is_named, made
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


class OwnCost(Protocol):
    """A figure of an architecture, of which less is better. A function is one."""

    def __call__(self, architecture: Architecture, /) -> float:
        """The cost: a finite number, the same in every call."""


class _Named:
    """A cost by another name than that of its function."""

    def __init__(self, name: str, cost: OwnCost) -> None:
        self.__name__ = name
        self._cost = cost

    def __call__(self, architecture: Architecture, /) -> float:
        """See `OwnCost`."""
        return self._cost(architecture)


def named_costs(costs: object) -> list[OwnCost]:
    """Costs of a dict of functions by name.

    Raises:
        SettingError: it is none.
    """
    table = check_table("costs", costs, wanted="a dict of functions by name")
    return [_Named(name, check_function(f"costs: '{name}'", cost)) for name, cost in table.items()]


def own_costs(
    chosen: Sequence[str | OwnCost], *, pool: LayerPool, beside: Mapping[str, OwnCost] | None = None
) -> dict[str, OwnCost]:
    """All costs of the user's own, by name.

    Args:
        chosen: costs, each called as its function or its class is; or names, `FILE.py:NAME` or `MODULE:NAME`, of
            classes or functions that give a cost called NAME. They are given `pool`, if they take it.
        pool: whose architectures they are asked about.
        beside: those that the problem brings.

    Raises:
        SettingError: there is no such thing, it gives something else, or two costs have one name.
        L2LError: what is named raised something.
    """
    costs = dict(beside or {})
    for entry in chosen:
        if isinstance(entry, str):
            name, cost = entry.rpartition(":")[2], _imported(entry, pool)
        elif callable(entry):
            name, cost = getattr(entry, "__name__", type(entry).__name__), entry
        else:
            raise SettingError(f"search.costs: {entry!r} is no function of an architecture")
        if name in costs:
            raise SettingError(f"search.costs: two costs are called '{name}'; rename one")
        costs[name] = cost
    return costs


def _imported(name: str, pool: LayerPool) -> OwnCost:
    if not is_named(name):
        raise SettingError(f"search.costs: {name!r} is no FILE.py:NAME and no MODULE:NAME")
    cost: OwnCost = made(
        name,
        setting="search.costs",
        offered={"pool": pool},
        is_right=callable,
        kind="a function of an architecture",
    )
    return cost
