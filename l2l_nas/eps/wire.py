"""Host memory for weights as they cross the link: copies that are stored beside the masters, or masters themselves.

[Note: what crosses] Where device and host have one memory, float32 masters are read where they lie. Else a copy to the
device needs pinned memory, and another dtype needs rounded weights. These are stored beside the masters and written
with each update, as far as the limit goes; float32 masters that are created for such a device lie in pinned memory
themselves. Beyond the limit weights are rounded for each load into a block that is free again after the copy: the same
bits, more work of the host, and no memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

Allocate = Callable[[int], Tensor]


class WireMemory:
    """Gives out blocks, at most so many bytes at a time. A block comes back when its tensor is gone.

    Args:
        allocate: makes memory that the device copies from without a detour; None where any will do.
        limit_bytes: of what is stored; None for no limit.
    """

    def __init__(self, allocate: Allocate | None = None, *, limit_bytes: int | None = None) -> None:
        self._allocate = allocate
        self.limit_bytes = limit_bytes
        self._lock = threading.RLock()  # a finalizer may run while it is held
        self.used_bytes = 0

    @property
    def is_pinned(self) -> bool:
        """Whether copies to the device need memory of this kind."""
        return self._allocate is not None

    def take(self, num_bytes: int) -> Tensor | None:
        """A block to be stored, uint8, which may hold anything; None beyond the limit."""
        with self._lock:
            if self.limit_bytes is not None and self.used_bytes + num_bytes > self.limit_bytes:
                return None
            self.used_bytes += num_bytes
        block = self.stage(num_bytes)
        weakref.finalize(block, self._give, num_bytes)
        return block

    def stage(self, num_bytes: int) -> Tensor:
        """A block for one copy, uint8, which may hold anything; it counts for nothing."""
        return (self._allocate or host_block)(num_bytes)[:num_bytes]

    def _give(self, num_bytes: int) -> None:
        with self._lock:
            self.used_bytes -= num_bytes


def host_block(num_bytes: int) -> Tensor:
    """A block of host memory, which may hold anything."""
    return torch.empty(num_bytes, dtype=torch.uint8)
