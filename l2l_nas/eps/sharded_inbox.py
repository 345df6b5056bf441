"""Gradients of several ranks: summed over them as they arrive, so that each has the sum of its part."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from l2l_nas.eps.cut import Cut, Cuts
from l2l_nas.eps.exchange import Channel, Mesh
from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.inbox import GradientInbox, QueuedGradient
from l2l_nas.eps.layout import Layout
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules
from l2l_nas.eps.partition import DividedPool
from l2l_nas.eps.sums import num_blocks, squares_of, tree_sum
from l2l_nas.eps.wire import Allocate
from l2l_nas.errors import RankError
from l2l_nas.space.pool import LayerPool


def labels_differ(labels: Tensor, own: Tensor) -> bool:
    """Whether a rank has another label than this one; one that is not there (`PaperRanks`) has none."""
    return bool(((labels != own) & (labels != 0)).any())


class Rows:
    """Memory that every exchange of a kind uses again."""

    def __init__(self) -> None:
        self._memory = torch.zeros(0, dtype=torch.uint8)

    def of(self, count: int, num_bytes: int) -> Tensor:
        """Bytes of shape [count, num_bytes], which may hold anything."""
        if self._memory.numel() < count * num_bytes:
            self._memory = torch.zeros(count * num_bytes, dtype=torch.uint8)
        return self._memory[: count * num_bytes].view(count, num_bytes)


class ShardedInbox(GradientInbox):
    """Gradients that all ranks form, summed over them as they arrive: a rank gets those of its part.

    [Note: norms of divided layers] Where ranks share layers, a parameter that every rank has is counted by the first
    one alone. A rank adds the squares of a state that it counts, and all ranks get the sums of all: so they clip, skip
    and refuse alike, and what every rank has stays the same to the bit. Beside the sum stands whose gradient it was if
    that is not finite.

    Every rank adds the same states in the same order. With a sum go notes, on the same channel: which parameters got a
    gradient on any rank, the sums of squares of all parts, and whose gradient it was if a sum is not finite. So no
    update and no check waits for another rank.
    """

    def __init__(
        self, pool: LayerPool, rules: PoolRules, cuts: Cuts, mesh: Mesh, *, divided: DividedPool | None = None
    ) -> None:
        super().__init__(pool, rules)
        self._cuts = cuts
        self._exchange, self._tensor = mesh.data, mesh.tensor
        self._divided = divided
        self._counted: dict[str, Tensor] = {}  # by state, which of its sums of squares this rank counts
        self._received, self._sent = Rows(), Rows()
        self.has_block_norms = True

    def _layout(self, key: str) -> Layout:
        return self._cuts.of(key).parts[self._exchange.rank].layout

    def _rules_of(self, key: str) -> StateRules:
        return self._cuts.of(key).parts[self._exchange.rank].rules

    def add(
        self,
        key: str,
        block: GradientBlock,
        has_grad: Sequence[bool],
        *,
        lr: float,
        step: int,
        stays: bool = False,
        allocate: Allocate | None = None,
    ) -> None:
        """See `GradientInbox.add`; all ranks call it for the same state. `block` is of the whole state."""
        cut, layout = self._cuts.of(key), self._layout(key)
        own = self.allocate(gradient_bytes(layout), allocate)
        received = self._swapped(key, cut, block)
        summed = tree_sum(list(received.view(torch.float32)))  # the upper part of the tree of chunks
        own.views(layout).values.copy_(summed[: layout.parameter_bytes // 4])
        if stays:
            self.give_back([block])
        queued = self.waiting.setdefault(key, QueuedGradient(lr, step))
        if queued.parts:  # the sum is formed now, so that its squares can be exchanged
            self._views(key, queued).values.add_(own.views(layout).values)
            self.give_back([own])
        else:
            queued.parts.append(own)
        self._exchange_notes(key, queued, has_grad, received)

    def _swapped(self, key: str, cut: Cut, block: GradientBlock) -> Tensor:
        """What all ranks have of this rank's part of a state's gradients: bytes [rank, part_bytes]."""
        size = self._exchange.size
        whole = block.memory[: cut.rules.layout.parameter_bytes]
        received = self._received.of(size, cut.part_bytes)
        if cut.is_whole:
            own = self._sent.of(1, len(whole))[0]  # `whole` may lie on the device
            own.copy_(whole)
            self._exchange.all_gather(own, received, Channel.SEND, of=key)
        else:
            rows = self._sent.of(size, cut.part_bytes)
            cut.take_apart(whole, rows)
            self._exchange.all_to_all(rows, received, Channel.SEND, of=key)
        return received

    def _exchange_notes(self, key: str, queued: QueuedGradient, has_grad: Sequence[bool], received: Tensor) -> None:
        """Have what ranks tell each other of a sum, of these rows."""
        cut, rank = self._cuts.of(key), self._exchange.rank
        counts = [part.num_blocks for part in cut.parts]
        squares = squares_of(self._views(key, queued).gradients)
        notes = torch.zeros(len(has_grad) + max(counts) + 2, dtype=torch.float64)
        notes[-2] = zlib.crc32(key.encode())
        notes[: len(has_grad)] = torch.tensor(has_grad)
        notes[len(has_grad) :][: counts[rank]] = squares
        if not squares.isfinite().all():
            notes[-1] = _only([row + 1 for row in self._not_finite_rows(key, received)])
        all_notes = notes.new_empty(self._exchange.size, len(notes))
        self._exchange.all_gather(notes, all_notes, Channel.SEND, of=key)
        if labels_differ(all_notes[:, -2:-1], notes[-2:-1]):
            raise RankError(
                f"ranks send gradients of different layers at once, this one of '{key}': their passes differ"
            )
        touched = all_notes[:, : len(has_grad)].any(dim=0).tolist()
        before = queued.has_grad or [False] * len(cut.parts[rank].indices)
        queued.has_grad = [old or touched[index] for old, index in zip(before, cut.parts[rank].indices, strict=True)]
        rows = [all_notes[rank]] if cut.is_whole else list(all_notes)
        queued.norms = torch.cat([row[len(has_grad) :][:count] for row, count in zip(rows, counts, strict=False)])
        origin = _only(map(int, all_notes[:, -1].tolist()))
        if self._divided is not None:
            self._share_norms(self._divided, key, queued, origin)
        elif origin:
            queued.is_own = origin == rank + 1 if origin > 0 else None

    def _share_norms(self, divided: DividedPool, key: str, queued: QueuedGradient, origin: int) -> None:
        """See [Note: norms of divided layers].

        Args:
            origin: whose row it was, if the sum is not finite: 1 + a rank; -1 for several; 0 where that is not known.
        """
        assert queued.norms is not None
        if key not in self._counted:
            self._counted[key] = self._counts(divided, key)
        own = math.fsum(queued.norms[self._counted[key]].tolist())  # rounded once, whoever has which of the squares
        every = torch.empty(self._tensor.size, 2, dtype=torch.float64)
        self._tensor.all_gather(torch.tensor([own, origin], dtype=torch.float64), every, Channel.SEND, of=key)
        queued.norms = every[:, 0]
        found = [(rank, number) for rank, number in enumerate(every[:, 1].tolist()) if number]
        if found:
            is_one = len(found) == 1 and found[0][1] > 0
            queued.is_own = found == [(self._tensor.rank, self._exchange.rank + 1)] if is_one else None

    def _counts(self, divided: DividedPool, key: str) -> Tensor:
        cut = self._cuts.of(key)
        return torch.tensor(
            [
                self._tensor.rank == 0 or not divided.is_whole(key, entry.name)
                for part in (cut.parts[:1] if cut.is_whole else cut.parts)
                for entry, (start, stop) in zip(part.layout.parameters, part.ranges, strict=True)
                for _ in range(num_blocks(stop - start))
            ],
            dtype=torch.bool,
        )

    def _not_finite_rows(self, key: str, received: Tensor) -> list[int]:
        parameters = self._layout(key).parameters
        are_finite = [all(entry.view(row).isfinite().all() for entry in parameters) for row in received]
        return [rank for rank, is_finite in enumerate(are_finite) if not is_finite]


def _only(found: Iterable[int]) -> int:
    """The number that all have that are not 0; -1 where these differ, 0 where there are none."""
    numbers = set(found) - {0}
    return -1 if len(numbers) > 1 else next(iter(numbers), 0)
