"""Tensor parallelism as Megatron-LM does it: what a device computes and sums, where products become narrower.

[Note: narrower products] A device forms a product in tiles, as many at a time as it has processors; the last of these
waves is as long as a full one, and so is a tile at an edge. A product that is divided among devices has fewer tiles, so
that more of its time is lost. It counts here as the operations of all tiles of whole waves. The shape of a tile is the
largest of those that the maker names, for every product; none is cut along its sum. (NVIDIA, Matrix Multiplication
Background User's Guide: tile and wave quantization.)

[Note: what is not divided] Of the 34 bytes a token and unit of width that a layer keeps, 10 are of norms, dropout and
residuals between its products, of which every device has all (arXiv 2205.05198, section 4.2.1). Sequence parallelism
divides them, too: each sum becomes a reduce-scatter and an all-gather of the same bytes in all, and the backward
gathers the inputs of the first products once more (section 4.2.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.machines.sharing import EqualVisits, Parallelism, StepWork, shared_step_s
from benchmarks.machines.transformers import BETWEEN, KERNELS, Transformer
from l2l_nas.cost.hardware import Hardware
from l2l_nas.relay.measure import Work

TILE = (256, 128)
_WHOLE = 10  # of the bytes a token and unit of width, those of which each device has all
_HEAD = 96  # width of a head


class Product(NamedTuple):
    """A product of matrices [rows, inner] and [inner, columns], so many times."""

    rows: int
    inner: int
    columns: int
    times: int = 1

    @property
    def flops(self) -> float:
        """Its operations."""
        return 2.0 * self.times * self.rows * self.inner * self.columns

    def backward(self) -> tuple[Product, Product]:
        """Those of both gradients."""
        rows, inner, columns, times = self
        return Product(rows, columns, inner, times), Product(inner, rows, columns, times)

    def in_waves(self, processors: int) -> float:
        """Operations of all tiles of whole waves; see [Note: narrower products]."""
        high, wide = TILE
        tiles = self.times * math.ceil(self.rows / high) * math.ceil(self.columns / wide)
        return 2.0 * math.ceil(tiles / processors) * processors * high * wide * self.inner


@dataclass(frozen=True)
class TensorParallel:
    """A model whose layers so many devices share, each layer run again in the backward.

    Args:
        tokens: of a micro-batch of the group.
        processors: of a device.
        by_sequence: whether what lies between products is divided, too.
    """

    model: Transformer
    devices: int
    tokens: int
    processors: int
    by_sequence: bool = False

    @property
    def flops(self) -> float:
        """Operations of a step, of all devices: forward, the same again, and twice as many backward."""
        passes = 4 * self.model.layers * sum(one.flops for one in self.layer_products())
        return self.devices * (passes + 3 * sum(one.flops for one in self._output()))

    def step_s(self, hardware: Hardware, ways: Parallelism) -> float:
        """A step of one micro-batch; `ways.tensor` is the number of devices."""
        model, sums_bytes = self.model, 2.0 * self.tokens * self.model.hidden
        between = 2.0 * self._between * self.tokens * model.hidden
        forward = Work(self._spent(self.layer_products()), between, KERNELS)
        backward = Work(self._spent(_gradients(self.layer_products())), 2 * between, KERNELS)
        # a sum is two exchanges if values are divided by tokens; then the backward has another half of two sums
        again = 2 if self.by_sequence else 1
        extra = 1 if self.by_sequence else 0
        output = Work(self._spent([*self._output(), *_gradients(self._output())]))
        step = StepWork(
            [
                EqualVisits(forward, 2 * sums_bytes, 2 * model.layers, is_part=True, sums=2 * again),
                EqualVisits(backward, (2 + extra) * sums_bytes, model.layers, is_part=True, sums=2 * again + 2 * extra),
                EqualVisits(output, is_part=True),
            ],
            model.num_parameters,
            2.0 * model.num_parameters,
        )
        return shared_step_s(step, hardware, ways, precision="fp16")

    @property
    def _between(self) -> float:
        """Bytes a token and unit of width that a device writes between products; see [Note: what is not divided]."""
        divided = (BETWEEN - _WHOLE) / self.devices
        return divided + (_WHOLE / self.devices if self.by_sequence else _WHOLE)

    def _spent(self, products: list[Product]) -> float:
        return sum(one.in_waves(self.processors) for one in products)

    def layer_products(self) -> list[Product]:
        """Of a device, in a forward: queries, keys and values; attention; its output; the network behind it."""
        hidden, tokens, sequence = self.model.hidden, self.tokens, self.model.sequence
        own = hidden // self.devices
        heads = tokens // sequence * own // _HEAD
        return [
            Product(tokens, hidden, 3 * own),
            Product(sequence, _HEAD, sequence, heads),
            Product(sequence, sequence, _HEAD, heads),
            Product(tokens, own, hidden),
            Product(tokens, hidden, 4 * own),
            Product(tokens, 4 * own, hidden),
        ]

    def _output(self) -> list[Product]:
        return [Product(self.tokens, self.model.hidden, self.model.vocabulary // self.devices)]


def _gradients(products: list[Product]) -> list[Product]:
    def both() -> Iterator[Product]:
        for one in products:
            yield from one.backward()

    return list(both())
