"""Host memory for weights as they cross the link: copies that are stored beside the masters, or masters themselves.

[Note: what crosses] Where device and host have one memory, float32 masters are read where they lie. Else a copy to the
device needs pinned memory, and another dtype needs rounded weights. These are stored beside the masters and written
with each update; float32 masters that are created for such a device lie in pinned memory themselves. Where nothing is
to be stored, weights are rounded for each load into a block that is free again after the copy: the same bits, more work
of the host, and no memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Allocate = Callable[[int], Tensor]


class WireMemory:
    """Allocates blocks, uint8 and not initialised, for copies that are stored and for one copy each.

    `allocate` makes memory that the device copies from without a detour; None where any will do.
    """

    def __init__(self, allocate: Allocate | None = None, *, stores: bool = True) -> None:
        self._allocate = allocate
        self.is_pinned = allocate is not None
        self.stores = stores

    def allocate(self, num_bytes: int) -> Tensor | None:
        """A block for a copy that is stored; None where nothing is stored."""
        return self.stage(num_bytes) if self.stores else None

    def stage(self, num_bytes: int) -> Tensor:
        """A block for one copy."""
        return (self._allocate or host_block)(num_bytes)[:num_bytes]


def host_block(num_bytes: int) -> Tensor:
    """A block of host memory, uint8 and not initialised."""
    return torch.empty(num_bytes, dtype=torch.uint8)
