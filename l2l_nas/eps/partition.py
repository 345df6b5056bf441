"""How a state is divided among ranks, and the one way to take a part of it, and to join the parts of all.

There are two: ranges of its parameters, among ranks that share mini-batches (`Cut`), and dimensions of its layer, among
ranks that share layers (`Divided`). Where there are both, each rank has a range of its part of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules, rules_of, state_rules
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.wire import WireMemory
from l2l_nas.space.pool import LayerPool


class Partition(Protocol):
    """The parts of one state. Names are of parameters and buffers in its whole layout; a moment has its parameter's."""

    @property
    def whole_layout(self) -> Layout:
        """Of the whole state."""

    def layout(self, rank: int) -> Layout:
        """Of a rank's part."""

    def take(self, name: str, tensor: Tensor, rank: int) -> Tensor | None:
        """A rank's part of a whole tensor, a view where it can be; None where it has nothing of it."""

    def join(self, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        """All numbers of the whole tensor in their order, of what each rank has of it."""

    def is_replicated(self, name: str) -> bool:
        """Whether each rank has all of a tensor, and the same numbers in it."""


def take_part(partition: Partition, state: LayerState, rank: int, masters: WireMemory | None = None) -> LayerState:
    """A rank's part of a whole state.

    Args:
        masters: where its weights are to lie.
    """
    own, whole = LayerState.zeros(partition.layout(rank), masters), state.tensors()
    for full, tensor in own.tensors().items():
        _, is_named, name = full.partition(".")
        if is_named:
            part = partition.take(name, whole[full], rank)
            assert part is not None, full
            tensor.copy_(part)
    places = {entry.name: place for place, entry in enumerate(state.layout.parameters)}
    own.steps.copy_(state.steps[[places[entry.name] for entry in own.layout.parameters]])
    own.visits, own.version = state.visits, state.version
    return own


def join_parts(partition: Partition, state: LayerState, exchange: Exchange, key: str) -> LayerState:
    """The whole state, of this rank's part and those of all others; all of them call it for the same one."""
    whole, parts = LayerState.zeros(partition.whole_layout), state.tensors()
    counts = dict(zip((entry.name for entry in state.layout.parameters), state.steps.tolist(), strict=True))
    steps = torch.tensor([counts.get(entry.name, 0.0) for entry in whole.layout.parameters])
    every = steps.new_empty(exchange.size, len(steps))
    exchange.all_gather(steps, every, Channel.STEP, of=key)
    whole.steps.copy_(every.amax(dim=0))
    for full, target in whole.tensors().items():
        _, is_named, name = full.partition(".")
        own = parts.get(full)  # None: it has nothing of it, or moments were not asked for
        if not is_named:
            continue
        if not partition.is_replicated(name):
            target.copy_(_joined(partition, name, own, target, exchange, key).reshape(target.shape))
        elif own is not None:
            target.copy_(own)
    whole.visits, whole.version = state.visits, state.version
    return whole


def _joined(
    partition: Partition, name: str, own: Tensor | None, target: Tensor, exchange: Exchange, key: str
) -> Tensor:
    blank = torch.empty_like(target, device="meta")
    shapes = [partition.take(name, blank, rank) for rank in range(exchange.size)]
    row = target.new_zeros(max(one.numel() for one in shapes if one is not None))
    if own is not None:
        row[: own.numel()] = own.reshape(-1)
    rows = row.new_empty(exchange.size, len(row))
    exchange.all_gather(row, rows, Channel.STEP, of=key)
    pieces = [
        None if one is None else values[: one.numel()].view(one.shape) for one, values in zip(shapes, rows, strict=True)
    ]
    return partition.join(name, pieces)


class DividedPool(Protocol):
    """What is known of a pool that is divided among ranks; names are of parameters and buffers, by state."""

    @property
    def whole(self) -> LayerPool:
        """The pool as one process has it."""

    @property
    def parts(self) -> LayerPool:
        """The pool of this rank's parts."""

    def take(self, key: str, name: str, tensor: Tensor, rank: int | None = None) -> Tensor | None:
        """A rank's part of a whole tensor, such as a weight or its moment; None where it has nothing of it."""

    def join(self, key: str, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        """The whole tensor, of what each rank has of it."""

    def is_whole(self, key: str, name: str) -> bool:
        """Whether each rank has all of a tensor, and the same numbers in it."""


class Divided:
    """The parts of one state of a divided pool: a `Partition` by dimensions of its layer.

    Args:
        pool: that is divided.
        key: of the state.
        whole_layout, layout: of the whole state, and of this rank's part, with what the optimizer keeps.
    """

    def __init__(self, pool: DividedPool, key: str, *, whole_layout: Layout, layout: Layout) -> None:
        self._pool, self._key = pool, key
        self.whole_layout, self._layout = whole_layout, layout

    def layout(self, rank: int) -> Layout:
        """Of this rank's part: no other one is asked for."""
        return self._layout

    def take(self, name: str, tensor: Tensor, rank: int) -> Tensor | None:
        return self._pool.take(self._key, name, tensor, rank)

    def join(self, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        return self._pool.join(self._key, name, parts)

    def is_replicated(self, name: str) -> bool:
        return self._pool.is_whole(self._key, name)


class PartRules(PoolRules):
    """How a rank's parts are updated: each as the whole parameter would be, by whatever groups and rules look at."""

    def __init__(self, divided: DividedPool, optimizer: Optimizer) -> None:
        self._whole, self._parts = rules_of(divided.whole, optimizer), divided.parts
        super().__init__(divided.whole, optimizer)

    def _of(self, key: str) -> StateRules:
        treatments, layout = self._whole.treatments(key), layout_of(self._parts, key)
        return state_rules(layout, [treatments[entry.name] for entry in layout.parameters])
