"""What each rank knows of the others: a thread that writes what this one does, and reads what they do.

Who failed is found by `blame.py`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.distributed import Store, Work  # type: ignore[attr-defined]

from l2l_nas.errors import RankError, one_line
from l2l_nas.parallel.beats import Beat, Failure
from l2l_nas.parallel.blame import Known, Seen
from l2l_nas.parallel.processes import Life, Process

_PERIOD_S = 0.25
_HURRY_S = 0.01  # while ranks meet
_LEAST_POLL_S, _MOST_POLL_S = 0.0002, 0.005
_GONE_S = 1.5  # of a rank on another machine: no beats for so long after a connection broke
_ANSWER_S = 2.0  # for the store, to keep a failure
_LAST_BEAT_S = 1.0


class TimeHere:
    """Seconds while this process ran: not those for which it was stopped."""

    def __init__(self) -> None:
        self.now = time.monotonic()

    def passed_s(self) -> float:
        """Since the last call; often called."""
        before, self.now = self.now, time.monotonic()
        return min(self.now - before, 2 * _PERIOD_S)


class RankWatch:
    """What this rank does, and what the others do.

    Args:
        store: a connection that nothing else uses, with this generation's keys.
        ranks: the processes, in order.
        rank: which of them is this one.
        patience_s: how long a rank may make no progress while another one waits.
        store_rank: the rank that holds the store; None if the launcher does.
    """

    def __init__(
        self, store: Store, ranks: Sequence[Process], rank: int, *, patience_s: float, store_rank: int | None
    ) -> None:
        self.rank = rank
        self.patience_s = patience_s
        self._store, self._store_rank = store, store_rank
        self._ranks = ranks
        self._lock = threading.RLock()
        self._own = Beat()
        self._note = ""
        self._seen = {other: Seen(Beat()) for other in range(len(ranks)) if other != rank}
        self._failure: Failure | None = None
        self._reported: Failure | None = None
        self._known = threading.Event()
        self._wake = threading.Event()
        self._pace_s = _PERIOD_S
        self._looks = 0
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
    def doing(self) -> str:
        """What this rank does, as it would be reported."""
        return self._own.doing

    @contextmanager
    def inside(self, channel: str, what: str = "") -> Iterator[None]:
        """Around an exchange.

        Args:
            channel: its queue: of all ranks, or of those it names, as in "divided@0,2".
            what: is exchanged, such as the key of a layer.
        """
        self.check()
        with self._lock:
            number = self._own.begun.get(channel, 0) + 1
            place = f"{channel.partition('@')[0]} {number}" + f" of {what}" * bool(what)
            self._inside.append(place)
            self._step(begun={**self._own.begun, channel: number}, doing=self._placed(f"in {place}"), waits=True)
        try:
            yield
        finally:
            with self._lock:
                self._inside.remove(place)
                place = f"in {self._inside[-1]}" if self._inside else f"after {place}"
                self._step(doing=self._placed(place), waits=bool(self._inside))

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
        return self.report(self._what_is_known().failed(text, is_of_all=is_of_all, goes_on=goes_on))

    def _learn(self, failure: Failure) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = failure
        self._known.set()

    # waiting

    def complete(self, *starts: Callable[[], Work | None]) -> None:
        """Start what makes up an exchange, and wait until all of it is done.

        Raises:
            RankError: another rank failed meanwhile, or did not come.
        """
        works: list[Work] = []
        try:
            works += [work for work in (start() for start in starts) if work is not None]
            while works:
                self.until(works[0].is_completed)
                works[0].wait()
                del works[0]
        except RuntimeError as error:
            raise self.explain(error) from None
        finally:
            works.clear()  # they hold the group's connections, and a traceback would hold them

    def until(self, is_done: Callable[[], bool]) -> None:
        """Wait until something is so that depends on the other ranks.

        Raises:
            RankError: one of them failed meanwhile, or made no progress.
        """
        begun, time_here = time.monotonic(), TimeHere()
        waited_s = unanswered_s = 0.0
        looks = self._looks
        while not is_done():
            self.check()
            time.sleep(min(max(_LEAST_POLL_S, (time_here.now - begun) / 20), _MOST_POLL_S))
            passed_s = time_here.passed_s()
            waited_s += passed_s
            unanswered_s = unanswered_s + passed_s if self._looks == looks else 0.0
            looks = self._looks
            if unanswered_s >= self.patience_s:
                self.report(self._store_is_silent())
            elif waited_s >= self.patience_s:
                failure = self._what_is_known().overdue(waited_s)
                if failure is not None:
                    self.report(failure)

    def others(self, are: Callable[[Beat], bool]) -> bool:
        """Whether the last beats of all other ranks are so."""
        with self._lock:
            return all(are(seen.beat) for seen in self._seen.values())

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Within it, beats come as fast as ranks that meet need them."""
        self._pace_s = _HURRY_S
        self._wake.set()
        try:
            yield
        finally:
            self._pace_s = _PERIOD_S

    # beginning anew, and the end

    def begin_epoch(self) -> int:
        """Forget the failure, wait until all ranks have done so; returns the number of the new epoch.

        Raises:
            RankError: one of them ended, or did not come.
        """
        end = time.monotonic() + self.patience_s
        while self._inside:  # other threads notice the failure within milliseconds
            assert time.monotonic() < end, f"a thread is {self.doing} while ranks begin anew"
            time.sleep(_MOST_POLL_S)
        with self._lock:
            epoch = self._own.epoch + 1
            self._failure = self._reported = None
            self._known.clear()
            self._step(epoch=epoch, begun={"rejoin": epoch}, waits=True, doing=self._placed("in rejoin"))
        with self.hurrying():
            self.until(lambda: self.others(lambda beat: beat.epoch >= epoch))
        with self._lock:
            self._step(waits=bool(self._inside), doing=self._placed("after rejoin"))
        return epoch

    def linger(self, most_s: float) -> None:
        """Wait until all other ranks that live have left, but not long: before a process ends that holds the store."""
        end = time.monotonic() + most_s
        failed = None if self._failure is None else self._failure.rank
        with self.hurrying():
            while time.monotonic() < end and self._thread.is_alive():
                with self._lock:
                    waiting = [rank for rank, seen in self._seen.items() if not (seen.beat.has_left or rank == failed)]
                if all(self._ranks[rank].life() is Life.ENDED for rank in waiting):
                    return
                time.sleep(_HURRY_S)

    def leave(self) -> None:
        """Say that this rank is done; its end is no failure any more."""
        with self._lock:
            self._step(has_left=True)
        self._wake.set()
        self._thread.join(_LAST_BEAT_S)

    # the thread

    def _run(self) -> None:
        time_here = TimeHere()
        while True:
            if self._store_rank in self._seen and self._ranks[self._store_rank].life() is Life.ENDED:
                self._store_broke("")
                return
            try:
                beats = self._talk()
                if beats is None:
                    return
                self._look(beats, time_here.passed_s())
            except RuntimeError as error:
                self._store_broke(one_line(str(error), most=200))
                return
            self._looks += 1
            self._wake.wait(self._pace_s)
            self._wake.clear()

    def _talk(self) -> dict[int, Beat] | None:
        """Write this rank's beat and its failure; returns the beats of the others, or None after the last one."""
        with self._lock:
            self._own = dataclasses.replace(self._own, count=self._own.count + 1)
            own, reported, failure = self._own, self._reported, self._failure
        key = f"failure/{own.epoch}"
        if failure is None:
            found = b""
            if reported is not None:
                found = _as_bytes(self._store.compare_set(key, "", reported.written()))
            elif self._store.check([key]):
                found = self._store.get(key)
            with self._lock:
                if found and self._own.epoch == own.epoch:
                    self._learn(Failure.read(found))
        self._store.set(f"beat/{self.rank}", own.written())
        if own.has_left:
            return None  # the process that holds the store may end now
        beats = self._store.multi_get([f"beat/{rank}" for rank in self._seen])
        return {rank: Beat.read(beat) for rank, beat in zip(self._seen, beats, strict=True)}

    def _look(self, beats: dict[int, Beat], passed_s: float) -> None:
        """Compare beats with the last ones, and see which processes of this machine are gone."""
        with self._lock:
            for rank, seen in self._seen.items():
                beat = beats[rank]
                seen.silent_s = 0.0 if beat.count != seen.beat.count else seen.silent_s + passed_s
                seen.still_s = 0.0 if beat.progress != seen.beat.progress else seen.still_s + passed_s
                seen.beat = beat
            living = [rank for rank, seen in self._seen.items() if not seen.beat.has_left]
        if self._failure is not None or self._reported is not None:
            return
        for rank in living:
            if self._ranks[rank].life() is Life.ENDED:
                last = Beat.read(self._store.get(f"beat/{rank}"))
                with self._lock:
                    self._seen[rank].beat = last
                if not last.has_left:  # it may have left since its last beat was read
                    with self._lock:
                        self._reported = self._reported or self._what_is_known().gone(rank)
                    self._wake.set()
                    return

    # who failed

    def _what_is_known(self) -> Known:
        with self._lock:
            seen = {rank: dataclasses.replace(one) for rank, one in self._seen.items()}
            return Known(self.rank, self._own, seen, self._ranks, self.patience_s)

    def _lowest_but(self, failed: int | None) -> int:
        return next(rank for rank in range(len(self._ranks)) if rank != failed)

    def explain(self, error: RuntimeError) -> RankError:
        """What to raise after torch said that a connection broke: that names the rank."""
        self._find_who_broke(one_line(str(error), most=300))
        assert self._failure is not None
        return self._failure.as_error()

    def _find_who_broke(self, said: str) -> None:
        """After a connection broke: find out whose, and report it."""
        waited_s, time_here = 0.0, TimeHere()
        while waited_s < 2 * _GONE_S:
            if self._known.wait(_LEAST_POLL_S * 100):
                return
            waited_s += time_here.passed_s()
            known = self._what_is_known()
            gone = known.most_silent(_GONE_S)
            if gone is not None and waited_s >= _GONE_S:
                self.report(known.gone(gone))
                return
        self.report(Failure(f"an exchange broke {self.doing}: {said}", by=self.rank))

    def _store_is_silent(self) -> Failure:
        if self._store_rank is not None:
            return self._what_is_known().silent(self._store_rank)
        return Failure(f"the launcher's store did not answer for {self.patience_s:g} s", by=self.rank)

    def _store_broke(self, said: str) -> None:
        """The process that holds the store has ended; nothing can be agreed on any more."""
        if self._store_rank is None:
            self._learn(Failure(f"the launcher's store is gone: the launcher ended, or its machine ({said})", by=0))
        else:
            lowest = self._lowest_but(self._store_rank)
            self._learn(self._what_is_known().gone(self._store_rank, by=lowest))


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
