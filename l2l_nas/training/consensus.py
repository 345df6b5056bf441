"""What the ranks of a run decide alike: whatever depends on time, signals, files or the user is decided once for all.

[Note: ranks of a run] All ranks run the same program on the same data, so they call the same exchanges in the same
order. What they might see differently is agreed on at fixed places: between two steps, whether a save is due and
whether to stop; before a trial, which architecture it is and what it costs. Rank 0 decides, or any rank may say yes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from l2l_nas.eps.agreement import all_gather_bytes, all_reduce_min
from l2l_nas.eps.exchange import Alone, Exchange
from l2l_nas.errors import L2LError, RankError, TrialError, failure_of, is_of_trial, one_line

if TYPE_CHECKING:
    from l2l_nas.parallel.mesh import WorldMesh


@dataclass(frozen=True)
class Peers:
    """What concerns the other ranks, and is no exchange.

    Args:
        note: has them know what this one does, which they take for progress.
        tell: has them raise a `RankError`, as this one has failed.
        rejoin: begins anew after a failure that all ranks survived; all of them call it.
        mesh: the ranks as a grid, of which so many share each layer; all of them call it.
    """

    note: Callable[[str], None]
    tell: Callable[[BaseException], object]
    rejoin: Callable[[], None]
    mesh: Callable[[int], WorldMesh]


class Consensus:
    """Agrees by an exchange; a process without other ranks decides by itself.

    Args:
        exchange: with the other ranks.
        peers: these.
    """

    def __init__(self, exchange: Exchange | None = None, peers: Peers | None = None) -> None:
        self.exchange: Exchange = Alone() if exchange is None else exchange
        self._peers = peers
        self._is_alone = False
        self._doing = ""

    def mesh(self, tensor: int) -> WorldMesh:
        """The ranks as a grid, of which so many share each layer; all of them call it."""
        assert self._peers is not None
        return self._peers.mesh(tensor)

    def note(self, what: str) -> None:
        """Have the other ranks know what this one does."""
        self._doing = what
        if self._peers is not None:
            self._peers.note(what)

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Have the other ranks know what this one does meanwhile; an error within it leaves it at that."""
        before = self._doing
        self.note(what)
        yield
        if before:
            self.note(before)

    def failure(self, error: Exception, settle: Callable[[], None]) -> tuple[L2LError, bool]:
        """What an architecture has failed with, in the same words on all ranks; and whether all failed alike.

        All ranks call it after a rank has failed: those that it has made fail have a `RankError`.

        Args:
            error: of this rank.
            settle: ends what is under way; called when the other ranks know.

        Raises:
            Exception: the error, where the architecture is not at fault.
        """
        if self.size == 1:
            return failure_of(error), True
        assert self._peers is not None
        own = None
        if not (isinstance(error, RankError) and error.goes_on):
            own = one_line(str(failure_of(error)))
            self._peers.tell(error)
        settle()
        self._peers.rejoin()
        texts = self.every(own)
        return TrialError(next(text for text in texts if text is not None)), len(set(texts)) == 1

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self._is_alone else self.exchange.size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which has the folder and the terminal; a single process is."""
        return self.exchange.rank == 0

    def every(self, value: Any) -> list[Any]:
        """The values of all ranks, as JSON gives them back; all ranks call it."""
        if self.size == 1:
            return [value]
        return [json.loads(data) for data in all_gather_bytes(self.exchange, json.dumps(value).encode())]

    def first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, as JSON gives it back; all ranks call it, and rank 0 alone calls `make`.

        Raises:
            TrialError: it raised an error for which an architecture is at fault; rank 0 raises its own.
        """
        if self.size == 1:
            return make()
        content: dict[str, Any] = {}
        error: Exception | None = None
        if self.is_first:
            try:
                with self.working("a decision for all ranks"):
                    content = {"value": make()}
            except Exception as raised:
                if not is_of_trial(raised):
                    raise  # it ends all ranks
                error = failure_of(raised)
                content = {"error": one_line(str(error))}
        content = self.every(content)[0]
        if error is not None:
            raise error
        if "error" in content:
            raise TrialError(content["error"])
        return content["value"]

    def any(self, is_so: bool) -> bool:
        """Whether it is so on any rank; all ranks call it."""
        if self.size == 1:
            return is_so
        return not all_reduce_min(self.exchange, int(not is_so), "whether it is so")

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While this rank does what takes long and exchanges nothing: the others wait patiently."""
        if self.size == 1:
            yield
            return
        with self.exchange.working(what):
            yield

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """The same, of rank 0: what is decided meanwhile it decides by itself."""
        with self.working(what):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False
