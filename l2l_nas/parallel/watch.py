"""What each rank knows of the others: a thread that writes what this one does, and reads what they do.

[Note: who failed] A rank that raises says so itself: the store keeps the first failure of an epoch, and all ranks raise
that one. A rank that is waited for longer than patience has not answered, and is named by the one that waits: it has
not begun the exchange, and has made no progress in that time. One that is gone breaks the connections of the others,
which end; the launcher says which it was.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store, Work  # type: ignore[attr-defined]

from l2l_nas.errors import RankError, one_line
from l2l_nas.parallel.beats import Beat, Failure

_PERIOD_S = 0.25
_LEAST_POLL_S, _MOST_POLL_S = 0.0002, 0.005
_KNOWN_S = 1.0  # within which a failure is known that broke a connection
_ANSWER_S = 2.0  # for the store, to keep a failure
_LAST_BEAT_S = 1.0
_TRANSFER = 10  # times patience, for an exchange that all ranks began


class _TimeHere:
    """Seconds while this process ran: not those for which it was stopped."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def passed_s(self) -> float:
        """Since the last call; often called."""
        before, self.now = self.now, time.monotonic()
        return min(self.now - before, 2 * _PERIOD_S)


@dataclass
class _OtherRank:
    """The last beat of another rank; seconds since then, and since one that showed progress."""

    beat: Beat
    silent_s: float = 0.0
    still_s: float = 0.0


