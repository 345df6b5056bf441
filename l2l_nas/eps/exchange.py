"""What ranks that train one network give each other; the only thing that the param-server and the relay know of them.

All ranks call the same methods, on each channel in the same order. A channel is a queue that one thread uses at a time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class Channel(StrEnum):
    """Which queue an exchange goes through."""

    LOAD = "load"  # weights, before a layer's visits
    SEND = "send"  # gradients, after them
    STEP = "step"  # what a whole step agrees on


class Exchange(Protocol):
    """Ranks, and what they give each other.

    Tensors lie in host memory, are contiguous, and have one shape and dtype on all ranks. A method returns when its
    result is there.

    Raises, from every method:
        RankError: another rank failed, or did not answer in time; it names the rank.
    """

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are, a power of two."""

    def gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        """Have `whole` [size, ...] hold every rank's `part` [...], in the order of ranks.

        Args:
            of: what it is of, such as the key of a state; errors say it.
        """

    def swap(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        """Give each rank its row of `parts` [size, ...]; `received` [size, ...] gets one from each, in order."""


class Alone:
    """The exchange of one process with itself."""

    rank = 0
    size = 1

    def gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        whole[0].copy_(part)

    def swap(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        received.copy_(parts)


def wait_for_all(exchange: Exchange) -> None:
    """Return when all ranks have called it."""
    nothing = torch.zeros(1, dtype=torch.uint8)
    exchange.gather(nothing, torch.empty(exchange.size, 1, dtype=torch.uint8), Channel.STEP)
