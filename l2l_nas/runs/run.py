"""What a search and a training have alike: how a run begins, goes on, is stopped, fails and ends."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from dataclasses import replace

from rich.console import Console

from l2l_nas.errors import StorageError, one_line
from l2l_nas.files import make_folder, write_yaml
from l2l_nas.nas.callback import Callback, Callbacks, Stopped, build_callbacks
from l2l_nas.runs.build import at_work
from l2l_nas.runs.fields import content
from l2l_nas.runs.log import Log
from l2l_nas.runs.mesh import left_whole
from l2l_nas.runs.parts import Parts
from l2l_nas.runs.progress import Display
from l2l_nas.runs.ranks import RunRanks, greet_ranks
from l2l_nas.runs.resume import Start
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.terminal import explain
from l2l_nas.space.architecture import Architecture


class Run(ABC):
    """A run, before anything of it is written. What makes one builds its `parts`, which refuses what can be refused.

    Args:
        start: what it starts or goes on with.
        console: where it tells how far it is.
        resume_command: the command, or the call, that goes on with it.
        ranks: that do it together; None: this process alone.

    Attributes:
        conf: all settings.
        parts: what trains.
        log: where it tells of itself, once that is open.
    """

    conf: SearchConf | RetrainConf
    parts: Parts
    log: Log | None = None

    def __init__(self, start: Start, console: Console, *, resume_command: str, ranks: RunRanks | None) -> None:
        self.start, self.folder = start, start.folder
        self.console, self.resume_command = console, resume_command
        self.ranks = ranks or RunRanks()
        self.callbacks = build_callbacks([*start.conf.callbacks.values(), *start.conf.objects.get("callbacks", ())])
        self._seen: Callbacks | None = None
        self._shown: Display | None = None
        self._before_s = 0.0  # of earlier sessions
        self._started = time.monotonic()

    def go(self) -> float:
        """Do it, and write what came of it; returns the best value of the first goal, or of the metric.

        Raises:
            Stopped: it was stopped, after what is done was saved.
        """
        self._started = time.monotonic()
        self.start.refuse_begun(self.resume_command)
        with contextlib.ExitStack() as opened:
            opened.callback(self.parts.problem.data.close)
            self._take_on(opened)
            make_folder(self.folder.root)
            opened.enter_context(at_work(self.folder, self.parts.server, self.conf.relay, lead=self.ranks.lead))
            self.start.refuse_begun(self.resume_command)  # still, now that nobody else writes there
            opened.callback(self._close)
            try:
                return self._go()
            except (Stopped, KeyboardInterrupt) as stop:  # the latter by a second Ctrl-C
                if self.log is None:
                    self._say_stopped("")
                else:
                    self._tell_stop(self.log, at_once=isinstance(stop, KeyboardInterrupt))
                # a sweep goes on after a run that a callback stopped
                by = self.stopped_by
                raise Stopped(*([] if by is None else [f"by callback {type(by).__name__}"])) from None
            except Exception as error:
                if self.log is not None and self.log.is_begun:  # what is refused before leaves the folder as it is
                    with contextlib.suppress(StorageError):
                        self._tell_failure(self.log, one_line(explain(error)))
                raise

    def _go(self) -> float:
        self.log, self._before_s = self._open()
        with self._display() as self._shown:
            self._seen = self._shown.beside(self.callbacks)
            finished = self._restore(self._seen, self._shown)
            if finished is not None:
                value, line = finished
                self.console.print(line, markup=False, soft_wrap=True)
                return value
            self._begin(self.log)
            self._work(self._seen)
        return self._end(self.log)

    @property
    def seconds(self) -> float:
        """Of all sessions."""
        return self._before_s + time.monotonic() - self._started

    @property
    def stopped_by(self) -> Callback | None:
        """The user's callback that asked the run to stop; None if none did."""
        return self._seen.stopped_by if self._seen is not None else None

    def _say_stopped(self, at: str) -> None:
        """Say that it was stopped, by whom, how far it came, and how it goes on."""
        by = f" by callback {type(self.stopped_by).__name__}" if self.stopped_by is not None else ""
        self.console.print(f"stopped{by}{at}. Go on with: {self.resume_command}", soft_wrap=True, markup=False)

    def _write_settings(self) -> None:
        if self.start.files:  # first, as a sweep knows its runs by them
            self.folder.write_hydra(self.start.files)
        settled = replace(self.conf, folder=str(self.folder.root), resume="")  # whatever it goes on by
        write_yaml(self.folder.config, content(settled))

    def _greet_ranks(self, compared: str, architecture: Architecture | None = None) -> None:
        """Tell what was compared with an original, and how ranks share the work.

        Args:
            compared: see `compare_published`.
            architecture: that is trained; None: several.
        """
        if compared:
            self.console.print(compared, soft_wrap=True)
        greet_ranks(self.console, self.parts.server, self.conf, samples=len(self.parts.problem.data.train))
        if whole := left_whole(self.parts.server, architecture):
            self.console.print(f"whole on every rank: {', '.join(whole)}", soft_wrap=True)

    def _close(self) -> None:
        if self._seen is not None:
            self._seen.end()

    @abstractmethod
    def _take_on(self, opened: contextlib.ExitStack) -> None:
        """Have what a run needs besides, and what others may refuse, before anything is written."""

    @abstractmethod
    def _open(self) -> tuple[Log, float]:
        """Open what the run keeps, and where it tells of itself; with the seconds of earlier sessions."""

    @abstractmethod
    def _display(self) -> Display:
        """The live line."""

    @abstractmethod
    def _restore(self, seen: Callbacks, display: Display) -> tuple[float, str] | None:
        """Go on from what is saved; of a run that is over, the best value and what to tell."""

    @abstractmethod
    def _begin(self, log: Log) -> None:
        """Write and tell what it is of."""

    @abstractmethod
    def _work(self, seen: Callbacks) -> None:
        """Search, or train."""

    @abstractmethod
    def _end(self, log: Log) -> float:
        """Write what came of it, and tell it; returns the best value."""

    @abstractmethod
    def _tell_stop(self, log: Log, *, at_once: bool) -> None:
        """Write and tell how far it came that was asked to stop.

        Args:
            at_once: whether it was stopped in the middle of a step.
        """

    def _tell_failure(self, log: Log, reason: str) -> None:
        log.write("failed", reason=reason)
