"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns. What layers keep and make while they run is found on meta tensors: a forward
and a backward of one micro-batch, with every storage counted while it lives. Kernels may make more inside (an LSTM on a
CPU keeps gates) or other things (attention goes by its plain formula on meta): see the log for how far it is off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from l2l_nas.cost.live_bytes import LiveBytes
from l2l_nas.eps.inbox import gradient_bytes
from l2l_nas.eps.layout import align
from l2l_nas.relay.device_states import block_sizes
from l2l_nas.relay.path import PathLayer, learns_from, tail_start, taken_by
from l2l_nas.relay.plan import UpdatePolicy
from l2l_nas.relay.relay import PRECISIONS, Relay
from l2l_nas.relay.residency import module_in
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.probe import example
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.shapes import runs_on
from l2l_nas.space.values import as_tuple, learns


@dataclass(frozen=True)
class Activations:
    """What one micro-batch of a layer needs on the device, in bytes; weights and their gradients have slots.

    Args:
        alive: between its forward and its backward, its outputs included.
        forward: at most, in its forward.
        peak: at most, from its forward to the end of its backward.
    """

    alive: int
    forward: int
    peak: int


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
        """What is held of a micro-batch before its backward."""
        return self.after + self.begun


class DeviceBytes:
    """The most device memory that a training step of an architecture needs, in bytes.

    Args:
        relay: its slots, stash and budget decide.
        sizes: samples of each micro-batch.
        known: what was found for this pool before, to which more is added.
        is_host: whether the device is the host, where states need not come to it; None: as the relay's.
    """

    def __init__(
        self,
        relay: Relay,
        sizes: tuple[int, ...],
        *,
        known: dict[object, Activations] | None = None,
        is_host: bool | None = None,
    ) -> None:
        self._relay = relay
        self._sizes = sizes
        self._is_host = relay.device.shares_memory if is_host is None else is_host
        self._dtype = PRECISIONS[relay.precision]
        self._found: dict[object, Activations] = {} if known is None else known

    def __call__(self, architecture: Architecture) -> float:
        """Slots, stash, states that live there, and the largest moment of the path's layers."""
        relay = self._relay
        residency = relay.residency(self._sizes)
        path, layers = relay.path(architecture), relay.pool.path(architecture)
        spill = relay.stash.spill(residency.spilled)
        first = tail_start(path, slots=len(relay.bank.slots), keep=residency.keep, spill=spill)
        learning = learns_from(path)
        of_use = {name for about, has in zip(path, learning, strict=True) if has for name in about.writes}
        needs = [
            self._activations(layer, not of_use.isdisjoint(about.reads))
            for layer, about in zip(layers, path, strict=True)
        ]
        gradients = self._gradients(path, of_use)
        entered = self._bytes(of_use.intersection(taken_by(path, first)))
        moments = [*self._streamed(needs[:first], gradients, learning), *self._tail(needs, gradients, first, entered)]
        return float(self.owned_bytes + self.resident_bytes(architecture) + max(moments))

    def resident_bytes(self, architecture: Architecture) -> int:
        """States that live on the device while this architecture is trained, their gradients, and what `ahead` saves.

        Gradients of states that are updated at once may follow each other in a block; each is counted.
        """
        server = self._relay.server
        states = self._residents(architecture)
        layouts = [server.layout(state) for state in states]
        gradients = sum(align(gradient_bytes(layout)) for layout in layouts if layout.is_trainable)
        saved = 0
        if self._relay.update is UpdatePolicy.AHEAD:
            own = [server.rules.of(s).layout for s, layout in zip(states, layouts, strict=True) if layout.is_trainable]
            saved = sum(
                layout.parameter_bytes + sum(moment.num_bytes for moment in layout.moments) + 4 * len(layout.parameters)
                for layout in own
            )
        return self.state_bytes(architecture) + gradients + saved

    def state_bytes(self, architecture: Architecture) -> int:
        """Of states that live on the device while this architecture is trained."""
        server = self._relay.server
        return sum(sum(block_sizes(server, state, self._dtype)) for state in self._residents(architecture))

    def _residents(self, architecture: Architecture) -> tuple[str, ...]:
        return () if self._is_host else self._relay.residents(architecture)

    @property
    def owned_bytes(self) -> int:
        """Slots and stash: what no architecture changes."""
        relay = self._relay
        arena = relay.stash.needs_bytes(self._sizes, relay.residency(self._sizes).spilled)
        return len(relay.bank.slots) * relay.bank.slot_bytes + arena

    def resident_activations(self, architecture: Architecture) -> int:
        """The most bytes of activations of a micro-batch in plain training, which keeps those of every layer."""
        path, layers = self._relay.path(architecture), self._relay.pool.path(architecture)
        needs = [self._activations(layer, index > 0) for index, layer in enumerate(layers)]
        gradients = self._gradients(path, {name for about in path for name in about.writes})
        return max(self._tail(needs, gradients, 0, 0))

    def _gradients(self, path: Sequence[PathLayer], of_use: set[str]) -> list[_Gradients]:
        """What each layer's backward meets."""
        last = {name: index for index, about in enumerate(path) for name in about.reads}
        found = []
        for index, about in enumerate(path):
            before = of_use.intersection(name for layer in path[:index] for name in layer.writes)
            later = {name for name in before if last.get(name, -1) > index}
            found.append(
                _Gradients(
                    self._bytes(before.intersection(about.reads)),
                    self._bytes(of_use.intersection(about.writes)),
                    self._bytes(later.intersection(about.reads)),
                    self._bytes(later.difference(about.reads)),
                )
            )
        return found

    def _streamed(
        self, needs: Sequence[Activations], gradients: Sequence[_Gradients], learning: Sequence[bool]
    ) -> Iterator[int]:
        """Visits of the layers before the tail."""
        others = len(self._sizes) - 1
        for need, gradient, is_learning in zip(needs, gradients, learning, strict=False):
            # a forward's graph of one micro-batch lives until the next one has its own
            yield need.forward + (need.alive if others else 0)
            if not is_learning:
                continue
            # held: of micro-batches that are done the gradients of inputs, of the others those of outputs
            waiting = (others + 1) * gradient.elsewhere
            for done in (0, others):
                yield waiting + done * gradient.before + (others + 1 - done) * gradient.due + need.peak

    def _tail(
        self, needs: Sequence[Activations], gradients: Sequence[_Gradients], first: int, entered: int
    ) -> Iterator[int]:
        """The round: one micro-batch forward through all its layers, and back.

        Args:
            entered: bytes of the gradients that it leaves to the layers before it, of a micro-batch.
        """
        alive = (len(self._sizes) - 1) * entered
        for index in range(first, len(needs)):
            is_last = index == len(needs) - 1
            yield alive + needs[index].peak + (0 if is_last else gradients[index].after + gradients[index].elsewhere)
            alive += needs[index].alive

    def _bytes(self, values: Iterable[str]) -> int:
        """Of values, for the largest micro-batch."""
        specs = [spec for name in values for spec in self._relay.stash.specs[name]]
        return max(self._sizes) * sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)

    def _activations(self, layer: Layer, needs_gradient: bool) -> Activations:
        reads = self._relay.pool.wiring.reads[layer.position]
        inputs = tuple(spec for name in reads for spec in self._relay.stash.specs[name])
        key = (self._relay.bank.kind(layer), inputs, max(self._sizes), self._dtype, needs_gradient)
        if key not in self._found:
            self._found[key] = activations(
                self._relay.pool, layer, inputs, max(self._sizes), dtype=self._dtype, needs_gradient=needs_gradient
            )
        return self._found[key]