class RankWatch:
    """What this rank does, and what the others do.

    Args:
        store: a connection that nothing else uses, with the keys of these ranks.
        names: of the ranks, in order, as errors say them.
        rank: which of them is this one.
        patience_s: how long a rank may make no progress while another one waits.
        store_rank: the rank that holds the store; None if the launcher does.
    """

    def __init__(
        self, store: Store, names: Sequence[str], rank: int, *, patience_s: float, store_rank: int | None
    ) -> None:
        self.rank, self.names = rank, names
        self.patience_s = patience_s
        self._store, self._store_rank = store, store_rank
        self._lock = threading.RLock()
        self._own = Beat()
        self._epoch = 0
        self._note = ""
        self._seen = {other: _OtherRank(Beat()) for other in range(len(names)) if other != rank}
        self._failure: Failure | None = None
        self._reported: Failure | None = None
        self._known = threading.Event()
        self._wake = threading.Event()
        self.looks = 0
        self._inside: list[str] = []
        self._thread = threading.Thread(target=self._run, name="l2l_nas watch", daemon=True)

    def start(self) -> None:
        """Begin; all ranks must call it. `meet` has written their first beats: a store waits for keys that it lacks."""
        self._thread.start()

    # what this rank does

    def note(self, what: str) -> None:
        """Say what this rank does from now on, such as "step 812"; it is progress, too."""
        with self._lock:
            self._note = what
            self._step(doing=f"in {what}")

    @property
    def noted(self) -> str:
        """What was noted last."""
        return self._note

    @property
    def doing(self) -> str:
        """What this rank does, as it would be reported."""
        return self._own.doing

    @contextmanager
    def inside(self, channel: str, what: str = "", *, members: Sequence[int] | None = None) -> Iterator[Waiting]:
        """Around an exchange.

        Args:
            channel: its queue.
            what: is exchanged, such as the key of a layer.
            members: the ranks that exchange; None: all.
        """
        self.check()
        queue = channel if members is None else f"{channel}@{','.join(map(str, members))}"
        with self._lock:
            number = self._own.begun.get(queue, 0) + 1
            place = f"{channel} {number}" + f" of {what}" * bool(what)
            self._inside.append(place)
            self._step(begun={**self._own.begun, queue: number}, doing=self._placed(f"in {place}"))
        try:
            yield Waiting(self, queue, number, self._seen if members is None else members)
        finally:
            with self._lock:
                self._inside.remove(place)
                self._step(doing=self._placed(f"in {self._inside[-1]}" if self._inside else f"after {place}"))

    def _placed(self, place: str) -> str:
        return f"in {self._note}, {place}" if self._note else place

    def _step(self, **changes: Any) -> None:
        self._own = dataclasses.replace(self._own, progress=self._own.progress + 1, **changes)

    # what ended the epoch

    @property
    def failure(self) -> Failure | None:
        """What ended this epoch, if anything did."""
        return self._failure

    def wait_for_failure(self, most_s: float) -> None:
        """Wait until a failure is known, but not longer."""
        self._known.wait(most_s)

    def check(self) -> None:
        """Raise what ended this epoch.

        Raises:
            RankError: something did.
        """
        if self._failure is not None:
            raise self._failure.as_error()

    def report(self, failure: Failure) -> Failure:
        """Have all ranks know of a failure; returns the one that counts, which another rank may have found earlier."""
        with self._lock:
            self._reported = self._reported or failure
        self._wake.set()
        if not self._known.wait(_ANSWER_S):
            # the store does not answer; whoever is left finds the same, and the lowest of them prints it
            by = self.rank if failure.rank == self.rank else self._lowest_but(failure.rank)
            self._learn(dataclasses.replace(failure, by=by))
        assert self._failure is not None
        return self._failure

    def failed_here(self, text: str, *, is_of_all: bool = False, goes_on: bool = False) -> Failure:
        """Report that this rank failed.

        Args:
            text: how.
            is_of_all: whether all ranks fail with the same, and none is known to be at fault.
            goes_on: see `RankError`.
        """
        line = f"{'all ranks' if is_of_all else self.names[self.rank]} failed {self.doing}: {text}"
        return self.report(Failure(line, by=self.rank, rank=None if is_of_all else self.rank, goes_on=goes_on))

    def explain(self, error: RuntimeError) -> RankError:
        """What to raise after torch said that a connection broke: what that rank said, if it did."""
        if not self._known.wait(_KNOWN_S):
            said = one_line(str(error), most=300)
            line = f"the connection to another rank broke {self.doing}: it was killed, or crashed; see its own output"
            self.report(Failure(f"{line}, and the launcher's ({said})", by=self.rank))
        assert self._failure is not None
        return self._failure.as_error()

    def unanswered(self, ranks: Collection[int], waited_s: float) -> Failure:
        """Of ranks that have not answered for some time."""
        with self._lock:
            doing = {rank: self._seen[rank].beat.doing for rank in sorted(ranks)}
        said = [
            f"{self.names[rank]} did not answer for {waited_s:.0f} s, and was {what}" for rank, what in doing.items()
        ]
        line = "; ".join([*said, f"rank {self.rank} waited {self.doing}"])
        return Failure(line, by=self.rank, rank=next(iter(doing)) if len(doing) == 1 else None)

    def silent_store(self, waited_s: float) -> Failure:
        """Of a store that has not answered for some time."""
        if self._store_rank is not None:
            return self.unanswered([self._store_rank], waited_s)
        return Failure(f"the launcher's store did not answer for {waited_s:.0f} s", by=self.rank)

    def late(self, queue: str, number: int, members: Collection[int], waited_s: float) -> list[int]:
        """Members that have not begun an exchange, or have no beats, and make no progress. See [Note: who failed]."""
        with self._lock:
            still = {r: seen for r, seen in self._seen.items() if r in members and seen.still_s >= self.patience_s}
        if waited_s >= _TRANSFER * self.patience_s:
            return list(still)
        silent_s = self.patience_s / 2
        return [r for r, seen in still.items() if seen.silent_s >= silent_s or seen.beat.begun.get(queue, 0) < number]

    def _learn(self, failure: Failure) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = failure
                self._own = dataclasses.replace(self._own, knows=True)
        self._known.set()

    def _lowest_but(self, failed: int | None) -> int:
        return next(rank for rank in range(len(self.names)) if rank != failed)

    # beginning anew, and the end

    def begin_epoch(self) -> int:
        """Forget the failure; returns the number of the new epoch. All ranks call it, and then join anew."""
        end = time.monotonic() + self.patience_s
        while self._inside:  # other threads notice the failure within milliseconds
            assert time.monotonic() < end, f"a thread is {self.doing} while ranks begin anew"
            time.sleep(_MOST_POLL_S)
        with self._lock:
            self._epoch += 1
            self._failure = self._reported = None
            self._known.clear()
            self._step(begun={"join": self._epoch}, knows=False, doing=self._placed("before join"))
            return self._epoch

    def linger(self, most_s: float) -> None:
        """Wait until all other ranks have left, but not long: before a process ends that holds the store.

        One that failed may never leave; while it answers, it is waited for until it knows that.
        """
        end = time.monotonic() + most_s
        failed = None if self._failure is None else self._failure.rank
        while time.monotonic() < end and self._thread.is_alive():
            with self._lock:
                done = (
                    seen.beat.has_left or (rank == failed and (seen.beat.knows or seen.silent_s >= _LAST_BEAT_S))
                    for rank, seen in self._seen.items()
                )
                if all(done):
                    return
            self._wake.set()
            time.sleep(_MOST_POLL_S)

    def leave(self) -> None:
        """Say that this rank is done."""
        with self._lock:
            self._step(has_left=True)
        self._wake.set()
        self._thread.join(_LAST_BEAT_S)

    # the thread

    def _run(self) -> None:
        time_here = _TimeHere()
        while True:
            try:
                beats = self._talk()
            except RuntimeError as error:
                self._store_broke(one_line(str(error), most=200))
                return
            if beats is None:
                return
            self._look(beats, time_here.passed_s())
            self.looks += 1
            self._wake.wait(_PERIOD_S)
            self._wake.clear()

    def _talk(self) -> dict[int, Beat] | None:
        """Write this rank's beat and its failure; returns the beats of the others, or None after the last one."""
        with self._lock:
            epoch, reported, failure = self._epoch, self._reported, self._failure
        key = f"failure/{epoch}"
        if failure is None:
            found = b""
            if reported is not None:
                found = _as_bytes(self._store.compare_set(key, "", reported.written()))
            elif self._store.check([key]):
                found = self._store.get(key)
            with self._lock:
                if found and self._epoch == epoch:
                    self._learn(Failure.read(found))
        with self._lock:
            own = self._own = dataclasses.replace(self._own, count=self._own.count + 1)
        self._store.set(f"beat/{self.rank}", own.written())
        if own.has_left:
            return None  # the process that holds the store may end now
        beats = self._store.multi_get([f"beat/{rank}" for rank in self._seen])
        return {rank: Beat.read(beat) for rank, beat in zip(self._seen, beats, strict=True)}

    def _look(self, beats: dict[int, Beat], passed_s: float) -> None:
        """Compare beats with the last ones."""
        with self._lock:
            for rank, seen in self._seen.items():
                beat = beats[rank]
                seen.silent_s = 0.0 if beat.count != seen.beat.count else seen.silent_s + passed_s
                seen.still_s = 0.0 if beat.progress != seen.beat.progress else seen.still_s + passed_s
                seen.beat = beat

    def _store_broke(self, said: str) -> None:
        """The process that holds the store has ended; nothing can be agreed on any more."""
        who = "the launcher" if self._store_rank is None else self.names[self._store_rank]
        line = f"{who}, which holds the store of the ranks, has ended: it was killed, or crashed; see its own output"
        self._learn(Failure(f"{line} ({said})", by=self._lowest_but(self._store_rank), rank=self._store_rank))


