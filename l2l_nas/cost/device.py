"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns; what layers keep and make while they run is found by dry runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import align
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.relay.device_states import block_sizes
from l2l_nas.relay.measure import LayerNeeds, layer_needs
from l2l_nas.relay.path import Name, PathLayer, last_to_learn, learns_from, tail_start, taken_by
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer


@dataclass(frozen=True)
class _Gradients:
    """Bytes of the gradients of a micro-batch that a layer's backward meets.

    Args:
        before: of what it reads.
        after: of what it writes.
        begun: of what it reads, that layers behind it have begun.
        elsewhere: of other values, that layers behind it have begun and layers before it go on with.
    """

    before: int
    after: int
    begun: int
    elsewhere: int

    @property
    def due(self) -> int:
        """Bytes of gradients that are held of a micro-batch before its backward."""
        return self.after + self.begun


class DeviceBytes:
    """The most device memory that a training step of an architecture needs, in bytes.

    Args:
        relay: its slots, stash and budget decide.
        sizes: samples of each micro-batch.
        is_host: whether the device is the host, where states need not come to it; None: as the relay's.
    """

    def __init__(self, relay: Relay, sizes: tuple[int, ...], *, is_host: bool | None = None) -> None:
        self._relay = relay
        self._sizes = sizes
        self._is_host = relay.device.shares_memory if is_host is None else is_host
        self._dtype = PRECISIONS[relay.precision]

    def __call__(self, architecture: Architecture) -> float:
        """Bytes of slots, stash, states on the device, and the largest moment of the path's layers."""
        relay = self._relay
        memory = relay.memory_plan(self._sizes)
        path, layers = relay.path(architecture), relay.pool.path(architecture)
        spill = relay.stash.spill(memory.spilled)
        first = tail_start(path, slots=len(relay.bank.slots), keep=memory.keep, spill=spill)
        learning = learns_from(path)
        of_use = {name for entry, has_use in zip(path, learning, strict=True) if has_use for name in entry.writes}
        needs = [
            self._needs(layer, not of_use.isdisjoint(entry.reads)) for layer, entry in zip(layers, path, strict=True)
        ]
        gradients = self._gradients(path, of_use)
        entered = self._bytes(of_use.intersection(taken_by(path, first)))
        moments = [*self._streamed(needs[:first], gradients, learning), *self._tail(needs, gradients, first, entered)]
        return float(self.owned_bytes + self.resident_bytes(architecture) + max(moments))

    def resident_bytes(self, architecture: Architecture) -> int:
        """States that live on the device while this architecture is trained, gradients, and copies before updates.

        Gradients of states that are updated at once may follow each other in a block; each is counted.
        """
        server = self._relay.server
        states = self._residents(architecture)
        layouts = [server.layout(state) for state in states]
        gradients = sum(align(gradient_bytes(layout)) for layout in layouts if layout.is_trainable)
        saved = 0
        if (
            self._relay.config.update.order is UpdateOrder.AHEAD
        ):  # else states that live on the device wait for the check
            late = last_to_learn(self._relay.path(architecture))
            ahead = (s for s, layout in zip(states, layouts, strict=True) if layout.is_trainable and s not in late)
            saved_layouts = [server.rules.of(state).layout for state in ahead]
            saved = sum(
                layout.parameter_bytes + sum(moment.num_bytes for moment in layout.moments) + 4 * len(layout.parameters)
                for layout in saved_layouts
            )
        return self.state_bytes(architecture) + gradients + saved

    def state_bytes(self, architecture: Architecture) -> int:
        """Bytes of the states that live on the device while this architecture is trained."""
        server = self._relay.server
        return sum(sum(block_sizes(server, state, self._dtype)) for state in self._residents(architecture))

    def _residents(self, architecture: Architecture) -> tuple[str, ...]:
        return () if self._is_host else self._relay.states_on_device(architecture)

    @property
    def owned_bytes(self) -> int:
        """Bytes of slots and stash, which no architecture changes."""
        relay = self._relay
        arena = relay.stash.needs_bytes(self._sizes, relay.memory_plan(self._sizes).spilled)
        return len(relay.bank.slots) * relay.bank.slot_bytes + arena

    def resident_activations(self, architecture: Architecture) -> int:
        """The most bytes of activations of a micro-batch in plain training, which keeps those of every layer."""
        path, layers = self._relay.path(architecture), self._relay.pool.path(architecture)
        needs = [self._needs(layer, index > 0) for index, layer in enumerate(layers)]
        gradients = self._gradients(path, {name for layer in path for name in layer.writes})
        return max(self._tail(needs, gradients, 0, 0))

    def _gradients(self, path: Sequence[PathLayer], of_use: set[Name]) -> list[_Gradients]:
        """For each layer, the gradients that its backward reads, makes and passes by."""
        last = {name: index for index, layer in enumerate(path) for name in layer.reads}
        gradients = []
        for index, layer in enumerate(path):
            before = of_use.intersection(name for layer in path[:index] for name in layer.writes)
            later = {name for name in before if last.get(name, -1) > index}
            gradients.append(
                _Gradients(
                    self._bytes(before.intersection(layer.reads)),
                    self._bytes(of_use.intersection(layer.writes)),
                    self._bytes(later.intersection(layer.reads)),
                    self._bytes(later.difference(layer.reads)),
                )
            )
        return gradients

    def _streamed(
        self, needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients], learning: Sequence[bool]
    ) -> Iterator[int]:
        """Bytes at the largest moments of each visit of the layers before the tail."""
        others = len(self._sizes) - 1
        for need, gradient, is_learning in zip(needs, gradients, learning, strict=False):
            # a forward's graph of one micro-batch lives until the next one has its own
            yield need.forward_peak + (need.alive if others else 0)
            if not is_learning:
                continue
            # held: of micro-batches that are done the gradients of inputs, of the others those of outputs
            waiting = (others + 1) * gradient.elsewhere
            for done in (0, others):
                yield waiting + done * gradient.before + (others + 1 - done) * gradient.due + need.peak

    def _tail(
        self, needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients], first: int, entered: int
    ) -> Iterator[int]:
        """Bytes at the largest moment of each layer of the tail: one micro-batch goes forward through it, and back.

        Args:
            entered: bytes of the gradients that it leaves to the layers before it, of a micro-batch.
        """
        alive = (len(self._sizes) - 1) * entered
        for index in range(first, len(needs)):
            is_last = index == len(needs) - 1
            yield alive + needs[index].peak + (0 if is_last else gradients[index].after + gradients[index].elsewhere)
            alive += needs[index].alive

    def _bytes(self, values: Iterable[Name]) -> int:
        """Bytes of values, for the largest micro-batch."""
        specs = [spec for name in values for spec in self._relay.stash.specs[str(name)]]
        return max(self._sizes) * sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)

    def _needs(self, layer: Layer, needs_gradient: bool) -> LayerNeeds:
        pool, inputs = self._relay.pool, self._relay.stash.inputs_of(layer)
        return layer_needs(pool, layer, inputs, max(self._sizes), dtype=self._dtype, needs_gradient=needs_gradient)
