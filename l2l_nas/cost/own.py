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


def named_costs(costs: object) -> list[OwnCost]:
    """Costs of a dict of functions by name; anything else is a `SettingError`."""
    table = check_table("costs", costs, wanted="a dict of functions by name")
    return [_named(name, check_function(f"costs: '{name}'", cost)) for name, cost in table.items()]


def _named(name: str, cost: OwnCost) -> OwnCost:
    def named(architecture: Architecture, /) -> float:
        return cost(architecture)

    named.__name__ = name
    return named


def own_costs(
    chosen: Sequence[str | OwnCost], *, pool: LayerPool, beside: Mapping[str, OwnCost] | None = None
) -> dict[str, OwnCost]:
    """All costs of the user's own, by name.

    Args:
        chosen: costs, each called as its function or its class is; or names, `FILE.py:NAME` or `MODULE:NAME`, of
            classes or functions that give a cost called NAME. They are given `pool`, if they take it.
        beside: those that the problem brings.

    Raises:
        SettingError: there is no such thing, it gives something else, or two costs have one name.
        L2LError: what is named raised something.
    """
    costs = dict(beside or {})
    for entry in chosen:
        if isinstance(entry, str):
            if not is_named(entry):
                raise SettingError(f"search.costs: {entry!r} is no FILE.py:NAME and no MODULE:NAME")
            name = entry.rpartition(":")[2]
            cost: OwnCost = made(
                entry,
                setting="search.costs",
                offered={"pool": pool},
                is_right=callable,
                kind="a function of an architecture",
            )
        elif callable(entry):
            name, cost = getattr(entry, "__name__", type(entry).__name__), entry
        else:
            raise SettingError(f"search.costs: {entry!r} is no function of an architecture")
        if name in costs:
            raise SettingError(f"search.costs: two costs are called '{name}'; rename one")
        costs[name] = cost
    return costs
