"""Sums whose bits do not depend on who forms which part of them: over chunks of micro-batches, and of squares.

[Note: chunks] A sum of floats depends on its order. So the micro-batches of a mini-batch are cut into `chunks`, a power
of two, in order and as evenly as they can be. A chunk is summed from its first micro-batch to its last one; the sums of
chunks are added by a binary tree: 0 and 1, 2 and 3, then both of these, and so on. A rank of a world has a whole
subtree, as the size of the world divides the number of chunks, and adds it by itself; the ranks' sums are added by the
rest of the tree. So one, two and four ranks give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from l2l_nas.arguments import check_count
from l2l_nas.errors import SettingError

BLOCK = 1024  # numbers of a parameter whose squares are summed as one


@dataclass(frozen=True)
class Chunks:
    """The chunks of one rank; see [Note: chunks].

    Args:
        bounds: of the chunks of all ranks, where each begins, as a micro-batch of the whole mini-batch; behind them
            where the last one ends.
        first: the number of this rank's first one.
        count: how many it has.
    """

    bounds: tuple[int, ...]
    first: int
    count: int

    @property
    def starts(self) -> tuple[int, ...]:
        """Of this rank's chunks, as `bounds`."""
        return self.bounds[self.first : self.first + self.count + 1]

    @property
    def sizes(self) -> list[int]:
        """How many micro-batches each chunk of all ranks has."""
        return [end - start for start, end in pairwise(self.bounds)]

    @property
    def is_single(self) -> bool:
        """Whether one rank has the one chunk that there is, as if there were none."""
        return len(self.bounds) == 2

    @property
    def micro_batches(self) -> range:
        """Of the mini-batch, those of this rank."""
        return range(self.starts[0], self.starts[-1])

    @property
    def is_idle(self) -> bool:
        """Whether this rank has no micro-batch: it goes the others' way with one that counts nothing."""
        return not self.micro_batches

    def of(self, index: int) -> int:
        """The chunk that a micro-batch of this rank, counted from 0, belongs to."""
        if self.is_idle:
            return 0
        return next(c for c in range(self.count) if self.starts[c + 1] > self.starts[0] + index)

    def ending(self, index: int) -> list[int]:
        """Chunks that end with a micro-batch of this rank, counted from 0; empty ones count to the one before them.

        Empty ones in front of the first micro-batch end with it, before its own.
        """
        end = self.starts[0] + index + 1
        return [c for c in range(self.count) if self.starts[c + 1] == end or (index == 0 and self.starts[c + 1] < end)]

    def is_empty(self, chunk: int) -> bool:
        return self.starts[chunk] == self.starts[chunk + 1]


def cut_chunks(micro_batches: int, chunks: int, *, rank: int = 0, size: int = 1) -> Chunks:
    """The chunks of a rank, of so many micro-batches and chunks in all."""
    share = chunks // size
    return Chunks(tuple(number * micro_batches // chunks for number in range(chunks + 1)), rank * share, share)


def check_chunks(chunks: int, size: int = 1) -> int:
    """Chunks are a power of two that a world of this size divides.

    Raises:
        SettingError: they are not.
    """
    check_count("chunks", chunks, least=1)
    if chunks & (chunks - 1):
        raise SettingError(f"chunks takes a power of two, as their sums are added in pairs; got {chunks}")
    if chunks % size:
        raise SettingError(f"{chunks} chunks cannot be divided among {size} ranks; take {size} or a multiple")
    return chunks


class ChunkTree:
    """Adds the sums of chunks by a binary tree, in place; see [Note: chunks].

    Args:
        count: chunks, a power of two.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._number = 0
        self._is_filled = [False] * (count.bit_length() - 1)  # by level, whether a sum waits there

    def begin(self) -> None:
        """Begin with the first chunk; a step that failed may have left sums."""
        self._number = 0

    def end_chunk(self, values: Sequence[Tensor], partials: Sequence[Sequence[Tensor]], *, is_empty: bool) -> None:
        """Put the sum of a chunk aside; after the last one `values` are the sum of all.

        Args:
            values: the chunk's sums; zeros afterwards, unless it was the last one.
            partials: for each level of the tree, memory for as many; the same at each call.
        """
        level, is_filled = 0, not is_empty
        while self._number >> level & 1:
            if self._is_filled[level]:
                for value, partial in zip(values, partials[level], strict=True):
                    value.add_(partial)
                is_filled = True
            level += 1
        self._number += 1
        if self._number == self._count:
            self._number = 0
            return
        self._is_filled[level] = is_filled
        if is_filled:
            for value, partial in zip(values, partials[level], strict=True):
                partial.copy_(value)
                value.zero_()


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """The sum of parts by a binary tree; there is a power of two of them."""
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def num_blocks(numel: int) -> int:
    """How many blocks so many numbers of a parameter are."""
    return -(-numel // BLOCK)


def squares_of(gradients: Iterable[Tensor]) -> Tensor:
    """Sums of squares, float64, of blocks of `BLOCK` numbers of each tensor; the last block of a tensor may be shorter.

    A tensor that is cut between blocks has those of its parts, to the bit.
    """
    sums = []
    for gradient in gradients:
        flat = gradient.reshape(-1).double()
        padded = flat.new_zeros(num_blocks(flat.numel()), BLOCK)
        padded.view(-1)[: flat.numel()] = flat
        sums.append(padded.square_().sum(1))
    return torch.cat(sums) if sums else torch.zeros(0, dtype=torch.float64)


def norm_of(squares: Iterable[Tensor], factor: float = 1.0) -> Tensor:
    """The norm, float32, of gradients times a factor, from all sums of squares: their sum is rounded once, at its end.

    So neither the order of the sums matters nor who formed them.
    """
    total = math.fsum(number for tensor in squares for number in tensor.tolist())
    return torch.tensor(math.sqrt(total) * factor)
