"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns; what layers keep and make while they run is found by dry runs. A device on
paper has the memory of a profile, and none of it is ever touched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import align
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.device_states import state_bytes
from l2l_nas.relay.memory import ValueGradients, streamed_moments, tail_moments
from l2l_nas.relay.path import Name, taken_by
from l2l_nas.relay.plan import UpdateOrder


def device_bytes(path: RelayPath) -> int:
    """The most device memory of a training step: slots, stash, states on the device, the largest moment of layers."""
    needs, gradients, first = path.needs(), _gradients(path, path.learning), path.tail_start
    entered = path.largest_bytes(path.learning.intersection(taken_by(path.numbered.layers, first)))
    moments = [
        *streamed_moments(needs[:first], gradients[:first], len(path.sizes)),
        *tail_moments(needs[first:], gradients[first:], (len(path.sizes) - 1) * entered),
    ]
    return owned_bytes(path) + resident_bytes(path) + max(moments)


def owned_bytes(path: RelayPath) -> int:
    """Bytes of slots and stash, which no architecture changes."""
    relay = path.relay
    return path.memory.slots * relay.bank.slot_bytes + relay.stash.needs_bytes(path.sizes, path.memory.spilled)


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
    return max(tail_moments(needs, _gradients(path, values), 0))


def _gradients(path: RelayPath, learning: frozenset[Name]) -> list[ValueGradients]:
    last_reader = {name: index for index, layer in enumerate(path.numbered.layers) for name in layer.reads}
    before: set[Name] = set()
    gradients = []
    for index, layer in enumerate(path.numbered.layers):
        later = {name for name in before if last_reader.get(name, -1) > index}
        written = learning.intersection(layer.writes)
        reads = layer.reads
        met = (before.intersection(reads), written, later.intersection(reads), later.difference(reads))
        gradients.append(ValueGradients(bool(written), *map(path.largest_bytes, met)))
        before |= written
    return gradients


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
