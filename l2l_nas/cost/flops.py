"""Floating-point operations of a forward pass, counted on meta tensors if they tell: then nothing is computed."""

from __future__ import annotations

from torch.utils.flop_counter import FlopCounterMode

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.dry_run import BATCH
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import Shapes, dry_run_of


class Flops:
    """The operations of one sample's forward pass in evaluation mode.

    Counted as `torch.utils.flop_counter` counts: matrix products, convolutions and attention, a multiplication and an
    addition as two. What works element by element (activations, norms, pooling) is not counted. A layer that is used
    twice counts twice. `shapes` are those of the pool, as `check_shapes` gives them.
    """

    def __init__(self, pool: LayerPool, shapes: Shapes) -> None:
        self._pool = pool
        self._shapes = shapes
        self._known: dict[object, int] = {}

    def __call__(self, architecture: Architecture) -> float:
        """Of an architecture."""
        return float(sum(map(self.of_layer, self._pool.path(architecture))))

    def of_layer(self, layer: Layer) -> int:
        """Of one layer at its position; counted once for each kind of layer and input."""
        if layer.candidate.is_skip:
            return 0
        inputs = self._shapes.takes[layer.position]
        key = (layer.candidate.kind, inputs)
        if key not in self._known:
            counter = FlopCounterMode(display=False)
            dry_run_of(self._pool, layer, inputs).evaluate(counter)
            self._known[key] = counter.get_total_flops() // BATCH
        return self._known[key]
