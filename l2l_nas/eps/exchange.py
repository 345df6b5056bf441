"""What ranks that train one network give each other; the only thing that the param-server and the relay know of them.

All ranks call the same methods, on each channel in the same order. A channel is a queue that one thread uses at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from torch import Tensor


class Channel(StrEnum):
    """Which queue an exchange goes through."""

    LOAD = "load"  # weights, before a layer's visits
    SEND = "send"  # gradients, after them
    STEP = "step"  # what ranks agree on before a pass, and what follows it at once


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

    @property
    def members(self) -> Sequence[int]:
        """Their numbers among all ranks, as errors say them."""

    def working(self, what: str) -> AbstractContextManager[None]:
        """While this rank does what takes long, and exchanges nothing: the others wait patiently.

        Args:
            what: it does, as errors say it.
        """

    def all_gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        """Have `whole` [size, ...] hold every rank's `part` [...], in the order of ranks.

        Args:
            of: what it is of, such as the key of a state; errors say it.
        """

    def all_to_all(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        """Give each rank its row of `parts` [size, ...]; `received` [size, ...] gets one from each, in order."""


class Alone:
    """The exchange of one process with itself."""

    rank = 0
    size = 1
    members = (0,)

    def working(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def all_gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        whole[0].copy_(part)

    def all_to_all(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        received.copy_(parts)


@dataclass(frozen=True)
class PaperRanks:
    """The exchange of one of several ranks, of which no other is there.

    All seem to agree with this one, and to have zeros for weights and gradients. A relay over it is asked what it would
    do; what it trains is of no use.
    """

    size: int
    rank: int = 0

    @property
    def members(self) -> Sequence[int]:
        return range(self.size)

    def working(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def all_gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        if channel is Channel.STEP:
            whole.copy_(part.expand_as(whole))
        else:
            whole.zero_()
            whole[self.rank].copy_(part)

    def all_to_all(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        received.zero_()
        received[self.rank].copy_(parts[self.rank])


class Exchanged(NamedTuple):
    """One exchange that is over, as this rank saw it."""

    channel: Channel
    of: str
    num_bytes: int  # that this rank took from the others; it gave them as many
    start_s: float  # on the clock of `time.perf_counter`
    end_s: float


class ObservedExchange:
    """An exchange that tells its observers what went through it, each in the thread that exchanged.

    Attributes:
        observers: to be added to and removed from while nothing is exchanged.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.rank, self.size, self.members = exchange.rank, exchange.size, exchange.members
        self.observers: list[Callable[[Exchanged], None]] = []

    @classmethod
    def of(cls, exchange: Exchange) -> ObservedExchange:
        """The same one, if it is observed already."""
        return exchange if isinstance(exchange, ObservedExchange) else cls(exchange)

    def working(self, what: str) -> AbstractContextManager[None]:
        return self._exchange.working(what)

    def all_gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        start_s = time.perf_counter()
        self._exchange.all_gather(part, whole, channel, of)
        self._tell(channel, of, part.nbytes, start_s)

    def all_to_all(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        start_s = time.perf_counter()
        self._exchange.all_to_all(parts, received, channel, of)
        self._tell(channel, of, parts.nbytes // self.size, start_s)

    def _tell(self, channel: Channel, of: str, part_bytes: int, start_s: float) -> None:
        if self.size == 1:
            return
        done = Exchanged(channel, of, (self.size - 1) * part_bytes, start_s, time.perf_counter())
        for observe in self.observers:
            observe(done)


@dataclass(frozen=True)
class Mesh:
    """The ranks of a training as a grid; one process is a grid of one.

    Args:
        world: all ranks.
        data: those that have the same part of each layer: they share mini-batches and states.
        tensor: those that share each micro-batch and each layer, see [Note: divided layers] in `space/split.py`.
    """

    world: Exchange = Alone()
    data: Exchange = Alone()
    tensor: Exchange = Alone()
