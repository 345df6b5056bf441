"""What a training step learns from: the micro-batches of a mini-batch, or a rank's part of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_methods
from l2l_nas.contents.tensors import checksum_of
from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.eps.sums import Chunks, cut_chunks
from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import (
    Batch,
    Objective,
    Targets,
    as_batch,
    as_targets,
    checked_lengths,
    checked_sizes,
    count_of,
    cut_targets,
    is_rate,
    samples_of,
)
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import refuse_lone_sample


def shares(sizes: Sequence[int]) -> tuple[float, ...]:
    """Which part of a mini-batch's samples each micro-batch has: the weights of its auxiliary losses."""
    return tuple(size / sum(sizes) for size in sizes)


@dataclass(frozen=True)
class StepShare:
    """The micro-batches of a mini-batch that this rank has.

    Args:
        exchange: with the other ranks.
        sizes: of all micro-batches of the mini-batch.
        every: the chunks of each rank.
    """

    exchange: Exchange
    sizes: tuple[int, ...]
    every: tuple[Chunks, ...]

    @classmethod
    def of(cls, exchange: Exchange, sizes: tuple[int, ...], chunks: int) -> StepShare:
        count, size = len(sizes), exchange.size
        return cls(exchange, sizes, tuple(cut_chunks(count, chunks, rank=rank, size=size) for rank in range(size)))

    @property
    def chunks(self) -> Chunks:
        return self.every[self.exchange.rank]

    @property
    def micro_batches(self) -> range:
        """What this rank computes: its own, or the first one, which counts nothing, so that it keeps others company."""
        return self.chunks.micro_batches or range(1)

    @property
    def rows(self) -> slice:
        """Of which samples these are."""
        return samples_of(self.sizes, self.micro_batches)

    @property
    def most_sizes(self) -> tuple[int, ...]:
        """As many as any rank has, by which all plan alike."""
        return (max(self.sizes),) * max(len(chunks.micro_batches) or 1 for chunks in self.every)

    def counts(self, own: Sequence[float]) -> list[float]:
        """The counts of all micro-batches, of those of each rank; all ranks call it."""
        row = torch.zeros(len(self.most_sizes), dtype=torch.float64)
        row[: len(own)] = torch.tensor([float(count) for count in own], dtype=torch.float64)
        rows = row.new_empty(self.exchange.size, len(row))
        self.exchange.all_gather(row, rows, Channel.STEP)
        pairs = zip(rows.tolist(), self.every, strict=True)
        return [count for counts, chunks in pairs for count in counts[: len(chunks.micro_batches)]]


@dataclass(frozen=True)
class MiniBatch:
    """What a step learns from: inputs, and targets by micro-batch."""

    inputs: Batch
    targets: Sequence[Targets]
    sizes: tuple[int, ...]
    counts: Sequence[float]  # of the targets of each micro-batch, or what these weigh
    objective: Objective
    shares: tuple[float, ...]  # of each micro-batch, which part of the samples it has
    first: int = 0  # the number of its first micro-batch among those of all ranks
    lengths: tuple[int, ...] | None = None  # of the texts of each micro-batch, where they are shorter than the inputs

    def micro_batches(self) -> Iterator[Batch]:
        """The inputs of each micro-batch, as long as its texts."""
        parts = zip(*(tensor.split(list(self.sizes)) for tensor in self.inputs), strict=True)
        if self.lengths is None:
            return parts
        return (tuple(tensor[:, :n] for tensor in part) for part, n in zip(parts, self.lengths, strict=True))

    def part(self, micro_batches: range) -> MiniBatch:
        """Those micro-batches alone; the count and the shares stay those of all."""
        first, last = micro_batches.start, micro_batches.stop
        rows = samples_of(self.sizes, micro_batches)
        return replace(
            self,
            inputs=tuple(tensor[rows] for tensor in self.inputs),
            targets=self.targets[first:last],
            sizes=self.sizes[first:last],
            shares=self.shares[first:last],
            first=self.first + first,
            lengths=None if self.lengths is None else self.lengths[first:last],
        )

    @classmethod
    def of(
        cls,
        pool: LayerPool,
        architecture: Architecture,
        inputs: Batch,
        targets: Targets,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
        share: StepShare | None = None,
        lengths: Sequence[int] | None = None,
    ) -> MiniBatch:
        """Check what a step is called with, and cut inputs and targets.

        Args:
            share: what of the mini-batch they are; None: all of it.
            lengths: see `Executor.train_step`.
        """
        if not is_rate(lr):
            raise SettingError(f"lr must be a number of at least 0 that float32 holds, got {lr!r}")
        check_count("step", step)
        wanted = "an objective with loss and count, such as a task"
        check_methods("objective", objective, ("loss", "count"), wanted=wanted)
        inputs, targets = as_batch(inputs), as_targets(targets)
        others = (targets,) if isinstance(targets, Tensor) else targets
        sizes = checked_sizes(pool.inputs, inputs, micro_batch, *others)
        if lengths is not None:
            lengths = checked_lengths(pool, lengths, len(sizes), others)
        parts = cut_targets(targets, sizes)
        counts = [count_of(objective, part) for part in parts]
        first, whole = 0, sizes
        if share is not None:
            first, whole = share.micro_batches.start, share.sizes
            if sizes != whole[first : share.micro_batches.stop]:
                raise DataError(
                    f"samples: of {sum(whole)} this rank computes {share.rows}, but got inputs of {sum(sizes)}"
                )
        if 1 in sizes:
            refuse_lone_sample(pool, architecture, advice="choose sizes of micro-batches that leave no rest of 1")
        own_shares = shares(whole)[first : first + len(sizes)]
        batch = cls(inputs, parts, sizes, counts, objective, own_shares, first, lengths)
        return batch if share is not None else batch.counted(counts)

    def counted(self, counts: Sequence[float]) -> MiniBatch:
        """The same, with the counts of all micro-batches."""
        if not sum(counts) > 0:
            raise DataError("a mini-batch has no targets to learn from")
        return replace(self, counts=counts)

    @property
    def count(self) -> float:
        """Of all targets, or what they weigh."""
        return sum(self.counts)

    @property
    def checksum(self) -> int:
        """Of inputs and targets."""
        targets = [part if isinstance(part, tuple) else (part,) for part in self.targets]
        return checksum_of((*self.inputs, *(tensor for part in targets for tensor in part)))
