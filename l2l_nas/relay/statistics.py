"""Running statistics of a step whose chunks are run apart, by several ranks or by one; see [Note: chunks].

[Note: statistics] Each chunk begins with the statistics that the layer was loaded with, r0, and ends with r_c after its
k_c batches. As BatchNorm moves them by R <- (1 - m) R + m x, they are put together in the order of chunks by
R <- r_c + (1 - m)^k_c (R - r0): but for rounding what one pass gives. Without a momentum they are averages over all
batches: there the sums are added. No other buffer can be put together, so that a forward that changes one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2l_nas.eps.layout import Entry, Layout
from l2l_nas.errors import SpaceError

# of what the forward began with, of what chunks ended with, and how often each moved it: what all of them make of it
Combine = Callable[[Tensor, Sequence[Tensor], Sequence[int]], Tensor]


@dataclass
class ChunkStatistics:
    """The buffers of a template in a forward, at the end of each chunk.

    Args:
        module: whose buffers they are.
        layout: where they lie.
    """

    module: nn.Module
    layout: Layout
    entry: Tensor | None = None  # those that the forward began with
    ends: list[Tensor] = field(default_factory=list)

    def begin(self, buffers: Tensor) -> None:
        """A forward begins with these buffers."""
        self.entry, self.ends = buffers.clone(), []

    def end_chunk(self, buffers: Tensor, *, is_empty: bool) -> None:
        """A chunk ends with these; the next one begins with those of the forward's begin, as an empty one ends."""
        assert self.entry is not None
        self.ends.append(self.entry if is_empty else buffers.clone())
        if not is_empty:
            buffers.copy_(self.entry)

    def combined(self, ends: Sequence[Tensor], counts: Sequence[int], where: Mapping[str, str]) -> Tensor:
        """The buffers after all chunks.

        Args:
            ends: of all chunks, of all ranks, in order.
            counts: of micro-batches in each.
            where: position and candidate, for the error.

        Raises:
            SpaceError: another buffer than a running statistic changed.
        """
        assert self.entry is not None
        result, start = self.entry.cpu().clone(), self.entry.cpu()
        norms = {path: part for path, part in self.module.named_modules() if isinstance(part, _BatchNorm)}
        for entry in self.layout.buffers:
            path, _, leaf = entry.name.rpartition(".")
            norm = norms.get(path)
            values = [(entry.view(end), count) for end, count in zip(ends, counts, strict=True) if count]
            first = entry.view(start)
            if norm is None or leaf not in ("running_mean", "running_var", "num_batches_tracked"):
                _refuse_changes(entry, first, [value for value, _ in values], where)
            elif leaf == "num_batches_tracked":
                entry.view(result).copy_(first + sum(value - first for value, _ in values))
            else:
                steps = [self._steps(path, start, end) for end, count in zip(ends, counts, strict=True) if count]
                old = self._tracked(path, start)
                combine = _moved(norm.momentum) if norm.momentum is not None else _averaged(old)
                entry.view(result).copy_(combine(first, [value for value, _ in values], steps))
        return result

    def refuse_changes(self, where: Mapping[str, str]) -> None:
        """Raises SpaceError: a buffer changed that was not taken to change, so that other ranks know nothing of it."""
        assert self.entry is not None
        if not all(torch.equal(end, self.entry) for end in self.ends):
            for entry in self.layout.buffers:
                _refuse_changes(entry, entry.view(self.entry), [entry.view(end) for end in self.ends], where)

    def _tracked(self, path: str, buffers: Tensor) -> int:
        """How many batches a norm has seen."""
        return int(self._entry(path).view(buffers))

    def _entry(self, path: str) -> Entry:
        name = f"{path}.num_batches_tracked".lstrip(".")
        return next(entry for entry in self.layout.buffers if entry.name == name)

    def _steps(self, path: str, start: Tensor, end: Tensor) -> int:
        """How often a chunk moved a norm's statistics."""
        return self._tracked(path, end) - self._tracked(path, start)


def _refuse_changes(entry: Entry, first: Tensor, values: Sequence[Tensor], where: Mapping[str, str]) -> None:
    if not all(torch.equal(value, first) for value in values):
        raise SpaceError(
            f"changes its buffer '{entry.name}' in training. Chunks and ranks can put running statistics of BatchNorm "
            "together, nothing else; train on one rank without chunks, or use BatchNorm",
            **where,
        )


def _moved(momentum: float) -> Combine:
    def combine(first: Tensor, values: Sequence[Tensor], steps: Sequence[int]) -> Tensor:
        result = first
        for value, count in zip(values, steps, strict=True):
            # the first chunk begins with the very statistics of the forward
            result = value if result is first else value + (1 - momentum) ** count * (result - first)
        return result

    return combine


def _averaged(old: int) -> Combine:
    def combine(first: Tensor, values: Sequence[Tensor], steps: Sequence[int]) -> Tensor:
        if len(values) == 1:
            return values[0]
        total = first * old
        for value, count in zip(values, steps, strict=True):
            total = total + (value * (old + count) - first * old)
        return total / (old + sum(steps))

    return combine
