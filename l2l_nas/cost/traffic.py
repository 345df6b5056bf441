"""The bytes that cross the link in a training step of an architecture: read off the plan that the relay carries out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import torch

from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import layout_of, wire_layout_of
from l2l_nas.relay.buffers import may_change
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.relay.path import Name, PathLayer
from l2l_nas.relay.plan import Carry, Op
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool


class StreamedBytes:
    """The bytes that a training step copies between host and device, both ways, in the midst of training one path.

    Counted are weights and gradients with the norm of each, buffers that training changes, and inputs that wait on the
    host; of states that live on the device, buffers alone. Not counted is what no architecture changes: the mini-batch
    and its loss.

    Args:
        relay: its slots, precision, budget and update policy decide.
        sizes: samples of each micro-batch.
    """

    def __init__(self, relay: Relay, sizes: tuple[int, ...]) -> None:
        self._relay = relay
        self._sizes = sizes
        self._dtype = PRECISIONS[relay.precision]
        self._moves: dict[tuple[tuple[PathLayer, ...], frozenset[Name]], Counter[tuple[Op, int]]] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Of a step that follows one of the same architecture and comes before another."""
        relay = self._relay
        path = relay.numbered(architecture)
        spilled = path.numbers_of(relay.memory_plan(self._sizes).spilled)
        key = (path.layers, spilled)
        if key not in self._moves:
            self._moves[key] = self._moves_of(path.layers, spilled)
        layers = relay.pool.path(architecture)
        residents = frozenset(relay.states_on_device(architecture))
        return float(
            sum(
                count
                * (
                    self._value(path.value(what))
                    if op in (Op.STORE, Op.FETCH)
                    else self._of_move(op, layers[what], residents)
                )
                for (op, what), count in self._moves[key].items()
            )
        )

    def _moves_of(self, path: tuple[PathLayer, ...], spilled: frozenset[Name]) -> Counter[tuple[Op, int]]:
        """How often each layer of such a path is moved, and how, and each value."""
        carry: Carry | None = None
        for _ in range(2):  # the first step begins with empty slots
            plan = plan_training(
                path,
                slots=len(self._relay.bank.slots),
                update=self._relay.usual_order,
                keep=self._relay.memory_plan(self._sizes).keep,
                spill=self._relay.stash.spill(spilled),
                carry=carry,
                upcoming=path[0],
            )
            carry = plan.leaves
        saved = {step.layer for step in plan.steps if step.op is Op.SAVE}
        moves: Counter[tuple[Op, int]] = Counter()
        for step in plan.steps:
            if step.op in (Op.STORE, Op.FETCH):
                moves[step.op, int(step.value)] += 1
            elif step.op in (Op.LOAD, Op.SEND, Op.SAVE):
                moves[step.op, step.layer % len(path)] += 1  # behind the path comes the first layer of the next one
            elif step.op is Op.BACKWARD and step.layer in saved:
                moves[step.op, step.layer] += 1
        return moves

    def _of_move(self, op: Op, layer: Layer, residents: frozenset[str]) -> int:
        streamed = [state for state in layer.states if state not in residents]
        match op:
            case Op.LOAD:
                return layer_bytes(self._relay.pool, streamed, self._dtype) + self._buffers(layer)
            case Op.SEND:
                return self._gradients(streamed)
            case _:  # SAVE; and a backward starts from the buffers that the forward started from
                return self._buffers(layer) if may_change(self._relay.pool, layer) else 0

    def _buffers(self, layer: Layer) -> int:
        return layer_bytes(self._relay.pool, [layer.key], self._dtype, buffers=True)

    def _gradients(self, states: Iterable[str]) -> int:
        """Those of what learns, always in float32, and the norm of each."""
        layouts = (layout_of(self._relay.pool, state) for state in states)
        return sum(gradient_bytes(layout) for layout in layouts if layout.is_trainable)

    def _value(self, name: str) -> int:
        specs = self._relay.stash.specs[name]
        return sum(self._sizes) * sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)


def layer_bytes(pool: LayerPool, states: Iterable[str], dtype: torch.dtype, *, buffers: bool = False) -> int:
    """Bytes of states as they cross the link: their weights, or their buffers.

    Args:
        dtype: of the wire.
    """
    wires = {state: wire_layout_of(pool, state, dtype) for state in states}
    if not buffers:
        return sum(wire.parameter_bytes for wire in wires.values())
    # buffers cross as one block, unless some of them are rounded
    return sum(
        wire.buffer_bytes
        if wire.buffers == layout_of(pool, state).buffers
        else sum(entry.numel * entry.dtype.itemsize for entry in wire.buffers)
        for state, wire in wires.items()
    )
