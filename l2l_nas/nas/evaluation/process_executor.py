"""An executor of worker processes: several trials at once, on shared weights.

Warm-up is not theirs: steps side by side gave worse weights (the log, 2026-11-21). The search's own process does it.

[Note: two at once] Each worker has a second task waiting while it does the first, so that it need not wait for this
process, which may be writing the study or a checkpoint. A sampler hence proposes before it knows the results of up to
twice as many trials as there are workers, less one.

[Note: a worker that is killed] What it was doing is done again by another; so is what it had waiting. A task at which
too many workers ended is given up (`retries.py`): a trial has failed then.

[Note: stopping] A stop lets trials that train the shared weights come to their end, as a single process does; all else
is dropped at the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, WorkerError
from l2l_nas.nas.evaluation.evaluator import Job, Outcome, Trained, Training, population_size
from l2l_nas.nas.evaluation.messages import TrainingAlone, TrialBatch, WorkerTask, error_of, unpack
from l2l_nas.nas.evaluation.worker_pool import Message, Report, WorkerPool
from l2l_nas.nas.objectives import State
from l2l_nas.nas.retries import is_given_up, why_given_up
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.training.score import Score

_TICK_S = 0.1  # how often it is asked whether to stop


class WorkerWatch(Protocol):
    """Is given what becomes of workers."""

    def poll(self) -> None:
        """May raise `Stopped`."""

    def lost(self, worker: int, *, ended: str, task: str, again: bool) -> None:
        """A worker ended.

        Args:
            worker: its number, from 1.
            ended: how.
            task: what it was doing; empty for nothing.
            again: whether that is done again.
        """


class ProcessExecutor:
    """Worker processes; see `TrialExecutor`.

    Args:
        workers: the workers.
        server: the shared weights; its loss scale goes with the tasks and comes back with the answers.
        budget: how much of what.
        watch: is reported.
        identity: what each worker must say of the pool and the data that it built.
    """

    def __init__(
        self, workers: WorkerPool, server: ParamServer, *, budget: Budget, watch: WorkerWatch, identity: Message
    ) -> None:
        self._workers = workers
        self._server = server
        self._watch = watch
        self._identity = identity
        self._group = -(-population_size(server, budget) // (2 * workers.size))
        self.size = 2 * workers.size * self._group
        self._jobs: list[Job] = []
        self._waiting: deque[WorkerTask] = deque()
        self._given: dict[int, list[WorkerTask]] = {}  # by worker
        self._stillborn = 0
        self._stop: Exception | None = None

    def submit(self, job: Job) -> None:
        """See `TrialExecutor`."""
        self._jobs.append(job)

    def finished(self) -> list[tuple[Job, Outcome]]:
        """See `TrialExecutor`."""
        jobs, self._jobs = self._jobs, []
        if self._stop is None:
            self._waiting += [
                TrialBatch(jobs[start : start + self._group]) for start in range(0, len(jobs), self._group)
            ]
        found: list[tuple[Job, Outcome]] = []
        while self._is_busy and (not found or self._stop is not None):
            for task, report in self._exchange(depth=2):
                found += _outcomes(task, report)
        if not found and self._stop is not None:
            raise self._stop
        return found

    def train_alone(self, trainings: Sequence[Training], *, after_step: Callable[[float], None]) -> Iterator[Trained]:
        """See `TrialExecutor`. They come in the order in which they are done."""
        self._waiting += [TrainingAlone(index, training) for index, training in enumerate(trainings)]
        while self._is_busy:
            for task, report in self._exchange(depth=1):
                assert isinstance(task, TrainingAlone)
                if report.message is not None and report.message["event"] == "steps":
                    for _, loss in report.message["done"]:
                        after_step(loss)
                else:
                    yield self._trained(task, report)
        if self._stop is not None:
            raise self._stop

    @property
    def _is_busy(self) -> bool:
        return bool(self._waiting) or any(self._given.values())

    def _exchange(self, *, depth: int) -> list[tuple[WorkerTask, Report]]:
        """Give tasks out, so many to a worker, and wait a moment for news of them: steps, the answer, or the end.

        Raises:
            L2LError: a worker met an error that ends the search.
        """
        for level in range(depth):
            for member in self._workers.members.values():
                given = self._given.setdefault(member.worker, [])
                if member.is_ready and len(given) == level and self._waiting:
                    given.append(self._waiting.popleft())
                    message = {**given[-1].message(), "scale": self._server.gradients.scale_state}
                    self._workers.send(member, message, given[-1].blocks())
        reports = self._workers.receive(_TICK_S)
        news = [(task, report) for report in reports if (task := self._take(report)) is not None]
        self._poll()
        return news

    def _poll(self) -> None:
        """Ask whether to stop, and drop what can be dropped. See [Note: stopping]."""
        if self._stop is not None:
            return
        try:
            self._watch.poll()
        except Exception as stop:
            self._stop = stop
            self._waiting.clear()
            for worker in [worker for worker, tasks in self._given.items() if tasks]:
                self._workers.send(self._workers.members[worker], {"op": "stop"})

    def _take(self, report: Report) -> WorkerTask | None:
        """The task that a report is about, if that is of interest."""
        message, member = report.message, report.member
        if message is None:
            return self._replace(report)
        if message["event"] == "error":
            raise error_of(message)
        if message["event"] == "ready":
            self._check(message)
            member.is_ready, self._stillborn = True, 0
            return None
        given = self._given[member.worker]
        if message["event"] == "steps":
            return given[0]
        if message["event"] == "rung":
            reason = given[0].stop_reason(message["rung"], message["metrics"])
            self._workers.send(member, {"op": "verdict", "reason": reason})
            return None
        if message["scale"] is not None:
            self._server.gradients.scale_losses(message["scale"])
        task = given.pop(0)
        return None if message["event"] == "stopped" else task

    def _replace(self, report: Report) -> WorkerTask | None:
        """Give the tasks and the number of a worker that ended to another. Returns the task that is given up."""
        member = report.member
        given = self._given.pop(member.worker, [])
        first, again = (given[0], given[1:]) if given else (None, [])
        self._stillborn += not member.is_ready
        if is_given_up(self._stillborn):
            raise WorkerError(f"a worker process {report.ended} before it was ready; try search.workers=1")
        given_up = None
        if first is not None:
            first.deaths += 1
            if is_given_up(first.deaths):
                given_up = first
            else:
                again = [*first.parts(), *again]
        is_over = self._stop is not None or given_up is not None
        self._watch.lost(member.worker, ended=report.ended, task=str(first or ""), again=not is_over)
        if self._stop is None:
            self._waiting.extendleft(reversed(again))
            self._workers.start(member.worker)
        return given_up

    def _check(self, message: Message) -> None:
        for name, own in self._identity.items():
            if message[name] != own:
                raise WorkerError(
                    f"space.pool builds another {name} in a worker process than here; have it give the same each time "
                    "it is called, or use search.workers=1"
                )

    def _trained(self, task: TrainingAlone, report: Report) -> Trained:
        message = report.message
        if message is None:
            reason: L2LError = WorkerError(f"{task}: {why_given_up(task.deaths, report.ended)}")
            return Trained(task.index, refused=reason)
        if "refused" in message:
            return Trained(task.index, refused=error_of(message["refused"]))
        scores = {part: Score.from_json(content) for part, content in message["scores"].items()}
        return Trained(task.index, scores, unpack(self._server, message, report.blocks))


def _outcomes(task: WorkerTask, report: Report) -> list[tuple[Job, Outcome]]:
    assert isinstance(task, TrialBatch)
    worker = report.member.worker
    if report.message is None:
        reason = why_given_up(task.deaths, report.ended)
        return [(job, Outcome(State.FAILED, reason=reason, worker=worker)) for job in task.jobs]
    if report.message["event"] == "steps":
        return []
    outcomes = (Outcome(**{**outcome, "worker": worker}) for outcome in report.message["outcomes"])
    return list(zip(task.jobs, outcomes, strict=True))
