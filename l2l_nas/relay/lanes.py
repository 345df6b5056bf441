"""Lanes: what runs beside the layers. Copies up and down and host updates, each lane in a thread.

Which work of a lane is done first: see [Note: order] in `schedule.py`. A step of a plan is submitted with the futures
of the steps it must wait for. On a CPU a future is done when the work is done; on CUDA when the work is issued, and
then carries a mark that streams and threads can wait for.

[Note: no hang] A worker finishes every future, whatever happens: with the error of its work, or with that of a step it
waited for. So an exception in a lane reaches the caller as soon as it waits for anything that depends on it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from l2l_nas.eps.exchange import Exchanged
from l2l_nas.errors import L2LError, LaneError
from l2l_nas.relay.device import Device
from l2l_nas.relay.trace import EXCHANGES, NET, Trace

_NO_RANGE = contextlib.nullcontext()


class Future:
    """Says when a piece of work is done, or how it failed; that of `concurrent.futures` takes four times as long."""

    __slots__ = ("_lock", "error", "is_done", "lane", "mark", "number")

    def __init__(self, lane: str = "host", number: int = 0) -> None:
        self.lane, self.number = lane, number
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_done = False
        self.error: BaseException | None = None
        self.mark: Any = None

    def finish(self, *, mark: Any = None, error: BaseException | None = None) -> None:
        self.mark, self.error, self.is_done = mark, error, True
        self._lock.release()

    def wait(self) -> None:
        """Wait until the work is done (on CUDA: issued), or failed."""
        if not self.is_done:
            with self._lock:
                pass

    def is_over(self) -> bool:
        """Whether the work is done (on CUDA: issued), without an error; then there is nothing to wait for."""
        if not self.is_done:
            return False
        self.wait()
        return self.error is None


class Label(NamedTuple):
    """What a piece of work is: for errors and traces."""

    op: str
    layer: str = ""
    step: int = -1

    def profiled(self) -> AbstractContextManager[object]:
        """A range of this name in torch's profiler, and in NVTX within `emit_nvtx`; nothing where neither runs."""
        # torch's flag of the whole process: `torch.autograd._profiler_enabled` asks for this thread's profiler alone
        if not torch.autograd.profiler._is_profiler_enabled:
            return _NO_RANGE
        step = f" of step {self.step}" if self.step >= 0 else ""
        return torch.autograd.profiler.record_function(f"l2l_nas: {self.op} {self.layer}".rstrip() + step)


_AT_WORK = threading.local()  # its `label` is of the work that a thread does


def work_of_thread() -> Label:
    """What this thread does; a label without an operation where it does no work of a plan."""
    label: Label = getattr(_AT_WORK, "label", _NO_WORK)
    return label


_NO_WORK = Label("")


@dataclass
class CancelToken:
    """Holds the first error of a step; what has not begun by then is not done."""

    error: BaseException | None = None
    has_passed: bool = False  # the step counts whatever fails from now on: what is left of it is done, each by itself


@dataclass(frozen=True)
class LaneWork:
    """A piece of work for a lane."""

    lane: str
    do: Callable[[], None]
    after: tuple[Future, ...]
    label: Label
    cancel: CancelToken
    future: Future
    rank: int = 0