def activations(
    pool: LayerPool, layer: Layer, inputs: Specs, samples: int, *, dtype: torch.dtype, needs_gradient: bool
) -> Activations:
    """What a micro-batch of a layer needs, found on meta tensors if they tell.

    Args:
        inputs: in the dtypes of the device.
        dtype: of weights on the device.
        needs_gradient: whether its inputs get one.
    """
    live = LiveBytes(meta=True)
    passes = run_through(pool, layer, inputs, samples, dtype=dtype, needs_gradient=needs_gradient, mode=live)
    next(passes)
    alive, forward = live.now, live.peak
    next(passes)
    return Activations(alive, forward, live.peak)


@torch.enable_grad()
def run_through(
    pool: LayerPool,
    layer: Layer,
    inputs: Specs,
    samples: int,
    *,
    dtype: torch.dtype,
    needs_gradient: bool,
    mode: TorchDispatchMode,
) -> Iterator[None]:
    """A forward and a backward of a micro-batch under a mode that counts something; yields after each."""
    device = runs_on(pool, layer)
    module = module_in(pool, layer, device, dtype).train()
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros(parameter.shape, dtype=torch.float32, device=device).to(parameter.dtype)
    leaves = tuple(t.requires_grad_(needs_gradient and learns(t)) for t in example(inputs, device, samples))
    with preserved_generators(device), mode:
        outputs = [tensor for tensor in as_tuple(module(*leaves)) if tensor.requires_grad]
    yield
    gradients = [torch.zeros_like(tensor) for tensor in outputs]
    with mode:
        if outputs:
            torch.autograd.backward(outputs, gradients)
    yield
