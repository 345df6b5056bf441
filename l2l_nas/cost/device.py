"""The device memory that a training step of an architecture needs, under a relay's settings.

Slots and stash are what the relay owns. What layers keep and make while they run is found on meta tensors: a forward
and a backward of one micro-batch, with every storage counted while it lives. Kernels may make more inside (an LSTM on a
CPU keeps gates) or other things (attention goes by its plain formula on meta): see the log for how far it is off.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from l2l_nas.relay.executor import PRECISIONS, Relay
from l2l_nas.relay.plan import tail_start
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.probe import example, learns
from l2l_nas.space.shapes import Specs, as_tuple, runs_on


@dataclass(frozen=True)
class Activations:
    """What one micro-batch of a layer needs on the device, in bytes; weights and their gradients have slots.

    Args:
        kept: between its forward and its backward, its outputs included.
        forward: at most, in its forward.
        peak: at most, from its forward to the end of its backward.
    """

    kept: int
    forward: int
    peak: int


class DeviceBytes:
    """The most device memory that a training step of an architecture needs, in bytes.

    Args:
        relay: its slots, stash and budget decide.
        sizes: samples of each micro-batch.
    """

    def __init__(self, relay: Relay, sizes: tuple[int, ...]) -> None:
        self._relay = relay
        self._sizes = sizes
        self._dtype = PRECISIONS[relay.precision]
        self._found: dict[object, Activations] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Slots and stash, which no architecture changes, and the largest moment of the path's layers."""
        relay = self._relay
        residency = relay.residency(self._sizes)
        path, layers = relay.path(architecture), relay.pool.path(architecture)
        first = tail_start(path, slots=len(relay.bank.slots), keep=residency.keep)
        lowest = min((index for index, about in enumerate(path) if about.trainable), default=len(path))
        needs = [self._activations(layer, index > lowest) for index, layer in enumerate(layers)]
        ends = [*(layer.position for layer in layers), len(relay.boundaries) - 1]
        gradients = [self._bytes(end) if index > lowest else 0 for index, end in enumerate(ends)]
        moments = [*self._streamed(needs[:first], gradients, lowest), *self._tail(needs, gradients, first)]
        arena = relay.stash.needs_bytes(self._sizes, residency.spilled)
        return float(len(relay.bank.slots) * relay.bank.slot_bytes + arena + max(moments))

    def _streamed(self, needs: Sequence[Activations], gradients: Sequence[int], lowest: int) -> Iterator[int]:
        """Visits of the layers before the tail."""
        others = len(self._sizes) - 1
        for index, need in enumerate(needs):
            # a forward's graph of one micro-batch lives until the next one has its own
            yield need.forward + (need.kept if others else 0)
            if index < lowest:
                continue
            before, after = gradients[index], gradients[index + 1]
            # held: of micro-batches that are done the gradients of inputs, of the others those of outputs
            for done in (0, others):
                yield done * before + (others + 1 - done) * after + need.peak
            for done in (1, others) if others else ():
                # the outputs of one micro-batch, and their gradient, live until the next one has its own
                yield done * before + (others + 1 - done) * after + need.forward + 2 * after

    def _tail(self, needs: Sequence[Activations], gradients: Sequence[int], first: int) -> Iterator[int]:
        """The turn: one micro-batch forward through all its layers, and back."""
        kept = (len(self._sizes) - 1) * gradients[first]
        for index in range(first, len(needs)):
            is_last = index == len(needs) - 1
            yield kept + needs[index].peak + (0 if is_last else gradients[index + 1])
            kept += needs[index].kept

    def _bytes(self, position: int) -> int:
        """Of a boundary, for the largest micro-batch."""
        specs = self._relay.stash.boundaries[position]
        return max(self._sizes) * sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)

    def _activations(self, layer: Layer, needs_gradient: bool) -> Activations:
        inputs = self._relay.stash.boundaries[layer.position]
        key = (self._relay.bank.kind(layer), inputs, needs_gradient)
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
    device = runs_on(pool, layer)
    module = pool.build_module(layer, device=device).to(dtype).train()
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros(parameter.shape, dtype=torch.float32, device=device).to(parameter.dtype)
    leaves = [t.requires_grad_(needs_gradient and learns(t)) for t in example(inputs, device, samples)]
    live = LiveBytes()
    with torch.random.fork_rng(devices=[]), live:
        outputs = [tensor for tensor in as_tuple(module(*leaves)) if tensor.requires_grad]
    kept, forward = live.now, live.peak
    gradients = [torch.zeros_like(tensor) for tensor in outputs]
    with live:
        if outputs:
            torch.autograd.backward(outputs, gradients)
    return Activations(kept, forward, live.peak)


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make while they live.

    Attributes:
        now: bytes that are alive.
        peak: the most there were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what is new in its result."""
        given = {_identity(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _identity(tensor) not in self._known | given:
                storage = tensor.untyped_storage()
                self._known.add(_identity(tensor))
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._over, _identity(tensor), storage.nbytes())
        return result

    def _over(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now -= size


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
