"""Pinned memory: blocks of host memory that copies to and from a device use without a detour.

They are carved from a few slabs, as pinning is slow and torch rounds each pinned allocation up to a power of two. A
block has no owner to name and is never given back manually: it goes back when the last tensor over it is gone, so that
whoever drops a server, a staging buffer or an outgrown stash gives its memory back.

[Note: blocks in flight] A copy that was issued may run long after the tensors it was issued with are gone, so a block
that came back may be read or written by the device. Every such copy was issued while a tensor over the block
lived, thus before the block came back: a fence (a mark on every stream that copies) made after that is behind all of
them. A block is used again, and a slab is let go, once a fence made after its return is over. Where nothing else is
free, that is waited for: copies are short, pinning more is not, and would never end.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from l2l_nas.eps.layout import align

SLAB_BYTES = 64 << 20


class Fence(Protocol):
    """A point behind all copies that were issued before it was made."""

    def is_over(self) -> bool: ...

    def wait(self) -> None: ...


class _Slab:
    """A pinned tensor, uint8, and what of it is free: ends in bytes by begins; no two parts touch."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory
        self.free = {0: memory.numel()}

    @property
    def is_unused(self) -> bool:
        return self.free == {0: self.memory.numel()}

    def cut(self, start: int, size: int) -> None:
        """Allocate the beginning of a free part."""
        end = self.free.pop(start)
        if start + size < end:
            self.free[start + size] = end

    def give(self, start: int, end: int) -> None:
        before = next((begin for begin, stop in self.free.items() if stop == start), start)
        self.free[before] = self.free.pop(end, end)


# a block that nobody uses any more, by begin and end; copies from and to it may run
_Returned = tuple[_Slab, int, int]


class PinnedBlocks:
    """Gives out blocks of pinned memory, and takes them back when nothing refers to them any more.

    What is pinned is bounded by what is in use at the worst moment: before another slab is made, blocks on their way
    back are waited for, and slabs without a block in use are let go. Any thread may take, and drop, a block.

    Args:
        pin: makes a uint8 tensor of pinned memory. It is given back by dropping it.
        fence: makes a fence; see [Note: blocks in flight].
        trim: called after slabs were dropped, for allocators that keep what is dropped.
        slab_bytes: of a slab; a block that is larger gets one of its own size, rounded up to a power of two.
    """

    def __init__(
        self,
        pin: Callable[[int], Tensor],
        *,
        fence: Callable[[], Fence],
        trim: Callable[[], None] = lambda: None,
        slab_bytes: int = SLAB_BYTES,
    ) -> None:
        self._pin = pin
        self._fence = fence
        self._trim = trim
        self._slab_bytes = slab_bytes
        self._lock = threading.Lock()
        self._slabs: list[_Slab] = []
        # garbage is collected anywhere, under the lock too, so what is dropped is only noted
        self._returned: deque[_Returned] = deque()
        self._resting: deque[tuple[Fence, list[_Returned]]] = deque()

    @property
    def pinned_bytes(self) -> int:
        with self._lock:
            return sum(slab.memory.numel() for slab in self._slabs)

    def take(self, num_bytes: int) -> Tensor:
        """Give out an aligned block of at least so many bytes, as uint8; it may hold anything.

        Raises:
            RuntimeError: no more memory can be pinned.
        """
        size = align(num_bytes)
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            slab, start = self._find(size)
            slab.cut(start, size)
        # an array of its own, and with it a storage of its own: it lives as long as any view of the block
        block = slab.memory.numpy()[start : start + size]
        weakref.finalize(block, self._returned.append, (slab, start, start + size)).atexit = False
        return torch.from_numpy(block)

    def _find(self, size: int) -> tuple[_Slab, int]:
        self._rest()
        place = self._smallest(size)
        while place is None and self._resting:
            self._resting[0][0].wait()
            self._rest()
            place = self._smallest(size)
        if place is None:
            self._let_go()
            self._slabs.append(_Slab(self._pin(1 << (max(size, self._slab_bytes) - 1).bit_length())))
            place = self._slabs[-1], 0
        return place

    def _rest(self) -> None:
        """Put what came back behind a fence, and make free what is behind one that is over."""
        fresh = [self._returned.popleft() for _ in range(len(self._returned))]
        if fresh:
            self._resting.append((self._fence(), fresh))
        while self._resting and self._resting[0][0].is_over():
            for slab, start, end in self._resting.popleft()[1]:
                slab.give(start, end)

    def _smallest(self, size: int) -> tuple[_Slab, int] | None:
        fitting = [
            (end - start, index, start)
            for index, slab in enumerate(self._slabs)
            for start, end in slab.free.items()
            if end - start >= size
        ]
        _, index, start = min(fitting, default=(0, -1, 0))
        return None if index < 0 else (self._slabs[index], start)

    def _let_go(self) -> None:
        """Drop slabs without a block in use: nothing rests any more, so no copy runs in them."""
        used = [slab for slab in self._slabs if not slab.is_unused]
        if len(used) < len(self._slabs):
            self._slabs = used
            self._trim()
