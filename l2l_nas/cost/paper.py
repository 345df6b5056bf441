"""A device on paper: it has the memory of a profile, and none of it is ever touched."""

from __future__ import annotations

import torch
from torch import Tensor

from l2l_nas.eps.layout import align
from l2l_nas.relay.device import Cpu


class PaperDevice(Cpu):
    """A relay may be built on it, to be asked what it would do; it must not train.

    Its blocks are address space of this process alone: the system gives memory to what is written, and nothing is.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__(copies=True)
        self._left = num_bytes

    def allocate(self, num_bytes: int) -> Tensor:
        """See `Device`."""
        self._left -= align(num_bytes)
        return torch.empty(align(num_bytes), dtype=torch.uint8)

    allocate_host = Cpu.allocate

    def free_bytes(self) -> int:
        """See `Device`."""
        return max(0, self._left)
