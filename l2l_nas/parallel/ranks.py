"""The exchange of ranks over process groups of `torch.distributed`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup, Work

from l2l_nas.eps.exchange import Channel
from l2l_nas.errors import L2LError, NonFiniteError, described, is_of_trial, raised_where
from l2l_nas.parallel.beats import Failure
from l2l_nas.parallel.watch import RankWatch, Waiting

_RECORD_BYTES = 192
_NOTE_S = 2.0
# what a line calls the exchanges of a channel: "step 70" would be taken for a training step
_CALLED = {Channel.LOAD: "load", Channel.SEND: "send", Channel.STEP: "agreement"}
# from here on gloo gathers faster by a broadcast from each rank, two at a time: see docs/decisions.md
_LARGE_BYTES = 1 << 20


class GroupExchange:
    """An `Exchange`: a process group for each channel, and a watch over the other ranks.

    Tensors travel as bytes, so all dtypes do.

    Args:
        watch: of this rank.
        size: how many ranks there are.
        members: which of them exchange; None: all.
        has_checks: whether ranks compare operation, shape and dtype before each exchange. Where they differ, gloo
            would abort the process. It costs one more message each time, so only tests have it.
    """

    def __init__(
        self, watch: RankWatch, size: int, *, members: Sequence[int] | None = None, has_checks: bool = False
    ) -> None:
        self._watch, self.members = watch, tuple(range(size) if members is None else members)
        self.rank, self.size = self.members.index(watch.rank), len(self.members)
        self._some = members
        self._groups: Mapping[Channel, ProcessGroup] = {}
        self._has_checks = has_checks

    def use(self, groups: Mapping[Channel, ProcessGroup]) -> None:
        """Go through these groups from now on; none: no exchange is possible."""
        self._groups = dict(groups)

    def all_gather(self, part: Tensor, whole: Tensor, channel: Channel, of: str = "") -> None:
        assert whole.shape == (self.size, *part.shape), f"{tuple(part.shape)} in {tuple(whole.shape)}"
        sent, received = _bytes(part), _bytes(whole)
        with self._watch.inside(_CALLED[channel], of, members=self._some) as waiting:
            self._compare("gathers", part, channel, waiting)
            if len(received) >= _LARGE_BYTES:
                whole[self.rank].copy_(part)
                rows = received.view(self.size, -1)
                waiting.complete(*(self._send_of(rank, rows[rank], channel) for rank in range(self.size)))
            elif len(sent):
                waiting.complete(lambda: self._groups[channel]._allgather_base(received, sent))

    def all_to_all(self, parts: Tensor, received: Tensor, channel: Channel, of: str = "") -> None:
        assert parts.shape == received.shape
        assert len(parts) == self.size
        sent, got = _bytes(parts), _bytes(received)
        with self._watch.inside(_CALLED[channel], of, members=self._some) as waiting:
            self._compare("swaps", parts, channel, waiting)
            if len(sent):
                waiting.complete(lambda: self._groups[channel].alltoall_base(got, sent, [], []))

    def _send_of(self, rank: int, row: Tensor, channel: Channel) -> Callable[[], Work | None]:
        return lambda: distributed.broadcast(row, group_src=rank, group=self._groups[channel], async_op=True)

    def note(self, what: str) -> None:
        """Say what this rank does from now on, for the errors of others; it also counts as progress."""
        self._watch.note(what)

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """See `Exchange.working`. An error leaves it at that."""
        before, done = self._watch.noted, threading.Event()

        def tell() -> None:
            while not done.wait(_NOTE_S):
                self.note(self._watch.noted)

        self.note(what)
        thread = threading.Thread(target=tell, name="l2l_nas works", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        self.note(before)

    def tell(self, error: BaseException) -> Failure:
        """Have the other ranks raise a `RankError`; returns the failure that counts, which may be another rank's."""
        said = described(error, most=600)
        kind = type(error).__name__
        # our own errors are sentences that say where
        text = said if isinstance(error, L2LError) or said == kind else f"{kind}: {said}{raised_where(error)}"
        number = _number_in(error)  # all ranks find the same one
        if number is not None and number.is_own is False:
            self._watch.wait_for_failure(self._watch.patience_s)  # the rank that it came from says so
        is_of_all = number is not None and not number.is_own
        return self._watch.failed_here(text, is_of_all=is_of_all, goes_on=is_of_trial(error))

    def _compare(self, what: str, tensor: Tensor, channel: Channel, waiting: Waiting) -> None:
        if not self._has_checks:
            return
        text = f"{what} {tuple(tensor.shape)} {tensor.dtype}".encode()[:_RECORD_BYTES]
        own = torch.frombuffer(bytearray(text.ljust(_RECORD_BYTES)), dtype=torch.uint8)
        records = torch.empty(self.size * _RECORD_BYTES, dtype=torch.uint8)
        waiting.complete(lambda: self._groups[channel]._allgather_base(records, own))
        texts = [bytes(one.tolist()).decode().rstrip() for one in records.view(self.size, -1)]
        for rank, other in zip(self.members, texts, strict=True):
            if other != texts[0]:
                line = f"in {_CALLED[channel]}, rank {self.members[0]} {texts[0]}, and rank {rank} {other}"
                raise self._watch.report(Failure(line, by=self.rank)).as_error()


def _number_in(error: BaseException | None) -> NonFiniteError | None:
    """The number that is not finite which led to an error."""
    while error is not None and not isinstance(error, NonFiniteError):
        error = error.__cause__
    return error


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as one row of bytes."""
    assert tensor.device.type == "cpu", "tensors of an exchange lie in host memory"
    assert tensor.is_contiguous()
    return tensor.reshape(-1).view(torch.uint8)


class WatchedReducer:
    """Sums over the ranks that share a layer, under the watch: a `Reducer` of `parallel/collectives.py`.

    One thread uses it at a time, and nothing else its group.

    Args:
        watch: of this rank.
        group: of torch.distributed; None: all ranks, also after they joined anew.
    """

    is_joined = True

    def __init__(self, watch: RankWatch, group: ProcessGroup | None = None) -> None:
        self._watch, self._group = watch, group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._members = distributed.get_process_group_ranks(group)

    def use(self, group: ProcessGroup) -> None:
        """Go through this group of the same ranks from now on."""
        self._group = group

    def sum(self, tensor: Tensor) -> None:
        self._reduce(tensor, distributed.ReduceOp.SUM)

    def maximum(self, tensor: Tensor) -> None:
        self._reduce(tensor, distributed.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, op: distributed.ReduceOp.RedOpType) -> None:
        with self._watch.inside("divided", members=self._members) as waiting:
            waiting.complete(lambda: distributed.all_reduce(tensor, op, group=self._group, async_op=True))
