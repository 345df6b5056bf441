"""What a layer asks of a device, by a dry run of each kind: memory beside its slot, and operations.

Storages are counted while they live, in a forward and a backward of one micro-batch. On meta, kernels may make more
inside (an LSTM on a CPU keeps gates) or other things (attention goes by its plain formula).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SpaceError, what_raised
from l2l_nas.relay.slots import mixed_dtypes
from l2l_nas.space.build import named_tensors
from l2l_nas.space.candidate import Specs
from l2l_nas.space.contents import storage_of
from l2l_nas.space.dry_run import DryRun
from l2l_nas.space.operations import LiveBytes, OperationLog, tensors_in
from l2l_nas.space.pool import Layer, LayerPool, PerPool
from l2l_nas.space.shapes import dry_run_of


@dataclass(frozen=True)
class Work:
    """What a visit of a layer asks of the device.

    Args:
        flops: of matrix products, convolutions and attention.
        bytes: that all other operations read and write.
        kernels: operations, each of which is launched.
    """

    flops: float = 0.0
    bytes: float = 0.0
    kernels: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.kernels + other.kernels)


@dataclass(frozen=True)
class LayerNeeds:
    """What one micro-batch of a layer asks for. Bytes are those of activations; weights and gradients have slots.

    Args:
        kept: bytes that wait for its backward: what autograd keeps, its inputs among it, and its outputs.
        alive: bytes that it has made and that live between its forward and its backward: without its inputs.
        forward_peak: the most bytes in its forward.
        peak: the most bytes from its forward to the end of its backward.
        forward, backward: operations; those of the backward without the forward run again.
    """

    kept: int
    alive: int
    forward_peak: int
    peak: int
    forward: Work
    backward: Work


_NEEDS: PerPool[dict[object, LayerNeeds]] = PerPool()


def layer_needs(
    pool: LayerPool, layer: Layer, inputs: Specs, samples: int, *, dtype: torch.dtype, needs_gradient: bool = True
) -> LayerNeeds:
    """What a micro-batch of a layer needs; remembered, of each kind of layer, for as long as the pool lives.

    Args:
        inputs, dtype: of inputs and of weights on the device.
        needs_gradient: whether its inputs get one.

    Raises:
        SpaceError: the layer does not run in this dtype.
    """
    known = _NEEDS.setdefault(pool, {})
    key = (layer.candidate.kind, inputs, samples, dtype, needs_gradient)
    if key not in known:
        known[key] = _layer_needs(pool, layer, inputs, samples, dtype, needs_gradient)
    return known[key]


@torch.enable_grad()
def _layer_needs(
    pool: LayerPool, layer: Layer, inputs: Specs, samples: int, dtype: torch.dtype, needs_gradient: bool
) -> LayerNeeds:
    dry_run = dry_run_in(pool, layer, inputs, samples, dtype, needs_gradient=needs_gradient)
    layout = layout_of(pool, layer.key)
    for parameter in dry_run.module.parameters():
        if parameter.requires_grad:  # as in a slot, so that no backward makes one
            parameter.grad = torch.zeros_like(parameter)
    live, counter = LiveBytes(meta=True), _WorkCounter()
    try:
        outputs = dry_run.forward(live, counter)
    except RuntimeError as error:
        if advice := mixed_dtypes(layout, dtype, error):
            raise SpaceError(
                f"its layer {what_raised(error)}{advice}",
                position=pool.positions[layer.position].name,
                candidate=layer.candidate.name,
            ) from None
        raise
    kept = live.now + live.inputs
    del outputs  # those without a gradient are not kept
    alive, forward_peak, forward, counter.work = live.now, live.peak, counter.work, Work()
    dry_run.backward(live, counter)
    return LayerNeeds(kept, alive, forward_peak, live.peak, forward, counter.work)


def dry_run_in(
    pool: LayerPool, layer: Layer, inputs: Specs, samples: int, dtype: torch.dtype, *, needs_gradient: bool
) -> DryRun:
    """A dry run of a layer whose weights are in the dtype that they have on the device."""
    dry_run = dry_run_of(pool, layer, inputs, samples=samples, needs_gradient=needs_gradient)
    layout = layout_of(pool, layer.key)
    fixed = {entry.name for entry in (*layout.parameters, *layout.buffers) if entry.is_fixed}
    for name, tensor in named_tensors(dry_run.module):
        if tensor.dtype == torch.float32 and name not in fixed:
            tensor.data = tensor.data.to(dtype)
    return dry_run


class _WorkCounter(OperationLog):
    """Adds up what operations ask for; views ask for nothing."""

    work = Work()

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        read, made = tensors_in((args, kwargs)), tensors_in(result)
        storages = set(map(storage_of, read))
        if not func._schema.is_mutable and storages.issuperset(map(storage_of, made)):
            return  # a view
        count = flop_registry.get(func._overloadpacket)
        flops = count(*args, **kwargs, out_val=result) if count is not None else 0
        num_bytes = sum(t.numel() * t.element_size() for t in (*read, *made)) if count is None else 0
        self.work += Work(float(flops), float(num_bytes), 1)
