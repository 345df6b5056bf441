"""How much of a network's work its layers are, and passes of several networks that compute nothing twice."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from l2l_nas.cost.flops import Flops
from l2l_nas.relay.population import prefixes
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes


class ForwardWork:
    """Operations of forward passes of one sample, of which a layer without any has one: it takes time, too."""

    def __init__(self, pool: LayerPool) -> None:
        self._pool = pool
        self._flops = Flops(pool, check_shapes(pool))

    def of_layer(self, layer: Layer) -> int:
        """Of one layer at its position."""
        return 1 + self._flops.of_layer(layer)

    def of_network(self, architecture: Architecture) -> int:
        """Of a network by itself."""
        return sum(map(self.of_layer, self._pool.path(architecture)))

    def of_pass(self, architectures: Sequence[Architecture]) -> int:
        """Of one pass through several networks; see `relay/population.py`."""
        tree = prefixes(self._pool, [self._pool.path(one) for one in architectures])
        return sum(len(visits) * self.of_layer(layer) for layer, visits in zip(tree.layers, tree.visits, strict=True))

    def passes(self, architectures: Sequence[Architecture]) -> float:
        """The same in passes of one of these networks, of mean size; 0 without networks."""
        if not architectures:
            return 0.0
        return self.of_pass(architectures) / statistics.fmean(map(self.of_network, architectures))
