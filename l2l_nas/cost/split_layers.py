"""Layers divided among ranks, for predictions: one rank's part of a pool, and what it sums with the others.

No other rank is there: parts are built on meta, and what they would sum is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from l2l_nas.eps.partition import DividedPool
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.relay.measure import dry_run_in
from l2l_nas.space.candidate import Specs
from l2l_nas.space.pool import Layer, LayerPool


class Sums(NamedTuple):
    """Sums over the ranks that share a layer, of a micro-batch."""

    forward: tuple[int, ...] = ()  # bytes of each
    backward: tuple[int, ...] = ()  # without those of the forward, where that is run again


@dataclass
class _Counter:
    """A `Reducer` of ranks that are not there."""

    size: int
    rank: int = 0
    sizes: list[int] = field(default_factory=list)  # bytes of each sum

    def sum(self, tensor: Tensor) -> None:
        """Count it."""
        self.sizes.append(tensor.nbytes)

    maximum = sum

    def take(self) -> tuple[int, ...]:
        """What was counted since the last call."""
        found, self.sizes = tuple(self.sizes), []
        return found


class PaperSplit:
    """A pool divided among ranks of which no other is there.

    Args:
        whole: as one process has it.
        ranks: that share each layer.
        gather_logits: see `SplitPool`.

    Attributes:
        ranks: how many share each layer.
        pool: its parts are those of the first rank, which are no smaller than those of the others.
        left_whole: keys of layers that are not divided.

    Raises:
        SettingError: sizes that the ranks do not divide; it names the layer and the size.
    """

    def __init__(self, whole: LayerPool, ranks: int, *, gather_logits: bool | None = True) -> None:
        from l2l_nas.parallel.collectives import Ranks, Unjoined  # with torch.distributed, which others need not have
        from l2l_nas.parallel.split_pool import SplitPool

        class CountedRanks(Ranks):
            """Ranks that sum on meta too, for the sake of the count."""

            __slots__ = ()

            def is_idle(self, tensor: Tensor) -> bool:
                return self.size == 1

        self.ranks = ranks
        self._counter = _Counter(ranks)
        try:
            split = SplitPool(whole, Ranks(Unjoined(0, ranks)), gather_logits=gather_logits)
            self._counted = SplitPool(whole, CountedRanks(self._counter), gather_logits=gather_logits).parts
        except SpaceError as error:
            raise SettingError(f"parallel.tensor={ranks}: {error}") from None
        self.pool: DividedPool = split
        self.left_whole = split.left_whole
        self._known: dict[object, Sums] = {}

    def sums(
        self, layer: Layer, inputs: Specs, samples: int, *, dtype: torch.dtype, needs_gradient: bool = True
    ) -> Sums:
        """What a micro-batch of a layer sums; arguments as `layer_needs`'s."""
        key = (layer.position, layer.candidate.name, inputs, samples, dtype, needs_gradient)
        if key not in self._known:
            place = self._counted.positions[layer.position].name, layer.candidate.name
            [own] = [
                one
                for one in self._counted.layers
                if (self._counted.positions[one.position].name, one.candidate.name) == place
            ]
            from l2l_nas.parallel.layer_parts import Gathered

            run = dry_run_in(self._counted, own, inputs, samples, dtype, needs_gradient=needs_gradient)
            self._counter.take()  # what building it may have summed
            for part in run.module.modules():
                if isinstance(part, Gathered):  # which sums nothing on meta
                    part.register_forward_hook(lambda _, inputs, output: self._counter.sum(output))
            with torch.enable_grad():
                run.forward()
                forward = self._counter.take()
                run.backward()
            self._known[key] = Sums(forward, self._counter.take())
        return self._known[key]
