"""Recipes that a worker process keeps, by name. It imports nothing: a worker of a cluster takes one as it starts."""

from __future__ import annotations

KEPT: dict[str, bytes] = {}


def keep(recipe: bytes, name: str = "") -> None:
    """Have this process use a pickled recipe where functions are given its name."""
    KEPT[name] = recipe
