"""Cuts: which part of a state each rank has.

[Note: parts] Each parameter of a state is a row of blocks of `sums.BLOCK` numbers. The blocks of all its parameters
together are dealt out in order, as evenly as they can be: each rank has a range of each parameter, or nothing of it. So
a block has one owner, and sums of squares do not depend on how many ranks there are. A rule that needs whole weights
(`is_elementwise = False`), or stores more than a number for each, has whole parameters: the largest goes first, each to
the rank that has least. A small state is whole on every rank, and all update it alike. So are buffers, counts of
updates, and visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l2l_nas.eps.layout import Entry, Layout, packed
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules
from l2l_nas.eps.sums import BLOCK, num_blocks

SMALL_BYTES = 64 * 1024  # of weights, up to which a state is whole on every rank

Range = tuple[int, int]  # of a parameter's numbers, the first one and the one behind the last


@dataclass(frozen=True)
class RankPart:
    """What a rank has of a state.

    Args:
        indices: of the whole state's parameters, those that it has something of.
        ranges: of each of these.
        rules: how the part is updated. Its layout has the state's buffers; a range is a parameter of one dimension,
            but where it is whole.
    """

    indices: tuple[int, ...]
    ranges: tuple[Range, ...]
    rules: StateRules

    @property
    def layout(self) -> Layout:
        return self.rules.layout

    @property
    def num_blocks(self) -> int:
        """How many sums `squares_of` gives for its gradients."""
        return sum(num_blocks(stop - start) for start, stop in self.ranges)

    def range_of(self, parameter: str) -> Range:
        """Of a parameter, by name; an empty one where it has nothing of it."""
        for entry, within in zip(self.layout.parameters, self.ranges, strict=True):
            if entry.name == parameter:
                return within
        return 0, 0


class Cut:
    """The parts of one state: a `Partition` into ranges of its parameters.

    Args:
        rules: of the whole state.
        size: how many ranks there are.

    Attributes:
        is_whole: whether every rank has all of it.
    """

    def __init__(self, rules: StateRules, size: int) -> None:
        self.rules = rules
        self.size = size
        self.is_whole = size == 1 or rules.layout.parameter_bytes <= SMALL_BYTES
        if self.is_whole:
            whole = tuple((0, entry.numel) for entry in rules.layout.parameters)
            self.parts: tuple[RankPart, ...] = (RankPart(tuple(range(len(whole))), whole, rules),) * size
        else:
            ranges = _even_ranges(rules.layout, size) if _is_elementwise(rules) else _whole_ranges(rules.layout, size)
            self.parts = tuple(_part(rules, row) for row in ranges)
        self._wires: dict[torch.dtype, Wires] = {}
        # of the largest part; a collective takes the same from all ranks
        self.part_bytes = max(part.layout.parameter_bytes for part in self.parts)

    def layout(self, rank: int) -> Layout:
        """See `Partition`."""
        return self.parts[rank].layout

    @property
    def whole_layout(self) -> Layout:
        """See `Partition`."""
        return self.rules.layout

    def is_replicated(self, name: str) -> bool:
        """See `Partition`."""
        return self.is_whole or all(entry.name != name for entry in self.rules.layout.parameters)

    def take(self, name: str, tensor: Tensor, rank: int) -> Tensor | None:
        """See `Partition`. A moment may have another shape than its weight, then its parameter has one owner."""
        if self.is_replicated(name):
            return tensor
        start, stop = self.parts[rank].range_of(name)
        if start == stop:
            return None
        numel = next(entry.numel for entry in self.rules.layout.parameters if entry.name == name)
        return tensor if (start, stop) == (0, numel) else tensor.reshape(-1)[start:stop]

    def join(self, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        """See `Partition`; ranges follow each other in the order of ranks."""
        return torch.cat([part.reshape(-1) for part in parts if part is not None])

    def wires(self, dtype: torch.dtype) -> Wires:
        """How the weights of all parts cross the link."""
        if dtype not in self._wires:
            self._wires[dtype] = self._make_wires(dtype)
        return self._wires[dtype]

    def _make_wires(self, dtype: torch.dtype) -> Wires:
        whole, parts = self.rules.layout.as_wire(dtype), tuple(part.layout.as_wire(dtype) for part in self.parts)
        runs = tuple(_runs(whole, part, layout) for part, layout in zip(self.parts, parts, strict=True))
        return Wires(parts, runs, max(part.parameter_bytes for part in parts))

    def take_apart(self, block: Tensor, rows: Tensor) -> None:
        """Copy a block of the whole state's gradients, float32, to rows [size, part_bytes] of the parts."""
        for runs, row in zip(self.wires(torch.float32).runs, rows, strict=True):
            for inside, outside, size in runs:
                row[outside : outside + size].copy_(block[inside : inside + size], non_blocking=True)

    def put_together(self, rows: Tensor, block: Tensor, dtype: torch.dtype) -> None:
        """Copy weights as they cross the link, rows [size, bytes] of the parts, to a block of the whole state."""
        for runs, row in zip(self.wires(dtype).runs, rows, strict=True):
            for inside, outside, size in runs:
                block[inside : inside + size].copy_(row[outside : outside + size], non_blocking=True)


