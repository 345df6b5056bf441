"""An architecture's path under a relay's settings: what all predictions of a training step begin with."""

from __future__ import annotations

from collections.abc import Iterable

from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.closed_form import path_states, state_bytes
from l2l_nas.relay.interface import bytes_of
from l2l_nas.relay.measure import LayerNeeds, layer_needs
from l2l_nas.relay.path import Name, last_to_learn, tail_start
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer


class RelayPath:
    """A path, and what of it stays on the device.

    Args:
        sizes: samples of each micro-batch.
        is_host: whether the device is the host, where states need not come to it; None: as the relay's.
    """

    def __init__(
        self, relay: Relay, sizes: tuple[int, ...], architecture: Architecture, *, is_host: bool | None = None
    ) -> None:
        self.memory = memory = relay.memory_plan(sizes)
        is_host = relay.device.shares_memory if is_host is None else is_host
        self.relay, self.sizes = relay, sizes
        self.layers = relay.pool.path(architecture)
        self.numbered = relay.numbered(architecture)  # the same layers, with numbers for states and values
        self.states = path_states(relay.pool, architecture)
        self.is_resident = relay.has_states_on_device and not is_host  # whether its states live on the device
        self.spill = relay.stash.spill(self.numbered.numbers_of(memory.spilled))  # values that wait on the host
        self.learning = self.numbered.numbers_of(self.numbered.learning)  # values whose gradients are of use

    def streamed(self, states: Iterable[str]) -> list[str]:
        """Those of states that come to the device with each load."""
        return [] if self.is_resident else list(states)

    @property
    def tail_start(self) -> int:
        """Index of the first layer of the tail."""
        slots, keep = self.memory.slots, self.memory.keep
        return tail_start(self.numbered.layers, slots=slots, keep=keep, spill=self.spill)

    def shape(self, update: UpdateOrder, *, frames: int = 0) -> RelayShape:
        """The settings that decide its plans; `frames` are for states in files."""
        is_resident = self.is_resident and frames > 0
        return RelayShape(self.memory.slots, self.memory.keep, update, self.spill, frames, is_resident)

    def value_bytes(self, values: Iterable[Name]) -> int:
        """Bytes of one sample of these values on the device."""
        specs = self.relay.stash.specs
        return sum(bytes_of(specs[self.numbered.value(value)]) for value in values)

    def largest_bytes(self, values: Iterable[Name]) -> int:
        """Bytes of these values, for the largest micro-batch."""
        return max(self.sizes) * self.value_bytes(values)

    def saved_bytes(self, states: Iterable[str]) -> int:
        """Bytes of the copies that states are put back from, if their updates run ahead of the check."""
        late = set(map(self.numbered.state, last_to_learn(self.numbered.layers)))  # these wait for it
        return sum(state_bytes(self.relay, state, buffers=False) for state in states if state not in late)

    def needs(self) -> list[LayerNeeds]:
        """By layer, what its largest micro-batch asks of the device."""
        return [
            self.layer_needs(layer, needs_gradient=not self.learning.isdisjoint(entry.reads))
            for layer, entry in zip(self.layers, self.numbered.layers, strict=True)
        ]

    def layer_needs(self, layer: Layer, *, needs_gradient: bool) -> LayerNeeds:
        """What the largest micro-batch of a layer asks of the device."""
        relay, dtype = self.relay, self.relay.config.precision.dtype
        inputs = relay.stash.inputs_of(layer)
        return layer_needs(relay.pool, layer, inputs, max(self.sizes), dtype=dtype, needs_gradient=needs_gradient)
