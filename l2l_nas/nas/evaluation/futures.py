"""Segments on any `concurrent.futures.Executor`.

[Note: a worker that is lost] What a lost process was doing is done again. An executor that breaks with it, as a pool of
processes does, is opened anew; nobody knows then whose segment was at fault, so that each that was running is a suspect
and runs alone. A segment at which three workers ended is taken to be what ends them: its trial has failed then. What
fails with an error is not done again: it would fail the same way.

[Note: workers build early] Each worker builds pool, data and relay when it is first called. It is called as soon as the
engine is open, while this process warms up, and waited for when there is work. A thread of this process would disturb
what this process trains: there the first call does nothing, and another one follows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import WorkerError, described
from l2l_nas.nas.evaluation.engines import Engine, ended
from l2l_nas.nas.evaluation.remote import (
    Message,
    error_of,
    greet,
    process_name,
    result_of,
    run_segment,
    segment_content,
)
from l2l_nas.nas.evaluation.segment import AfterStep, Segment, SegmentResult

ATTEMPTS = 3  # workers that may end at one segment
_TICK_S = 0.1  # how often it is asked whether to stop
_PATIENCE_S = 20.0  # after so long without workers that is said
_PAUSE_S = 1.0  # between greetings of a cluster that lost some


@dataclass(eq=False)
class _Task:
    """A segment that a worker runs.

    Attributes:
        deaths: how many workers were lost while they did it.
        message: what was sent; a thread of this process drops the work where it is emptied.
    """

    segment: Segment
    after_step: AfterStep | None
    deaths: int = 0
    message: Message = field(default_factory=dict, repr=False)
    future: Future[Message] = field(default_factory=Future, repr=False)


class FuturesExecutor:
    """Runs segments on an engine; see `SegmentExecutor`.

    Args:
        open_engine: makes the executor, also again after it broke.
        server: the search's own weights; its loss scale goes with segments.
        workers: how many segments run at a time.
        size: how many are worth submitting at a time.
        identity: what each worker must say of the pool and the data that it built.

    Attributes:
        poll: asked whether to stop; may raise `Stopped`.
        waiting: told, in words, why nothing goes on; may raise `Stopped`.
        lost: told of a worker that ended: how (`ended`), what it was doing (`task`), whether that is done `again`.
        counted: told of the steps of segments that are done.
    """

    poll: Callable[[], None]
    waiting: Callable[[str], None]
    lost: Callable[..., None]

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        server: ParamServer,
        *,
        workers: int,
        size: int,
        identity: Message,
    ) -> None:
        self.size = size
        self._open, self._server, self._workers = open_engine, server, workers
        self._identity = identity
        self._engine: Engine | None = None
        self._greetings: list[Future[Message]] = []  # none: all workers are ready
        self._tasks: deque[_Task] = deque()
        self._running: list[_Task] = []
        self._names: dict[str, int] = {}
        self._stop: Exception | None = None
        self.counted: Callable[[float], None] = lambda steps: None

    def submit(self, segment: Segment, *, after_step: AfterStep | None = None) -> None:
        """See `SegmentExecutor`."""
        self._tasks.append(_Task(segment, after_step))

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """See `SegmentExecutor`."""
        found: list[tuple[Segment, SegmentResult]] = []
        while (self._tasks or self._running) and not found and self._stop is None:
            self._start_some()
            done, _ = wait([task.future for task in self._running], timeout=_TICK_S, return_when=FIRST_COMPLETED)
            for task in sorted((task for task in self._running if task.future in done), key=_has_failed):
                if task in self._running:  # else it was lost with another one
                    found += self._take(task)
            self._stop_if_asked()
        if not found and self._stop is not None:
            raise self._stop
        return found

    def open(self, *, busy: bool = True) -> Engine:
        """Open the engine, or raise what is wrong with it. See [Note: workers build early].

        Args:
            busy: whether this process does something else meanwhile.
        """
        if self._engine is None:
            self._engine = self._open()
            self._greet(self._engine, busy=busy)
        return self._engine

    def close(self) -> None:
        """End the workers, and what they do."""
        if self._engine is not None:
            for future in self._greetings:
                if not future.done():
                    self._engine.cancel(future)
            self._drop(self._running)
            self._engine.end()
            self._engine, self._greetings = None, []

    def _drop(self, tasks: Iterable[_Task]) -> None:
        for task in tasks:
            task.message.clear()
            if self._engine is not None and not task.future.done():
                self._engine.cancel(task.future)

    def _start_some(self) -> None:
        """Start as many tasks as there are workers; a suspect alone. See [Note: a worker that is lost]."""
        while self._tasks and len(self._running) < self._workers:
            if self._running and (self._tasks[0].deaths or self._running[0].deaths):
                return
            engine, task = self._ready_engine(), self._tasks.popleft()
            task.message = segment_content(task.segment, self._server)
            task.future = engine.submit(run_segment, task.message)
            self._running.append(task)
            if task.future.done():  # a worker has ended: what follows would be lost with it
                return

    def _ready_engine(self) -> Engine:
        """The engine, once its workers have built the same pool and data as here."""
        last: BaseException = WorkerError("")
        for _ in range(ATTEMPTS):
            engine = self.open(busy=False)
            try:
                while self._greetings:
                    answers = self._answers()
                    for answer in filter(None, answers):
                        self._check(answer)
                    self._greetings = []
                    if not all(answers):
                        self._greet(engine, busy=False)
                return engine
            except engine.lost as error:
                last = error
                if engine.breaks:
                    self.close()
                else:  # a cluster takes a moment to notice what it has lost
                    self._pause()
                    self._greet(engine, busy=False)
        raise WorkerError(f"worker processes end before they are ready ({described(last)}); try executor=inline")

    def _pause(self) -> None:
        end = time.monotonic() + _PAUSE_S
        while time.monotonic() < end:
            self.poll()
            time.sleep(_TICK_S)

    def _greet(self, engine: Engine, *, busy: bool) -> None:
        name = process_name() if busy else ""
        self._greetings = [engine.submit(greet, name) for _ in range(self._workers)]

    def _answers(self) -> list[Message]:
        """What each worker says of what it has built; waits for all of them, and may be stopped meanwhile."""
        began = time.monotonic()
        while left := wait(self._greetings, timeout=_TICK_S).not_done:
            self.poll()
            if time.monotonic() - began > _PATIENCE_S:
                ready = len(self._greetings) - len(left)
                self.waiting(f"{ready} of {len(self._greetings)} workers are ready")
        return [future.result() for future in self._greetings]

    def _check(self, answer: Message) -> None:
        if "failure" in answer:
            raise error_of(answer["failure"])
        for name, own in self._identity.items():
            if answer["identity"][name] != own:
                raise WorkerError(
                    f"space.pool builds another {name} in a worker process than here; have it give the same each time "
                    "it is called, or use executor=inline"
                )

    def _take(self, task: _Task) -> list[tuple[Segment, SegmentResult]]:
        """The results of a task that is done; none if it is done again."""
        engine = self._engine
        assert engine is not None
        try:
            content = task.future.result()
        except engine.lost as error:
            return self._lose(self._running if engine.breaks else [task], error)
        self._running.remove(task)
        if "failure" in content:
            raise error_of(content["failure"])
        self.counted(content["steps"])
        if task.after_step is not None:
            for loss in content["losses"]:
                task.after_step(loss)
        worker = self._names.setdefault(content["worker"], len(self._names) + 1)
        return [(task.segment, result_of(content["result"], self._server, worker))]

    def _lose(self, tasks: Sequence[_Task], error: BaseException) -> list[tuple[Segment, SegmentResult]]:
        """Have lost tasks done again. Returns results of those that are given up."""
        if self._engine is not None and self._engine.breaks:
            self.close()
            self._names.clear()
        found: list[tuple[Segment, SegmentResult]] = []
        for task in list(tasks):
            self._running.remove(task)
            task.deaths += 1 + getattr(error, "allowed_failures", 0)  # Dask's scheduler has tried so often itself
            again = task.deaths < ATTEMPTS
            self.lost(ended=ended(error), task=task.segment.name, again=again)
            if again:
                self._tasks.appendleft(_Task(task.segment, task.after_step, task.deaths))
            else:
                reason = f"its process ended {task.deaths} times without a result; the last one {ended(error)}"
                found.append((task.segment, SegmentResult(error=WorkerError(reason))))
        return found

    def _stop_if_asked(self) -> None:
        """Ask whether to stop, and drop all work then."""
        try:
            self.poll()
        except Exception as stop:
            self._stop = stop
            self._tasks.clear()
            if self._running:
                self.close()
                self._running.clear()


def _has_failed(task: _Task) -> bool:
    return task.future.cancelled() or task.future.exception() is not None
