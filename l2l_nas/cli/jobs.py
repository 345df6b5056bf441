"""Runs the jobs of a sweep through one of Hydra's launchers, so that one that fails takes no other along.

A launcher takes a list of jobs and returns when all are done, or raises when one of them took its process down. How
jobs are handed to it is a policy, chosen by the launcher:

- `OneByOne` for the basic launcher, which runs them in this process.
- `Apart` for submitit's: each job is launched by itself, so many at a time, and a new one as soon as one is done.
- `Batches` for joblib's and all others: so many at a time, and the next when all of them are done. Of a batch that a
  job brought down, those that had begun are launched again one by one.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher

from l2l_nas.errors import L2LError


@dataclass(frozen=True)
class Job:
    """A run of a sweep.

    Args:
        number: from 0.
        overrides: its settings, as the command line takes them.
        folder: where it is written.
        again: further overrides for a second launch, after the first one was cut off.
    """

    number: int
    overrides: tuple[str, ...]
    folder: Path
    again: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Args:
        error: what went wrong, or nothing.
        returned: what its launcher returned, where it did.
    """

    error: str
    returned: JobReturn | None = None


# the next job, or None when there are no more
Ask = Callable[[], Job | None]
# a job is over
Done = Callable[[Job, Outcome], None]


class Policy(Protocol):
    """How jobs are handed to a launcher."""

    def run(self, launcher: Launcher, ask: Ask, done: Done) -> None:
        """Launch jobs until there are no more. Both functions are called in this thread.

        Raises:
            L2LError: the launcher does not work.
        """


class OneByOne:
    """A job at a time."""

    def run(self, launcher: Launcher, ask: Ask, done: Done) -> None:
        """See `Policy.run`."""
        while (job := ask()) is not None:
            done(job, _launch_alone(launcher, job))


@dataclass(frozen=True)
class Batches:
    """So many jobs at a time; 0 for all.

    Args:
        size: how many.
    """

    size: int

    def run(self, launcher: Launcher, ask: Ask, done: Done) -> None:
        """See `Policy.run`."""
        while True:
            batch: list[Job] = []
            while (not self.size or len(batch) < self.size) and (job := ask()) is not None:
                batch.append(job)
            if not batch:
                return
            self._launch(launcher, batch, done)

    def _launch(self, launcher: Launcher, batch: Sequence[Job], done: Done) -> None:
        try:
            returned = _launch(launcher, batch)
        except Exception as error:
            begun = [job for job in batch if job.folder.exists() or isinstance(error, HydraException)]
            if not begun:
                raise _broken(launcher, error) from error
            for job in begun:
                done(job, _launch_alone(launcher, _second(job)))
            rest = [job for job in batch if job not in begun]
            if rest:
                self._launch(launcher, rest, done)
            return
        for job, result in zip(batch, returned, strict=True):
            done(job, _outcome(result))


@dataclass(frozen=True)
class Apart:
    """Each job by itself, so many at a time; 0 for all.

    Args:
        size: how many.
    """

    size: int

    def run(self, launcher: Launcher, ask: Ask, done: Done) -> None:
        """See `Policy.run`."""
        ended: queue.Queue[tuple[Job, Outcome | Exception]] = queue.Queue()

        def launch(job: Job) -> None:
            # inherited by submitit's controllers, which would end in tracebacks; runs take Ctrl-C themselves
            _mask_interrupts(signal.SIG_BLOCK)
            try:
                ended.put((job, _launch_alone(launcher, job)))
            except Exception as error:
                ended.put((job, error))

        running = 0
        while True:
            while (not self.size or running < self.size) and (job := ask()) is not None:
                running += 1
                # a daemon: Ctrl-C does not wait for it
                threading.Thread(target=launch, args=(job,), daemon=True).start()
            if not running:
                return
            job, outcome = ended.get()
            running -= 1
            if isinstance(outcome, Exception):
                raise outcome
            done(job, outcome)


def policy_of(target: str, *, jobs: int) -> Policy:
    """The policy for a launcher.

    Args:
        target: its class.
        jobs: how many at once; 0 for all.
    """
    if target.startswith("hydra._internal."):
        return OneByOne()
    if "submitit" in target:
        return Apart(jobs)
    return Batches(jobs)


def take_interrupts() -> None:
    """In a job's own process: Ctrl-C is for it to handle, whatever it inherited."""
    _mask_interrupts(signal.SIG_UNBLOCK)


def _mask_interrupts(how: int) -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(how, {signal.SIGINT})


def _launch(launcher: Launcher, jobs: Sequence[Job]) -> Sequence[JobReturn]:
    # launchers count from a number on; the folder is named by the job's own
    overrides = [[*job.overrides, f"hydra.sweep.subdir={job.number}"] for job in jobs]
    return launcher.launch(overrides, initial_job_idx=jobs[0].number)


def _launch_alone(launcher: Launcher, job: Job) -> Outcome:
    try:
        return _outcome(_launch(launcher, [job])[0])
    except HydraException as error:
        return Outcome(" ".join(str(error).split()))
    except Exception as error:
        if not job.folder.exists():
            raise _broken(launcher, error) from error
        return Outcome(f"its process ended without a result ({type(error).__name__})")


def _second(job: Job) -> Job:
    return Job(job.number, (*job.overrides, *job.again), job.folder, job.again)


def _outcome(result: JobReturn) -> Outcome:
    if result.status is JobStatus.COMPLETED:
        return Outcome("", result)
    error = result._return_value  # its property would raise it, and print
    return Outcome(" ".join(str(error).split()) or type(error).__name__, result)


def _broken(launcher: Launcher, error: Exception) -> L2LError:
    return L2LError(f"hydra/launcher: {type(launcher).__name__} cannot launch ({type(error).__name__}: {error})")