class Waiting:
    """An exchange that this rank is in; one thread uses it.

    Args:
        watch: of this rank.
        queue: of the exchange.
        number: of the exchange there.
        members: the ranks that exchange.
    """

    def __init__(self, watch: RankWatch, queue: str, number: int, members: Collection[int]) -> None:
        self._watch = watch
        self._late = (queue, number, members)
        self._time, self._looks = _TimeHere(), watch.looks
        self._waited_s = self._unanswered_s = 0.0

    def check(self) -> None:
        """Raise if ranks failed, or have not answered; often called.

        Raises:
            RankError: it names the rank.
        """
        watch, passed_s = self._watch, self._time.passed_s()
        watch.check()
        self._waited_s += passed_s
        self._unanswered_s = self._unanswered_s + passed_s if watch.looks == self._looks else 0.0
        self._looks = watch.looks
        if self._unanswered_s >= watch.patience_s:
            watch.report(watch.silent_store(self._unanswered_s))
        elif self._waited_s >= watch.patience_s and (late := watch.late(*self._late, self._waited_s)):
            watch.report(watch.unanswered(late, self._waited_s))

    def complete(self, *starts: Callable[[], Work | None]) -> None:
        """Start what makes up the exchange, and wait until all of it is done.

        Raises:
            RankError: another rank failed meanwhile, or did not come.
        """
        works: list[Work] = []
        try:
            works += [work for work in (start() for start in starts) if work is not None]
            while works:
                self._until(works[0].is_completed)
                works[0].wait()
                del works[0]
        except RuntimeError as error:
            raise self._watch.explain(error) from None
        finally:
            works.clear()  # they hold the group's connections, and a traceback would hold them

    def _until(self, is_done: Callable[[], bool]) -> None:
        begun = time.monotonic()
        while not is_done():
            time.sleep(min(max(_LEAST_POLL_S, (time.monotonic() - begun) / 20), _MOST_POLL_S))
            self.check()


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
