"""The stash: the input of every layer of a path, for every micro-batch, kept for the backward.

On the device it grows with depth x batch. On the host (the L2L paper's constant-memory variation) inputs pass through a
ring of a few rooms on the device, whatever the depth. One arena on each side, cut the same way for every architecture:
a change of architecture allocates nothing, and a step causes no page faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.eps.layout import Entry, align
from l2l_nas.relay.device import Device
from l2l_nas.relay.plan import RING
from l2l_nas.space.candidate import TensorSpec
from l2l_nas.space.shapes import Specs

Rooms = list[tuple[Tensor, ...]]  # by micro-batch


@dataclass(frozen=True)
class Cut:
    """Where inputs lie, for micro-batches of certain sizes.

    Args:
        own: by position, a room of its own on the device; None where the position's input is spilled.
        ring: by number of the room and position, the room as it takes that position's input.
        host: by position, where a spilled input waits; None for the others.
    """

    own: tuple[Rooms | None, ...]
    ring: tuple[tuple[Rooms | None, ...], ...]
    host: tuple[Rooms | None, ...]


class Stash:
    """Room for the inputs of all positions.

    Args:
        boundaries: what each position takes, as `check_shapes` gives it, and what the last one gives.
        device: where.
        dtype: of floating inputs on the device.
    """

    def __init__(self, boundaries: Sequence[Specs], device: Device, dtype: torch.dtype = torch.float32) -> None:
        self.boundaries = tuple(tuple(_on_device(spec, dtype) for spec in specs) for specs in boundaries)
        self._device = device
        self._arena = device.allocate(0)
        self._host = device.allocate_host(0)
        self._cuts: dict[tuple[tuple[int, ...], frozenset[int]], Cut] = {}

    @property
    def arena(self) -> Tensor:
        """The block of device memory."""
        return self._arena

    def size_bytes(self, position: int, sizes: tuple[int, ...]) -> int:
        """Of a position's input."""
        return _end(self._entries(position, sizes, 0), 0)

    def needs_bytes(self, sizes: tuple[int, ...], spilled: frozenset[int]) -> int:
        """Device memory that a cut takes."""
        positions = range(len(self.boundaries) - 1)
        own = sum(self.size_bytes(p, sizes) for p in positions if p not in spilled)
        return own + RING * max((self.size_bytes(p, sizes) for p in spilled), default=0)

    def cut(self, sizes: tuple[int, ...], spilled: frozenset[int] = frozenset()) -> Cut:
        """Rooms for these sizes; an arena grows if they need more than any before.

        Args:
            sizes: samples of each micro-batch.
            spilled: positions whose input waits on the host.
        """
        if (sizes, spilled) not in self._cuts:
            positions = range(len(self.boundaries) - 1)
            device, host = 0, 0
            own: list[list[list[Entry]] | None] = []
            away: list[list[list[Entry]] | None] = []
            for position in positions:
                is_spilled = position in spilled
                own.append(None if is_spilled else self._entries(position, sizes, device))
                away.append(self._entries(position, sizes, host) if is_spilled else None)
                device, host = _end(own[-1], device), _end(away[-1], host)
            room = max((self.size_bytes(position, sizes) for position in spilled), default=0)
            ring = [
                [self._entries(p, sizes, device + number * room) if p in spilled else None for p in positions]
                for number in range(RING)
            ]
            self._grow(device + RING * room, host)
            self._cuts[sizes, spilled] = Cut(
                tuple(_views(entries, self._arena) for entries in own),
                tuple(tuple(_views(entries, self._arena) for entries in room_) for room_ in ring),
                tuple(_views(entries, self._host) for entries in away),
            )
        return self._cuts[sizes, spilled]

    def _grow(self, device: int, host: int) -> None:
        if device > self._arena.numel() or host > self._host.numel():
            self._cuts.clear()  # before the new arena: the old one goes first
        if device > self._arena.numel():
            self._arena = self._device.allocate(0)
            self._arena = self._device.allocate(device)
        if host > self._host.numel():
            self._host = self._device.allocate_host(0)
            self._host = self._device.allocate_host(host)

    def _entries(self, position: int, sizes: tuple[int, ...], start: int) -> list[list[Entry]]:
        batches: list[list[Entry]] = []
        for size in sizes:
            batches.append([])
            for spec in self.boundaries[position]:
                batches[-1].append(Entry("", (size, *spec.shape), spec.dtype, start))
                start = align(start + batches[-1][-1].numel * spec.dtype.itemsize)
        return batches


def _on_device(spec: TensorSpec, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(spec.shape, dtype) if spec.dtype == torch.float32 else spec


def _end(batches: list[list[Entry]] | None, start: int) -> int:
    entries = [entry for batch in batches or () for entry in batch]
    return align(entries[-1].offset_bytes + entries[-1].numel * entries[-1].dtype.itemsize) if entries else start


def _views(batches: list[list[Entry]] | None, arena: Tensor) -> Rooms | None:
    # `.data` gives each room a version counter of its own: a copy into one must not alarm a graph that holds another
    return None if batches is None else [tuple(entry.view(arena).data for entry in batch) for batch in batches]
