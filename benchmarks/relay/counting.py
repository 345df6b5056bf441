"""What ranks exchange, counted: bytes that come from others, and how long layers wait for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from l2l_nas.eps.exchange import Channel, Exchange
from l2l_nas.eps.server import ParamServer
from l2l_nas.relay.trace import TraceSpan, busy_intervals, common_intervals


@dataclass(frozen=True)
class Exchanged:
    """One exchange of a rank."""

    channel: Channel
    of: str
    is_swap: bool
    received_bytes: int  # from others
    start_s: float
    end_s: float


class CountedExchange:
    """An exchange that notes what goes through another one."""

    def __init__(self, inner: Exchange) -> None:
        self._inner = inner
        self._done: list[Exchanged] = []

    @property
    def rank(self) -> int:
        """See `Exchange.rank`."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """See `Exchange.size`."""
        return self._inner.size

    def gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        """See `Exchange.gather`."""
        start_s = time.perf_counter()
        self._inner.gather(part, whole, channel, of)
        self._note(channel, of, False, (self.size - 1) * part.nbytes, start_s)

    def swap(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        """See `Exchange.swap`."""
        start_s = time.perf_counter()
        self._inner.swap(parts, received, channel, of)
        self._note(channel, of, True, (self.size - 1) * parts[0].nbytes, start_s)

    def _note(self, channel: Channel, of: str, is_swap: bool, num_bytes: int, start_s: float) -> None:
        self._done.append(Exchanged(channel, of, is_swap, num_bytes, start_s, time.perf_counter()))

    def clear(self) -> None:
        """Forget what was noted."""
        self._done.clear()

    def facts(self, spans: Sequence[TraceSpan], server: ParamServer) -> Mapping[str, float]:
        """What was exchanged, and what could not be less.

        `exchanged_s` is the time in which an exchange is under way, the waiting for other ranks included; `exposed_s`
        the part of it in which no layer computes. `least_bytes` is what a rank lacks of the weights that it loaded and
        of the gradients that it summed: (ranks - 1) / ranks of them.
        """
        exchanged = busy_intervals(TraceSpan("exchange", "", "", 0, one.start_s, one.end_s) for one in self._done)
        computed = busy_intervals(span for span in spans if span.lane == "compute")
        exchanged_s = sum(end - start for start, end in exchanged)
        hidden_s = sum(end - start for start, end in common_intervals(exchanged, computed))
        states = [
            one.of
            for one in self._done
            if one.channel is Channel.LOAD or one.is_swap  # the others are notes, and states that are not cut
        ]
        lacking = (self.size - 1) / self.size
        return {
            "exchanged_s": exchanged_s,
            "exposed_s": exchanged_s - hidden_s,
            "received_bytes": sum(one.received_bytes for one in self._done),
            "least_bytes": lacking * sum(server.layout(key).parameter_bytes for key in states),
            "state_bytes": server.num_bytes,
        }
