"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns; what layers keep and make while they run is found by dry runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import align
from l2l_nas.relay.device_states import block_sizes
from l2l_nas.relay.measure import LayerNeeds
from l2l_nas.relay.path import Name, taken_by
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture


class _Gradients(NamedTuple):
    """Bytes of the gradients of a micro-batch that a layer's backward meets."""

    learns: bool  # whether it has a backward
    read: int  # of what the layer reads
    written: int  # of what it writes
    begun: int  # of what it reads, that layers behind it have begun
    passing: int  # of other values, that layers behind it have begun and layers before it go on with


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

    def __call__(self, architecture: Architecture) -> float:
        """Bytes of slots, stash, states on the device, and the largest moment of the path's layers."""
        path = self._path(architecture)
        needs, gradients, first = path.needs(), self._gradients(path, path.learning), path.tail_start
        entered = self._bytes(path, path.learning.intersection(taken_by(path.numbered.layers, first)))
        moments = [*self._streamed(needs[:first], gradients), *self._tail(needs, gradients, first, entered)]
        return float(self.owned_bytes + self.resident_bytes(architecture) + max(moments))

    def resident_bytes(self, architecture: Architecture) -> int:
        """States that live on the device while this architecture is trained, gradients, and copies before updates.

        Gradients of states that are updated at once may follow each other in a block; each is counted.
        """
        path, server = self._path(architecture), self._relay.server
        learning = [state for state in path.on_device if server.layout(state).is_trainable]
        gradients = sum(align(gradient_bytes(server.layout(state))) for state in learning)
        # in another order, states that live on the device wait for the check
        saved = path.saved_bytes(learning) if self._relay.config.update.order is UpdateOrder.AHEAD else 0
        return self.state_bytes(architecture) + gradients + saved

    def state_bytes(self, architecture: Architecture) -> int:
        """Bytes of the states that live on the device while this architecture is trained."""
        server, dtype = self._relay.server, self._relay.config.precision.dtype
        return sum(sum(block_sizes(server, state, dtype)) for state in self._path(architecture).on_device)

    @property
    def owned_bytes(self) -> int:
        """Bytes of slots and stash, which no architecture changes."""
        relay = self._relay
        arena = relay.stash.needs_bytes(self._sizes, relay.memory_plan(self._sizes).spilled)
        return len(relay.bank.slots) * relay.bank.slot_bytes + arena

    def plain_activations(self, architecture: Architecture) -> int:
        """The most bytes of activations of a micro-batch in plain training, which keeps those of every layer."""
        path = self._path(architecture)
        needs = [path.layer_needs(layer, needs_gradient=index > 0) for index, layer in enumerate(path.layers)]
        gradients = self._gradients(path, frozenset(value for layer in path.numbered.layers for value in layer.writes))
        return max(self._tail(needs, gradients, 0, 0))

    def _path(self, architecture: Architecture) -> RelayPath:
        return RelayPath(self._relay, self._sizes, architecture, is_host=self._is_host)

    def _bytes(self, path: RelayPath, values: Iterable[Name]) -> int:
        """Bytes of values, for the largest micro-batch."""
        return max(self._sizes) * path.value_bytes(values)

    def _gradients(self, path: RelayPath, learning: frozenset[Name]) -> list[_Gradients]:
        """For each layer, the gradients that its backward reads, makes and passes by."""
        last_reader = {name: index for index, layer in enumerate(path.numbered.layers) for name in layer.reads}
        before: set[Name] = set()
        gradients = []
        for index, layer in enumerate(path.numbered.layers):
            later = {name for name in before if last_reader.get(name, -1) > index}
            written = learning.intersection(layer.writes)
            met = (
                before.intersection(layer.reads),
                written,
                later.intersection(layer.reads),
                later.difference(layer.reads),
            )
            gradients.append(_Gradients(bool(written), *(self._bytes(path, values) for values in met)))
            before |= written
        return gradients

    def _streamed(self, needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients]) -> Iterator[int]:
        """Bytes at the largest moments of each visit of the layers before the tail."""
        others = len(self._sizes) - 1
        for need, gradient in zip(needs, gradients, strict=False):
            # a forward's graph of one micro-batch lives until the next one has its own
            yield need.forward_peak + (need.alive if others else 0)
            if not gradient.learns:
                continue
            # held: of micro-batches that are done the gradients of inputs, of the others those of outputs
            waiting = (others + 1) * gradient.passing
            due = gradient.written + gradient.begun
            for done in (0, others):
                yield waiting + done * gradient.read + (others + 1 - done) * due + need.peak

    def _tail(
        self, needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients], first: int, entered: int
    ) -> Iterator[int]:
        """Bytes at the largest moment of each layer of the tail: one micro-batch goes forward through it, and back.

        Of each micro-batch, it leaves gradients of `entered` bytes to the layers before it.
        """
        alive = (len(self._sizes) - 1) * entered
        for index in range(first, len(needs)):
            is_last = index == len(needs) - 1
            yield alive + needs[index].peak + (0 if is_last else gradients[index].written + gradients[index].passing)
            alive += needs[index].alive