class Lanes:
    """Runs work in lanes.

    Args:
        threads: a worker thread for each lane; without, work is done where it is submitted, in the order of the plan.
    """

    def __init__(self, device: Device, *, threads: bool, trace: Trace | None = None) -> None:
        self.is_beside = threads
        self._device = device
        self._trace = trace
        # by lane, its thread, which ends with this or with the process, and the work that waits for it
        self._threads: dict[str, tuple[ThreadPoolExecutor, list[LaneWork]]] = {}
        self._numbers = itertools.count()
        self._timed: list[tuple[str, Label, Any, Any]] = []  # work, and the marks around it
        self._origin: tuple[Any, float] | None = None  # a mark, and the host's time at it

    def submit(
        self,
        lane: str,
        do: Callable[[], None],
        *,
        after: Iterable[Future],
        label: Label,
        cancel: CancelToken,
        rank: int = 0,
    ) -> Future:
        """Have work done in a lane, after other work; of the host's that may begin, the least rank goes first."""
        work = LaneWork(lane, do, tuple(after), label, cancel, Future(lane, next(self._numbers)), rank)
        if self.is_beside:
            if lane not in self._threads:
                self._threads[lane] = _new_thread(lane, self._device.host_threads), []
            thread, waiting = self._threads[lane]
            waiting.append(work)
            thread.submit(self._run_next, waiting)
        else:
            self._run(work)
        return work.future

    def compute(self, do: Callable[[], None], *, after: Iterable[Future], label: Label, cancel: CancelToken) -> Future:
        """Do work in this thread, after other work; raises what it, or something it waits for, raised."""
        work = LaneWork("compute", do, tuple(after), label, cancel, Future("compute", next(self._numbers)))
        self._run(work)
        if work.future.error is not None:
            raise work.future.error
        return work.future

    def wait(self, futures: Iterable[Future]) -> None:
        """Wait until all of them are done on the device too; then raise the first error among them."""
        error = None
        for future in futures:
            future.wait()
            self._device.wait(future.mark)
            error = error or future.error
        if error is not None:
            raise error

    def note_exchange(self, done: Exchanged) -> None:
        """Trace an exchange between ranks, in the thread that did it: it is part of a load or a send, or of no work."""
        if self._trace is not None:
            label = work_of_thread()
            name = done.of or label.layer
            self._trace.add(NET, EXCHANGES[done.channel], name, label.step, done.start_s, done.end_s)

    def close(self) -> None:
        while self._threads:
            self._threads.popitem()[1][0].shutdown()

    def _run_next(self, waiting: list[LaneWork]) -> None:
        try:
            index = self._first(waiting)
        except Exception:
            index = 0  # a device that failed says so again when it is waited for, and then the future has the error
        self._run(waiting.pop(index))

    def _first(self, works: list[LaneWork]) -> int:
        if len(works) == 1 or works[0].lane != "host":
            return 0
        ready = [
            (work.rank, index)
            for index, work in enumerate(works)
            if all(future.is_done and self._device.is_over(future.mark) for future in work.after)
        ]
        return min(ready, default=(0, 0))[1]

    def _run(self, work: LaneWork) -> None:
        try:
            error = self._await(work)
            if error is not None:
                work.future.finish(error=error)
                return
            mark = self._do(work)
        except BaseException as caught:
            error = caught
            if work.lane != "compute" and isinstance(caught, Exception) and not isinstance(caught, L2LError):
                error = LaneError(work.label.op, work.label.layer, caught)
                error.__cause__ = caught
            if not work.cancel.has_passed:
                work.cancel.error = work.cancel.error or error
            work.future.finish(error=error)
        else:
            work.future.finish(mark=mark)

    def _await(self, work: LaneWork) -> BaseException | None:
        """Wait in this thread for what must be done, or issued, first."""
        for future in work.after:
            future.wait()
            if future.error is not None:
                return future.error
            if work.lane == "host":
                self._device.wait(future.mark)
        return work.cancel.error

    def _do(self, work: LaneWork) -> Any:
        started = time.perf_counter()
        with self._device.stream(work.lane):
            if work.lane != "host":
                for awaited in _marks(work.after, work.lane):
                    self._device.stream_wait(awaited)
            begun = self._timed_mark() if self._trace is not None else None
            _AT_WORK.label = work.label
            try:
                with work.label.profiled():
                    self._perform(work)
            finally:
                _AT_WORK.label = _NO_WORK
            mark = None if work.lane == "host" else self._device.mark(timed=self._trace is not None)
        if self._trace is not None:
            if mark is None or begun is None:
                self._trace.add(work.lane, *work.label, started, time.perf_counter())
            else:
                self._timed.append((work.lane, work.label, begun, mark))
        return mark

    def _perform(self, work: LaneWork) -> None:
        """Do work that waits for nothing any more, on its lane's stream."""
        work.do()

    def _timed_mark(self) -> Any:
        mark = self._device.mark(timed=True)
        if mark is not None and self._origin is None:
            self._device.wait(mark)
            self._origin = (mark, time.perf_counter())
        return mark

    def flush_trace(self) -> None:
        """Read the device's clocks. Call it when all work is done."""
        timed, self._timed = self._timed, []
        if self._trace is None or self._origin is None:
            return
        mark, zero = self._origin
        for lane, label, begun, ended in timed:
            start, end = (zero + self._device.elapsed_s(mark, point) for point in (begun, ended))
            self._trace.add(lane, *label, start, end)


def _new_thread(lane: str, host_threads: int | None) -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1, f"l2l_nas {lane}")
    threads = torch.get_num_threads()
    thread.submit(_set_up_thread, host_threads).result()
    torch.set_num_threads(threads)  # the thread's own setting stays: OpenMP keeps one for each thread
    return thread


def _set_up_thread(threads: int | None) -> None:
    torch.set_grad_enabled(False)
    if threads is not None:
        torch.set_num_threads(threads)


def _marks(after: Iterable[Future], lane: str) -> list[Any]:
    """The marks that the stream of a lane is to wait for: of each other stream the last, as it works in order.

    The caller's stream may be another one than in the last step, so that it waits for itself too.
    """
    last: dict[str, Future] = {}
    for future in after:
        if future.mark is not None and (future.lane != lane or lane == "compute"):
            latest = last.setdefault(future.lane, future)
            if latest.number < future.number:
                last[future.lane] = future
    return [future.mark for future in last.values()]
