"""Closed forms: weights of architectures, bytes of states in host memory and on the link. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from l2l_nas.arguments import check_kind
from l2l_nas.eps.layout import layout_of, wire_layout_of
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool


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


def state_bytes(relay: Relay, key: str, *, buffers: bool = True) -> int:
    """Host memory of a state, of this rank's part of it: weights, moments, step counts, and buffers."""
    layout = relay.server.held_layout(key)
    moments = sum(moment.num_bytes for moment in layout.moments)
    return layout.parameter_bytes + moments + 4 * len(layout.parameters) + buffers * layout.buffer_bytes


def pool_bytes(relay: Relay, layers: Sequence[Layer]) -> int:
    """Host memory of the states of all these layers, with what is stored of their weights in the wire's dtype."""
    states = dict.fromkeys(state for layer in layers for state in layer.states)
    own_bytes = sum(state_bytes(relay, state) for state in states)
    if relay.precision == "fp32" or not relay.wire.stores:
        return own_bytes
    stored = [state for state in states if not relay.server.is_sharded(state)]
    return own_bytes + wire_bytes(relay.pool, stored, relay.config.precision.dtype)


def wire_bytes(pool: LayerPool, states: Iterable[str], dtype: torch.dtype) -> int:
    """Bytes of the weights of states as they cross the link in a dtype."""
    return sum(wire_layout_of(pool, state, dtype).parameter_bytes for state in states)


def buffer_bytes(pool: LayerPool, state: str, dtype: torch.dtype) -> int:
    """Bytes of a state's buffers as they cross the link: as one block, unless some of them are rounded."""
    wire = wire_layout_of(pool, state, dtype)
    if wire.buffers == layout_of(pool, state).buffers:
        return wire.buffer_bytes
    return sum(entry.numel * entry.dtype.itemsize for entry in wire.buffers)
