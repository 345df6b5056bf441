"""Segments on any `concurrent.futures.Executor`.

[Note: a worker that is lost] What a lost process was doing is done again. An executor that breaks with it, as a pool of
processes does, is opened anew; nobody knows then whose segment was at fault, so that each that was running is a suspect
and runs alone. A segment at which too many workers ended is given up (`retries.py`): its trial has failed then.

[Note: stopping] A stop lets segments that train the shared weights come to their end, as a single process does; all
else is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import WorkerError
from l2l_nas.nas.evaluation.engines import Engine
from l2l_nas.nas.evaluation.evaluator import AfterStep
from l2l_nas.nas.evaluation.executor import no_step
from l2l_nas.nas.evaluation.remote import Message, error_of, greet, result_of, run_segments, segment_content
from l2l_nas.nas.evaluation.segment import Segment, SegmentResult
from l2l_nas.nas.retries import ATTEMPTS, is_given_up, why_given_up

_TICK_S = 0.1  # how often it is asked whether to stop
_PATIENCE_S = 20.0  # after so long without workers that is said


class WorkerWatch(Protocol):
    """Is told of workers."""

    def poll(self) -> None:
        """May raise `Stopped`."""

    def waiting(self, text: str) -> None:
        """Nothing goes on, because of this. May raise `Stopped`."""

    def lost(self, *, ended: str, task: str, again: bool) -> None:
        """A worker ended.

        Args:
            ended: how.
            task: what it was doing.
            again: whether that is done again.
        """


@dataclass(eq=False)
class _Task:
    """Segments that one worker runs; more than one are scored together.

    Attributes:
        deaths: how many workers were lost while they did it.
    """

    parts: list[tuple[Segment, AfterStep]]
    deaths: int = 0
    future: Future[list[Message]] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return ", ".join(segment.name for segment, _ in self.parts)


class FuturesExecutor:
    """Runs segments on an engine; see `SegmentExecutor`.

    Args:
        open_engine: makes the executor, also again after it broke.
        server: the shared weights; its loss scale goes with segments and comes back with results.
        workers: how many segments run at a time.
        group: how many are scored together.
        watch: is told.
        identity: what each worker must say of the pool and the data that it built.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        server: ParamServer,
        *,
        workers: int,
        group: int,
        watch: WorkerWatch,
        identity: Message,
    ) -> None:
        self.size = workers * group
        self._open, self._server, self._workers, self._group = open_engine, server, workers, group
        self._watch, self._identity = watch, identity
        self._engine: Engine | None = None
        self._is_ready = False
        self._single: deque[tuple[Segment, AfterStep]] = deque()
        self._tasks: deque[_Task] = deque()
        self._running: list[_Task] = []
        self._names: dict[str, int] = {}
        self._stop: Exception | None = None

    def submit(self, segment: Segment, *, after_step: AfterStep = no_step) -> None:
        """See `SegmentExecutor`."""
        self._single.append((segment, after_step))

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """See `SegmentExecutor`."""
        self._gather()
        found: list[tuple[Segment, SegmentResult]] = []
        while (self._tasks or self._running) and (not found or self._stop is not None):
            self._start_some()
            futures = [task.future for task in self._running if task.future is not None]
            done, _ = wait(futures, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            for task in sorted((task for task in self._running if task.future in done), key=_has_failed):
                if task in self._running:  # else it was lost with another one
                    found += self._take(task)
            self._poll()
        if not found and self._stop is not None:
            raise self._stop
        return found

    def open(self) -> Engine:
        """Open the engine, or raise what is wrong with it."""
        if self._engine is None:
            self._engine, self._is_ready = self._open(), False
        return self._engine

    def close(self) -> None:
        """End the workers, and what they do."""
        if self._engine is not None:
            self._cancel(task.future for task in self._running)
            self._engine.end()
            self._engine = None

    def _cancel(self, futures: Iterable[Future[Any] | None]) -> None:
        for future in futures:
            if self._engine is not None and future is not None and not future.done():
                self._engine.cancel(future)

    def _gather(self) -> None:
        """Make tasks of what was submitted."""
        while self._single:
            parts = [self._single.popleft()]
            while (
                self._single and len(parts) < self._group and all(s.only_scores for s, _ in (parts[0], self._single[0]))
            ):
                parts.append(self._single.popleft())
            self._tasks.append(_Task(parts))

    def _start_some(self) -> None:
        """Start as many tasks as there are workers; a suspect alone. See [Note: a worker that is lost]."""
        while self._tasks and self._stop is None and len(self._running) < self._workers:
            if self._running and (self._tasks[0].deaths or self._running[0].deaths):
                return
            task = self._tasks.popleft()
            messages = [segment_content(segment, self._server) for segment, _ in task.parts]
            engine = self._ready_engine()
            self._running.append(task)
            try:
                task.future = engine.submit(run_segments, messages)
            except engine.lost as error:  # it broke since its last future
                self._lose(self._running if engine.breaks else [task], error)

    def _ready_engine(self) -> Engine:
        """The engine, once its workers have built the same pool and data as here."""
        last: BaseException | None = None
        for _ in range(ATTEMPTS):
            engine = self.open()
            try:
                if not self._is_ready:
                    for answer in self._greet(engine):
                        self._check(answer)
                    self._is_ready = True
                return engine
            except engine.lost as error:
                last = error
                if engine.breaks:
                    self.close()
        raise WorkerError(f"worker processes end before they are ready ({last}); try executor=inline")

    def _greet(self, engine: Engine) -> list[Message]:
        """What each worker says of what it has built; waits for all of them, and may be stopped meanwhile."""
        futures = [engine.submit(greet) for _ in range(self._workers)]
        began = time.monotonic()
        try:
            while left := wait(futures, timeout=_TICK_S).not_done:
                self._watch.poll()
                if time.monotonic() - began > _PATIENCE_S:
                    self._watch.waiting(f"{len(futures) - len(left)} of {len(futures)} workers are ready")
        finally:
            self._cancel(futures)
        return [future.result() for future in futures]

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
        assert task.future is not None
        engine = self._engine
        try:
            contents = task.future.result()
        except CancelledError as error:
            return self._lose([task], error)
        except Exception as error:
            if engine is None or not isinstance(error, engine.lost):
                raise
            return self._lose(self._running if engine.breaks else [task], error)
        self._running.remove(task)
        if "failure" in contents[0]:
            raise error_of(contents[0]["failure"])
        found = []
        for (segment, after_step), content in zip(task.parts, contents, strict=True):
            for loss in content["losses"]:
                after_step(loss)
            if content["scale"] is not None and segment.is_shared:
                self._server.gradients.scale_losses(content["scale"])
            worker = self._names.setdefault(content["worker"], len(self._names) + 1)
            found.append((segment, result_of(content, self._server, worker)))
        return found

    def _lose(self, tasks: Sequence[_Task], error: BaseException) -> list[tuple[Segment, SegmentResult]]:
        """Have lost tasks done again. Returns results of those that are given up."""
        if self._engine is not None and self._engine.breaks:
            self.close()
            self._names.clear()
        found, ended = [], Engine.ended(error)
        for task in list(tasks):
            self._running.remove(task)
            task.deaths += 1 + getattr(error, "allowed_failures", 0)  # Dask's scheduler has tried so often itself
            given_up = is_given_up(task.deaths)
            again = not given_up and self._stop is None
            self._watch.lost(ended=ended, task=str(task), again=again)
            if given_up:
                reason = WorkerError(why_given_up(task.deaths, ended))
                found += [(segment, SegmentResult(error=reason)) for segment, _ in task.parts]
            elif again:
                self._tasks.extendleft(_Task([part], task.deaths) for part in reversed(task.parts))
        return found

    def _poll(self) -> None:
        """Ask whether to stop, and drop what can be dropped. See [Note: stopping]."""
        if self._stop is not None:
            return
        try:
            self._watch.poll()
        except Exception as stop:
            self._stop = stop
            self._tasks.clear()
            dropped = [task for task in self._running if not all(segment.is_shared for segment, _ in task.parts)]
            self._cancel(task.future for task in dropped)
            self._running = [task for task in self._running if task not in dropped]
            if dropped and not self._running:
                self.close()


def _has_failed(task: _Task) -> bool:
    assert task.future is not None
    return task.future.cancelled() or task.future.exception() is not None
