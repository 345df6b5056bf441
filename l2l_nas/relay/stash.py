"""The stash: saved activations. They are the values of a path, for every micro-batch, until the backward.

On the device it grows with depth x batch. On the host (the L2L paper's constant-memory variation) values pass through a
ring of a few frames on the device, whatever the depth. One arena on each side, cut the same way for every architecture:
a change of architecture allocates nothing, and a step causes no page faults. A value has one place, however many layers
read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.eps.layout import Entry, align
from l2l_nas.relay.device import Device
from l2l_nas.relay.extend import takes_any_length
from l2l_nas.relay.interface import bytes_of
from l2l_nas.relay.path import RING, Name, Spill
from l2l_nas.space.candidate import Specs, TensorSpec
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes, values_at

Frames = list[tuple[Tensor, ...]]  # by micro-batch

# a value that more positions read than these stays on the device: each of them would fetch it
_MOST_READERS = 2
_MOST_LAYOUTS = 64  # that are remembered; texts of other lengths are laid out anew


@dataclass(frozen=True)
class ArenaLayout:
    """Where values lie, for micro-batches of certain sizes."""

    own: Mapping[str, Frames]  # by value, its place on the device; those that are spilled have none
    ring: tuple[Mapping[str, Frames], ...]  # each frame as it takes each spilled value
    host: Mapping[str, Frames]  # by spilled value, where it waits


class Stash:
    """Frames for the values of a pool."""

    def __init__(self, pool: LayerPool, device: Device, dtype: torch.dtype = torch.float32) -> None:
        wiring = pool.wiring
        self.specs = {name: on_device(specs, dtype) for name, specs in check_shapes(pool).values.items()}
        self.inputs = on_device(pool.inputs, dtype)
        self.dtype = dtype
        # all values but what the last position writes, which goes to the loss
        self.places = (*wiring.inputs, *(name for names in wiring.writes[:-1] for name in names))
        spillable = _spillable(pool)  # what may wait on the host
        self.spillable = tuple(name for name in self.places if name in spillable)
        spillable.intersection_update(self.places)
        # where the last position is skipped, what it would write comes from layers before it
        at_the_end = len(set(wiring.outputs).intersection((*self.spillable, *wiring.writes[-1]))) - 1
        most = max(
            len(spillable.intersection(reads)) + max(len(spillable.intersection(writes)), at_the_end)
            for reads, writes in zip(wiring.reads, wiring.writes, strict=True)
        )
        self.frames = max(RING, most + 1)  # spilled values that must be on the device at a time
        self._wiring = wiring
        # the most that an evaluation keeps of one sample between two layers, whatever the path; and the same without
        # what the last position writes
        self.waiting_bytes = self._waiting(wiring.writes)
        self.waiting_inside_bytes = self._waiting([*wiring.writes[:-1], ()])
        self._device = device
        self.arena = device.allocate(0)
        self._host = device.allocate_host(0)
        self._pool = pool
        self._shorter: dict[int, Mapping[str, Specs]] = {}  # specs by length
        self._layouts: dict[tuple[tuple[int, ...], frozenset[str], tuple[int, ...] | None], ArenaLayout] = {}

    def inputs_of(self, layer: Layer) -> Specs:
        """What a layer takes at its position, on the device."""
        return tuple(spec for name in self._wiring.reads[layer.position] for spec in self.specs[name])

    def spill(self, values: frozenset[Name]) -> Spill:
        return Spill(values, self.frames)

    def size_bytes(self, value: str, sizes: tuple[int, ...], lengths: tuple[int, ...] | None = None) -> int:
        return _end(self._entries(value, sizes, 0, lengths), 0)

    def _waiting(self, writes: Sequence[Sequence[str]]) -> int:
        wiring = self._wiring
        uses = [(*reads, *given) for reads, given in zip(wiring.reads, writes, strict=True)]
        last = {name: place for place, names in enumerate(uses) for name in names}
        waiting, most = set(wiring.inputs), 0
        for place, names in enumerate(uses):
            waiting.update(names)
            most = max(most, sum(bytes_of(self.specs[name]) for name in waiting))
            waiting = {name for name in waiting if last.get(name, place) > place}
        return most

    def needs_bytes(self, sizes: tuple[int, ...], spilled: frozenset[str]) -> int:
        """Device memory for values of these sizes."""
        own = sum(self.size_bytes(name, sizes) for name in self.places if name not in spilled)
        return own + self.frames * max((self.size_bytes(name, sizes) for name in spilled), default=0)

    def lay_out(
        self, sizes: tuple[int, ...], spilled: frozenset[str] = frozenset(), lengths: tuple[int, ...] | None = None
    ) -> ArenaLayout:
        """Frames for micro-batches of these sizes; an arena grows if they need more than any before.

        Args:
            lengths: of their texts, where they are shorter than the pool's inputs. The arena is as large as for those.
        """
        key = sizes, spilled, lengths
        if key not in self._layouts:
            if lengths is not None:
                self.lay_out(sizes, spilled)  # so that the arena does not grow with every longer text
            while len(self._layouts) >= _MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            own, device = self._row([name for name in self.places if name not in spilled], sizes, lengths)
            away, host = self._row([name for name in self.places if name in spilled], sizes, lengths)
            frame = max((_end(self._entries(name, sizes, 0, lengths), 0) for name in away), default=0)
            ring = [
                {name: self._entries(name, sizes, device + number * frame, lengths) for name in away}
                for number in range(self.frames)
            ]
            self._grow(device + self.frames * frame, host)
            self._layouts[key] = ArenaLayout(
                _views(own, self.arena), tuple(_views(one, self.arena) for one in ring), _views(away, self._host)
            )
        return self._layouts[key]

    def _specs_at(self, length: int) -> Mapping[str, Specs]:
        """`specs` for texts of a length."""
        if length not in self._shorter:
            sources = {
                name: tuple(TensorSpec((length, *spec.shape[1:]), spec.dtype) for spec in specs)
                for name, specs in self._pool.sources.items()
            }
            found = values_at(self._pool, sources, takes_any_length)
            self._shorter[length] = {name: on_device(specs, self.dtype) for name, specs in found.items()}
        return self._shorter[length]

    def _grow(self, device: int, host: int) -> None:
        if device > self.arena.numel() or host > self._host.numel():
            self._layouts.clear()  # before the new arena: the old one goes first
        if device > self.arena.numel():
            self.arena = self._device.allocate(0)
            self.arena = self._device.allocate(device)
        if host > self._host.numel():
            self._host = self._device.allocate_host(0)
            self._host = self._device.allocate_host(host)

    def _row(
        self, values: Sequence[str], sizes: tuple[int, ...], lengths: tuple[int, ...] | None
    ) -> tuple[dict[str, list[list[Entry]]], int]:
        """Values one behind the other, and where the last one ends."""
        entries, end = {}, 0
        for name in values:
            entries[name] = self._entries(name, sizes, end, lengths)
            end = _end(entries[name], end)
        return entries, end

    def _entries(
        self, value: str, sizes: tuple[int, ...], start: int, lengths: tuple[int, ...] | None = None
    ) -> list[list[Entry]]:
        batches: list[list[Entry]] = []
        for index, size in enumerate(sizes):
            batches.append([])
            for spec in (self.specs if lengths is None else self._specs_at(lengths[index]))[value]:
                batches[-1].append(Entry("", (size, *spec.shape), spec.dtype, start))
                start = align(start + batches[-1][-1].numel * spec.dtype.itemsize)
        return batches


def _spillable(pool: LayerPool) -> set[str]:
    """Values that may wait on the host: few positions read them, under whatever name a skip passes them on."""
    wiring = pool.wiring
    staying = set(pool.sources)
    staying |= {name for name in wiring.names if sum(name in names for names in wiring.reads) > _MOST_READERS}
    for position, reads in reversed(list(zip(pool.positions, wiring.reads, strict=True))):
        if any(candidate.is_skip for candidate in position.candidates):
            staying |= {taken for taken, name in zip(reads, position.writes, strict=False) if name in staying}
    return set(wiring.names) - staying


def on_device(specs: Specs, dtype: torch.dtype) -> Specs:
    """Specs in the dtype of the device."""
    return tuple(TensorSpec(spec.shape, dtype) if spec.dtype == torch.float32 else spec for spec in specs)


def _end(batches: list[list[Entry]], start: int) -> int:
    entries = [entry for batch in batches for entry in batch]
    return align(entries[-1].offset_bytes + entries[-1].numel * entries[-1].dtype.itemsize) if entries else start


def _views(values: Mapping[str, list[list[Entry]]], arena: Tensor) -> dict[str, Frames]:
    # `.data` gives each frame a version counter of its own: a copy into one must not alarm a graph that holds another
    return {
        name: [tuple(entry.view(arena).data for entry in batch) for batch in batches]
        for name, batches in values.items()
    }
