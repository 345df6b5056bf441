"""Floating-point operations of a forward pass, counted on meta tensors: nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import Specs

# some layers squeeze or normalise over the batch and would treat one sample specially
_BATCH = 2


class Flops:
    """The operations of one sample's forward pass in evaluation mode.

    Counted as `torch.utils.flop_counter` counts: matrix products, convolutions and attention, a multiplication and an
    addition as two. What works element by element (activations, norms, pooling) is not counted. A layer that is used
    twice counts twice.

    Args:
        pool: whose layers they are.
        boundaries: what each position takes, as `check_shapes` gives it.
    """

    def __init__(self, pool: LayerPool, boundaries: Sequence[Specs]) -> None:
        self._pool = pool
        self._boundaries = boundaries
        self._known: dict[object, int] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Of an architecture."""
        return float(sum(map(self.of_layer, self._pool.path(architecture))))

    def of_layer(self, layer: Layer) -> int:
        """Of one layer at its position; counted once for each kind of layer and input."""
        inputs = self._boundaries[layer.position]
        key = (layer.candidate.kind, inputs)
        if key not in self._known:
            module = self._pool.build_module(layer, device="meta").eval()
            batch = [torch.empty(_BATCH, *spec.shape, dtype=spec.dtype, device="meta") for spec in inputs]
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                module(*batch)
            self._known[key] = counter.get_total_flops() // _BATCH
        return self._known[key]
