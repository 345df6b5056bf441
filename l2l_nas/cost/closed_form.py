"""Closed forms on an architecture: nothing is built, nothing is run."""

from __future__ import annotations

from l2l_nas.eps.layout import layout_of
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


def path_states(pool: LayerPool, architecture: Architecture) -> tuple[str, ...]:
    """Keys of the states an architecture uses, each once."""
    return tuple(dict.fromkeys(state for layer in pool.path(architecture) for state in layer.states))


def num_parameters(pool: LayerPool, architecture: Architecture) -> int:
    """Weights of an architecture; a repeated or tied one counts once."""
    return sum(layout_of(pool, key).num_parameters for key in path_states(pool, architecture))
