"""Which samples each rank loads.

In training that is the micro-batches that it computes. An evaluation is cut likewise, and then all ranks have the
outputs of all: what comes of a micro-batch does not depend on the others, so what is put together in order is what one
process has, to the bit, and so is all that is made of it: metrics and error bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.eps.agreement import all_gather_alike, all_gather_bytes
from l2l_nas.eps.exchange import Exchange
from l2l_nas.eps.sums import cut_chunks
from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Reduce, cut_sizes, each, samples_of
from l2l_nas.training.data import Batches
from l2l_nas.training.samples import SCORING, Loaded, Samples


@dataclass(frozen=True)
class TrainingShare:
    """This rank's part of each mini-batch.

    Args:
        batches: of a part that gives each sample by itself (`Samples.is_by_row`).
        own: which samples of a mini-batch of so many this rank computes.
    """

    batches: Batches
    own: Callable[[int], slice]

    def ahead(self, start: int, steps: int) -> Iterator[Loaded]:
        """See `Batches.ahead`."""
        wanted = map(self.batches.wanted, range(start, start + steps))
        return self.batches.part.batches((rows[self.own(len(rows))], key) for rows, key in wanted)

    def samples(self, step: int) -> Tensor:
        """The numbers of all samples of a mini-batch."""
        return self.batches.wanted(step)[0]


class EvaluationShare:
    """This rank's part of each chunk of samples. All ranks make the same calls.

    Args:
        exchange: with the other ranks.
        split: what is evaluated.
        micro_batch: samples at a time.
    """

    def __init__(self, exchange: Exchange, split: Samples, micro_batch: int) -> None:
        self._exchange, self._split, self._micro_batch = exchange, split, micro_batch
        self._problem = ""
        self._figures: tuple[tuple[int, ...], ...] = ((1,),)  # shapes of what was made of a sample

    def chunks(self, size: int, *, is_whole: bool = False) -> Iterator[Loaded]:
        """This rank's samples of each chunk of so many; where it has none, those of the first micro-batch.

        Args:
            is_whole: all samples on each rank.

        Raises:
            DataError: on all ranks, where samples of one could not be read.
        """
        count = len(self._split)
        chunks = [torch.arange(start, min(start + size, count)) for start in range(0, count, size)]
        sizes = [cut_sizes(len(chunk), self._micro_batch) for chunk in chunks]
        own = [slice(None) if is_whole else samples_of(one, self.own(one)) for one in sizes]
        is_apart = self._split.is_by_row and not is_whole
        wanted = (chunk[rows] if is_apart else chunk for chunk, rows in zip(chunks, own, strict=True))
        loading = self._split.batches((rows, SCORING) for rows in wanted)
        for rows in own:
            loaded: Loaded = (), ()
            try:
                loaded = next(loading)
            except DataError as error:
                self._problem = str(error)
            self._refuse()
            yield loaded if is_apart else rows_of(loaded, rows)

    def guarded(self, reduce: Reduce) -> Reduce:
        """What a task makes of outputs; where it raises on one rank, `joined` raises on all."""

        def call(number: int, outputs: Batch) -> Batch:
            if not self._problem:
                try:
                    found = reduce(number, outputs)
                    self._figures = tuple(tuple(tensor.shape[1:]) for tensor in found)
                    return found
                except DataError as error:
                    self._problem = str(error)
            return tuple(outputs[0].new_zeros(len(outputs[0]), *shape) for shape in self._figures)

        return call

    def own(self, sizes: Sequence[int]) -> range:
        """Which of these micro-batches this rank computes: its own, or the first one to keep others company."""
        return micro_batches_of(sizes, self._exchange.rank, self._exchange.size) or range(1)

    def joined(self, sizes: Sequence[int], batches: Sequence[Batch]) -> list[Batch]:
        """What all ranks have of samples, in the order of these.

        Args:
            sizes: of all micro-batches.
            batches: of this rank's samples, tensors of each.

        Raises:
            DataError: on all ranks, where the task raised on one.
        """
        self._refuse()
        size, rank = self._exchange.size, self._exchange.rank
        lengths = [sum(sizes[number] for number in micro_batches_of(sizes, other, size)) for other in range(size)]

        def join(own: Tensor) -> Tensor:
            row = own.new_zeros(max(lengths), *own.shape[1:])
            row[: lengths[rank]] = own[: lengths[rank]]
            every = all_gather_alike(self._exchange, row)
            return torch.cat([rows[:length] for rows, length in zip(every, lengths, strict=True)])

        return [tuple(map(join, batch)) for batch in batches]

    def _refuse(self) -> None:
        problems = all_gather_bytes(self._exchange, self._problem.encode())
        self._problem = ""
        for problem in problems:
            if problem:
                raise DataError(problem.decode())


def micro_batches_of(sizes: Sequence[int], rank: int, size: int) -> range:
    """Which of these micro-batches a rank has; none, where there are fewer than ranks."""
    return cut_chunks(len(sizes), size, rank=rank, size=size).micro_batches


def rows_of(loaded: Loaded, rows: slice | Tensor) -> Loaded:
    """Some samples of a batch."""
    inputs, targets = loaded
    return tuple(tensor[rows] for tensor in inputs), each(targets, lambda tensor: tensor[rows])
