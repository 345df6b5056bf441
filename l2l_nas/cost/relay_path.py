"""An architecture's path under a relay's settings: what all predictions of a training step begin with."""

from __future__ import annotations

from collections.abc import Iterable

from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.closed_form import path_states
from l2l_nas.relay.interface import bytes_of
from l2l_nas.relay.measure import LayerNeeds, layer_needs
from l2l_nas.relay.path import Name, tail_start
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer


class RelayPath:
    """A path, and what of it stays on the device.

    Args:
        relay: its slots, precision, budget and update policy decide.
        sizes: samples of each micro-batch.
        is_host: whether the device is the host, where states need not come to it.

    Attributes:
        layers: of the pool.
        numbered: the same layers as plans see them, with numbers for states and values.
        states: keys of the states, each once.
        on_device: those of them that live on the device.
        spill: values that wait on the host.
        learning: values whose gradients are of use.
    """

    def __init__(self, relay: Relay, sizes: tuple[int, ...], architecture: Architecture, *, is_host: bool) -> None:
        memory = relay.memory_plan(sizes)
        self._relay, self._keep, self._largest = relay, memory.keep, max(sizes)
        self.layers = relay.pool.path(architecture)
        self.numbered = relay.numbered(architecture)
        self.states = path_states(relay.pool, architecture)
        self.on_device = frozenset(() if is_host else relay.states_on_device(architecture))
        self.spill = relay.stash.spill(self.numbered.numbers_of(memory.spilled))
        self.learning = self.numbered.numbers_of(self.numbered.learning)

    @property
    def streamed(self) -> tuple[str, ...]:
        """States that come to the device with each load."""
        return tuple(state for state in self.states if state not in self.on_device)

    @property
    def tail_start(self) -> int:
        """Index of the first layer of the tail."""
        slots = len(self._relay.bank.slots)
        return tail_start(self.numbered.layers, slots=slots, keep=self._keep, spill=self.spill)

    def shape(self, update: UpdateOrder, *, frames: int = 0) -> RelayShape:
        """The settings that decide its plans.

        Args:
            frames: for states in files; 0: all are in memory.
        """
        keys = self.numbered.states
        on_device = frozenset(number for number, key in enumerate(keys) if key in self.on_device) if frames else ()
        return RelayShape(len(self._relay.bank.slots), self._keep, update, self.spill, frames, frozenset(on_device))

    def value_bytes(self, values: Iterable[Name]) -> int:
        """Bytes of one sample of these values on the device."""
        specs = self._relay.stash.specs
        return sum(bytes_of(specs[self.numbered.value(value)]) for value in values)

    def needs(self) -> list[LayerNeeds]:
        """By layer, what its largest micro-batch asks of the device."""
        return [
            self.layer_needs(layer, needs_gradient=not self.learning.isdisjoint(entry.reads))
            for layer, entry in zip(self.layers, self.numbered.layers, strict=True)
        ]

    def layer_needs(self, layer: Layer, *, needs_gradient: bool) -> LayerNeeds:
        """What the largest micro-batch of a layer asks of the device."""
        relay = self._relay
        return layer_needs(
            relay.pool,
            layer,
            relay.stash.inputs_of(layer),
            self._largest,
            dtype=relay.config.precision.dtype,
            needs_gradient=needs_gradient,
        )
