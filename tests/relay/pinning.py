"""A CPU that pins: the host as a device whose host memory comes from `PinnedBlocks`, over an allocator that counts.

On a CPU nothing can be pinned and no copy is late, so the allocator fills ordinary memory with NaNs, and fences are
over when a test says so. That suffices to see who gives blocks back, when they are used again, and that nobody relies
on what they held.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from l2l_nas.relay import relay as relay_module
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.pinned import PinnedBlocks

SLAB_BYTES = 1 << 14


@dataclass
class Allocator:
    """Counts the bytes that are pinned now and were at most, whoever holds them, and how often it was asked."""

    now: int = 0
    peak: int = 0
    calls: int = 0

    def pin(self, num_bytes: int) -> Tensor:
        memory = np.full(num_bytes, 0xFF, dtype=np.uint8)
        self.calls += 1
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(memory, self._unpinned, num_bytes)
        return torch.from_numpy(memory)

    def _unpinned(self, num_bytes: int) -> None:
        self.now -= num_bytes


@dataclass
class Fence:
    """Over at once, or when somebody waits for it, or a test says so."""

    over: bool = True
    waits: int = 0

    def is_over(self) -> bool:
        return self.over

    def wait(self) -> None:
        self.waits += 1
        self.over = True


@dataclass
class Fences:
    """Those that were made; `late`: copies are under way when the next ones are made."""

    late: bool = False
    made: list[Fence] = field(default_factory=list)

    def __call__(self) -> Fence:
        self.made.append(Fence(over=not self.late))
        del self.made[:-10]
        return self.made[-1]


class PinningCpu(Cpu):
    """See above."""

    def __init__(self, *, slab_bytes: int = SLAB_BYTES, late: bool = False) -> None:
        super().__init__(copies=True)
        self.allocator = Allocator()
        self.blocks = PinnedBlocks(self.allocator.pin, fence=Fences(late), slab_bytes=slab_bytes)
        self.host_allocator = self.allocate_host

    def allocate_host(self, num_bytes: int) -> Tensor:
        return self.blocks.take(num_bytes)


def use(monkeypatch, device: PinningCpu) -> PinningCpu:
    """Relays made from now on run on it."""
    monkeypatch.setattr(relay_module, "open_device", lambda name: device)
    return device
