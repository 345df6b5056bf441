"""The device stash: the input of every layer of a path, for every micro-batch, kept for the backward.

It grows with depth x batch. One arena, cut the same way for every architecture, so that a change of architecture
allocates nothing, and a step causes no page faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from l2l_nas.eps.layout import Entry, align
from l2l_nas.relay.device import Device
from l2l_nas.space.shapes import Specs


class DeviceStash:
    """Room for the inputs of all positions.

    Args:
        boundaries: what each position takes, as `check_shapes` gives it.
        device: where.
    """

    def __init__(self, boundaries: Sequence[Specs], device: Device) -> None:
        self._boundaries = boundaries
        self._device = device
        self._arena = device.allocate(0)
        self._cuts: dict[tuple[int, ...], list[list[tuple[Tensor, ...]]]] = {}

    @property
    def arena(self) -> Tensor:
        """The block of device memory."""
        return self._arena

    def cut(self, sizes: tuple[int, ...]) -> list[list[tuple[Tensor, ...]]]:
        """Tensors for [position][micro-batch]; the arena grows if these sizes need more than any before.

        Args:
            sizes: samples of each micro-batch.
        """
        if sizes not in self._cuts:
            entries: list[list[list[Entry]]] = []
            end = 0
            for specs in self._boundaries[:-1]:
                entries.append([])
                for size in sizes:
                    entries[-1].append([])
                    for spec in specs:
                        entry = Entry("", (size, *spec.shape), spec.dtype, end)
                        entries[-1][-1].append(entry)
                        end = align(end + entry.numel * spec.dtype.itemsize)
            if end > self._arena.numel():
                self._cuts.clear()
                self._arena = self._device.allocate(end)
            self._cuts[sizes] = [
                [tuple(entry.view(self._arena) for entry in batch) for batch in position] for position in entries
            ]
        return self._cuts[sizes]