@dataclass(frozen=True)
class Wires:
    """Parts of a state as their weights cross the link.

    Args:
        layouts: of each part.
        runs: of each part, the bytes that lie together in it and in the whole: where in the whole, where in the part,
            and how many. What lies between two parameters belongs to them, too.
        num_bytes: of the largest part.
    """

    layouts: tuple[Layout, ...]
    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    num_bytes: int


def _runs(whole: Layout, part: RankPart, layout: Layout) -> tuple[tuple[int, int, int], ...]:
    runs: list[tuple[int, int, int]] = []
    for index, (start, stop), entry in zip(part.indices, part.ranges, layout.parameters, strict=True):
        inside = whole.parameters[index].offset_bytes + start * entry.dtype.itemsize
        size = (stop - start) * entry.dtype.itemsize
        if runs and inside - runs[-1][0] == entry.offset_bytes - runs[-1][1]:
            first = runs.pop()
            runs.append((*first[:2], inside + size - first[0]))
        else:
            runs.append((inside, entry.offset_bytes, size))
    return tuple(runs)


def _is_elementwise(rules: StateRules) -> bool:
    shapes = {index: entry.shape for index, entry in enumerate(rules.layout.parameters)}
    moments = (pair for moment in rules.layout.moments for pair in zip(moment.indices, moment.entries, strict=True))
    return all(getattr(call.rule, "is_elementwise", True) for call in rules.calls) and all(
        entry.shape == shapes[index] for index, entry in moments
    )


def _even_ranges(layout: Layout, size: int) -> list[dict[int, Range]]:
    """By rank, its range of each parameter that it has something of."""
    counts = [num_blocks(entry.numel) for entry in layout.parameters]
    total = sum(counts)
    rows: list[dict[int, Range]] = []
    for rank in range(size):
        first, last = rank * total // size, (rank + 1) * total // size
        row, before = {}, 0
        for index, count in enumerate(counts):
            start, stop = max(first - before, 0), min(last - before, count)
            if start < stop:
                row[index] = (start * BLOCK, min(stop * BLOCK, layout.parameters[index].numel))
            before += count
        rows.append(row)
    return rows


def _whole_ranges(layout: Layout, size: int) -> list[dict[int, Range]]:
    rows: list[dict[int, Range]] = [{} for _ in range(size)]
    filled = [0] * size
    order = sorted(range(len(layout.parameters)), key=lambda index: (-layout.parameters[index].numel, index))
    for index in order:
        rank = filled.index(min(filled))
        rows[rank][index] = (0, layout.parameters[index].numel)
        filled[rank] += layout.parameters[index].numel
    return [dict(sorted(row.items())) for row in rows]


def _part(rules: StateRules, ranges: dict[int, Range]) -> RankPart:
    """A part with its layout, moments included, and its rules, which name parameters by their place in the part."""
    layout, indices = rules.layout, tuple(ranges)
    places = {index: place for place, index in enumerate(indices)}
    shapes = {index: _shape(layout.parameters[index], ranges[index]) for index in indices}
    parameters = packed(replace(layout.parameters[index], shape=shapes[index]) for index in indices)
    moments = []
    for moment in layout.moments:
        kept = [
            (places[index], _moment_entry(entry, layout.parameters[index], shapes[index]))
            for index, entry in zip(moment.indices, moment.entries, strict=True)
            if index in places
        ]
        entries = packed(entry for _, entry in kept)
        moments.append(replace(moment, indices=tuple(place for place, _ in kept), entries=entries))
    calls = tuple(
        replace(call, indices=tuple(places[index] for index in call.indices if index in places)) for call in rules.calls
    )
    own = Layout(parameters, layout.buffers, (), tuple(moments))
    return RankPart(indices, tuple(ranges.values()), StateRules(own, tuple(call for call in calls if call.indices)))


def _shape(entry: Entry, within: Range) -> tuple[int, ...]:
    return entry.shape if within == (0, entry.numel) else (within[1] - within[0],)


def _moment_entry(entry: Entry, parameter: Entry, shape: Sequence[int]) -> Entry:
    return entry if parameter.shape == tuple(shape) else replace(entry, shape=tuple(shape))


class Cuts:
    """The cut of each state of a pool."""

    def __init__(self, rules: PoolRules, size: int) -> None:
        self._rules = rules
        self._size = size
        self._cuts: dict[str, Cut] = {}

    def of(self, key: str) -> Cut:
        if key not in self._cuts:
            self._cuts[key] = Cut(self._rules.of(key), self._size)
        return self._cuts[key]
