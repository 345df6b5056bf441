"""The losses of a training step: added up on the device, read once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.eps.sums import tree_sum
from l2l_nas.errors import NonFiniteError
from l2l_nas.space.pool import Layer


@dataclass(frozen=True)
class Losses:
    """The losses of a step, on the host."""

    task: float
    auxiliary: float  # the sum of all others
    bad: tuple[str | None, ...]  # of those that are not finite, the layer that added it; None for the task's
    is_own: bool | None = None  # whether these came from this rank alone, or from another one; see `NonFiniteError`

    def require_finite(self, step: int) -> None:
        """Refuse a step whose losses are not finite; of an auxiliary loss the error names the layer."""
        if self.bad:
            what = "auxiliary loss" if self.bad[0] else "loss"
            raise NonFiniteError(what, layer=self.bad[0], step=step, is_own=self.is_own)


@dataclass
class LossSums:
    """The losses of a step so far, on the device.

    Attributes:
        chunks: how many there are; see [Note: chunks] in `eps/sums.py`.
        sums: by chunk and place of a layer; the task's has the place None. Of micro-batches, each divided by the count
            of all targets; auxiliary ones times the share of their micro-batch.
    """

    chunks: int = 1
    sums: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def add_task(self, loss: Tensor, chunk: int = 0) -> None:
        self._add((chunk, None), loss.detach())

    def add_auxiliary(self, place: int, losses: Sequence[Tensor], share: float, chunk: int = 0) -> None:
        for loss in losses:
            self._add((chunk, place), loss.detach() * share)

    def _add(self, key: tuple[int, int | None], loss: Tensor) -> None:
        self.sums[key] = self.sums[key] + loss if key in self.sums else loss

    def read(self, layers: Sequence[Layer], exchange: Exchange | None = None) -> Losses:
        """Copy all of them to the host at once; with other ranks' losses, which all ranks read at the same time."""
        is_own = None
        if exchange is not None and exchange.size > 1:
            values, bad_ranks = self._gathered(len(layers), exchange)
            is_own = bad_ranks == [exchange.rank] if len(bad_ranks) == 1 else None
        elif self.chunks == 1 and len(self.sums) == 1:
            values = {key[1]: loss.item() for key, loss in self.sums.items()}
        else:
            values = self._added(self._on_host(), self.chunks)
        bad = tuple(
            None if place is None else layers[place].key for place, value in values.items() if not math.isfinite(value)
        )
        task = values.pop(None, 0.0)
        return Losses(task, sum(values.values()), bad, is_own)

    def _on_host(self) -> dict[tuple[int, int | None], Tensor]:
        if not self.sums:
            return {}
        copied = torch.stack([loss.reshape(()) for loss in self.sums.values()]).cpu()
        return dict(zip(self.sums, copied, strict=True))

    @staticmethod
    def _added(known: Mapping[tuple[int, int | None], Tensor], chunks: int) -> dict[int | None, float]:
        """By place, the sum over chunks, by a tree."""
        zero = torch.zeros((), dtype=next(iter(known.values())).dtype if known else torch.float32)
        places = dict.fromkeys((None, *(place for _, place in known)))
        return {place: tree_sum([known.get((n, place), zero) for n in range(chunks)]).item() for place in places}

    def _gathered(self, depth: int, exchange: Exchange) -> tuple[dict[int | None, float], list[int]]:
        """The losses of all ranks' chunks, by place, and the ranks with some that are not finite."""
        own = torch.zeros(2, self.chunks, depth + 1, dtype=torch.float64)  # 1 or 2 where there is one, and the loss
        for (chunk, place), loss in self._on_host().items():
            kind = 2.0 if loss.dtype == torch.float64 else 1.0
            own[:, chunk, 0 if place is None else place + 1] = torch.tensor([kind, float(loss)], dtype=torch.float64)
        every = own.new_empty(exchange.size, *own.shape)
        exchange.all_gather(own, every, Channel.STEP)
        bad_ranks = (~every.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        there, losses = every.transpose(0, 1).flatten(1, 2)  # [all chunks, places], the task's first
        dtype = torch.float64 if (there == 2).any() else torch.float32
        known = {
            (chunk, place - 1 if place else None): losses[chunk, place].to(dtype)
            for chunk, place in there.nonzero().tolist()
        }
        return self._added(known, exchange.size * self.chunks), bad_ranks
