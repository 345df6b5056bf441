"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns; what layers keep and make while they run is found by dry runs. A device on
paper has the memory of a profile, and none of it is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import align
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.device_states import state_bytes
from l2l_nas.relay.measure import LayerNeeds
from l2l_nas.relay.path import Name, taken_by
from l2l_nas.relay.plan import UpdateOrder


class _Gradients(NamedTuple):
    """Bytes of the gradients of a micro-batch that a layer's backward meets."""

    learns: bool  # whether it has a backward
    read: int  # of what the layer reads
    written: int  # of what it writes
    begun: int  # of what it reads, that layers behind it have begun
    passing: int  # of other values, that layers behind it have begun and layers before it go on with


def device_bytes(path: RelayPath) -> int:
    """The most device memory of a training step: slots, stash, states on the device, the largest moment of layers."""
    needs, gradients, first = path.needs(), _gradients(path, path.learning), path.tail_start
    entered = path.largest_bytes(path.learning.intersection(taken_by(path.numbered.layers, first)))
    moments = [
        *_streamed(path, needs[:first], gradients),
        *_tail(needs[first:], gradients[first:], (len(path.sizes) - 1) * entered),
    ]
    return owned_bytes(path) + resident_bytes(path) + max(moments)


def owned_bytes(path: RelayPath) -> int:
    """Bytes of slots and stash, which no architecture changes."""
    relay = path.relay
    arena = relay.stash.needs_bytes(path.sizes, relay.memory_plan(path.sizes).spilled)
    return len(relay.bank.slots) * relay.bank.slot_bytes + arena


def resident_bytes(path: RelayPath) -> int:
    """States that live on the device while this path is trained, gradients, and copies before updates.

    Gradients of states that are updated at once may follow each other in a block; each is counted.
    """
    relay, layout = path.relay, path.relay.server.layout
    learning = [state for state in path.states if path.is_resident and layout(state).is_trainable]
    gradients = sum(align(gradient_bytes(layout(state))) for state in learning)
    # in another order, states that live on the device wait for the check
    saved = path.saved_bytes(learning) if relay.usual_order is UpdateOrder.AHEAD else 0
    return moved_bytes(path) + gradients + saved


def moved_bytes(path: RelayPath) -> int:
    """Bytes of the states that live on the device while this path is trained."""
    server, dtype = path.relay.server, path.relay.config.precision.dtype
    return sum(state_bytes(server, state, dtype) for state in path.states) if path.is_resident else 0


def plain_activations(path: RelayPath) -> int:
    """The most bytes of activations of a micro-batch in plain training, which keeps those of every layer."""
    needs = [path.layer_needs(layer, needs_gradient=index > 0) for index, layer in enumerate(path.layers)]
    values = frozenset(value for layer in path.numbered.layers for value in layer.writes)
    return max(_tail(needs, _gradients(path, values), 0))


def _gradients(path: RelayPath, learning: frozenset[Name]) -> list[_Gradients]:
    last_reader = {name: index for index, layer in enumerate(path.numbered.layers) for name in layer.reads}
    before: set[Name] = set()
    gradients = []
    for index, layer in enumerate(path.numbered.layers):
        later = {name for name in before if last_reader.get(name, -1) > index}
        written = learning.intersection(layer.writes)
        reads = layer.reads
        met = (before.intersection(reads), written, later.intersection(reads), later.difference(reads))
        gradients.append(_Gradients(bool(written), *map(path.largest_bytes, met)))
        before |= written
    return gradients


def _streamed(path: RelayPath, needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients]) -> Iterator[int]:
    """Bytes at the largest moments of each visit of the layers before the tail."""
    others = len(path.sizes) - 1
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


def _tail(needs: Sequence[LayerNeeds], gradients: Sequence[_Gradients], alive: int) -> Iterator[int]:
    """Bytes at the largest moment of each layer of the tail: one micro-batch goes forward through it, and back.

    Gradients that those before left to the layers before the tail have `alive` bytes.
    """
    for index, (need, gradient) in enumerate(zip(needs, gradients, strict=True), 1):
        yield alive + need.peak + (gradient.written + gradient.passing if index < len(needs) else 0)
        alive += need.alive


class PaperDevice(Cpu):
    """A relay may be built on it, to be asked what it would do; it must not train.

    Its blocks are address space of this process alone: the system gives memory to what is written, and nothing is.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(copies=True)
        self._left = num_bytes

    def allocate(self, num_bytes: int) -> Tensor:
        """See `Device`."""
        self._left -= align(num_bytes)
        return torch.empty(align(num_bytes), dtype=torch.uint8)

    allocate_host = Cpu.allocate

    def free_bytes(self) -> int:
        """See `Device`."""
        return max(0, self._left)
