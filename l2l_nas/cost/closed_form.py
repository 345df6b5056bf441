"""Closed forms on an architecture: nothing is built, nothing is run."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.arguments import check_kind
from l2l_nas.eps.layout import layout_of
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


def path_states(pool: LayerPool, architecture: Architecture | Sequence[str]) -> tuple[str, ...]:
    """Keys of the states an architecture uses, each once."""
    return tuple(dict.fromkeys(state for layer in pool.path(architecture) for state in layer.states))


def num_parameters(pool: LayerPool, architecture: Architecture | Sequence[str]) -> int:
    """Weights of an architecture; a repeated or tied one counts once.

    Raises:
        SpaceError: the architecture is none of this pool.
        SettingError: there is no pool.
    """
    check_kind("num_parameters: pool", pool, LayerPool, wanted="a LayerPool")
    return sum(layout_of(pool, key).num_parameters for key in path_states(pool, architecture))
