"""The live line of a run."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from l2l_nas.errors import one_line, without_passwords
from l2l_nas.nas.callback import Callback, Callbacks, Stopped
from l2l_nas.nas.objectives import Goal, TrialRecord, ranked
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.ledger import Ledger
from l2l_nas.runs.log import Log
from l2l_nas.runs.page import LivePage
from l2l_nas.runs.terminal import warn
from l2l_nas.training.lead import Lead, Solo

# what a phase counts, if not steps
_NOUNS = {"search": "trial", "blocks": "block", "scores": "block", "networks": "network", "pairs": "pair"}
# what phases before the trials have done, where a search is stopped in them
_BEFORE_TRIALS = {
    "warm-up": "steps of warm-up", "catch-up": "steps of catch-up", "blocks": "blocks",
    "scores": "scores of blocks", "networks": "networks", "pairs": "pairs of blocks",
}  # fmt: skip
# how often a log file or a pipe gets a line
_PLAIN_SECONDS = 5.0


class StopSignals:
    """While it is entered, Ctrl-C and SIGTERM ask to stop after the running step; a second one stops at once."""

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


def time_to_go(seconds: float | None) -> str:
    """As minutes and seconds; None if it is not known yet."""
    return f"ETA {int(seconds) // 60}:{int(seconds) % 60:02d}" if seconds is not None else "ETA -:--"


class Display(Callback):
    """Shows a run: a live line on a terminal, a plain line every few seconds elsewhere. Stops it on Ctrl-C.

    Args:
        goals: of a search; the first is the one to show.
        budget: of a search, for the time to go.
        page: written again whenever that is due.
        lead: who does the work; one that follows may be asked to stop.
        ledger: what the search has spent so far, of which random search will have as much.
    """

    def __init__(
        self,
        console: Console,
        log: Log,
        *,
        goals: Sequence[Goal] = (),
        budget: Budget | None = None,
        workers: int = 1,
        page: LivePage | None = None,
        lead: Lead | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._lead: Lead = lead or Solo()
        self._ledger = ledger
        self._console = console
        self._log = log
        self._goals = goals
        self._budget = budget
        self._finalist_steps = sum(one.finalists * one.steps for one in budget.rounds) if budget else 0
        self._workers = workers
        self._page = page
        self._begun_at = time.monotonic()
        self._best = ""
        self._best_record: TrialRecord | None = None
        self._detail = self._trouble = ""
        self._phase, self._noun = "", "step"
        self._total = self._done = self._began_at = 0
        self._phase_started = time.monotonic()
        self._plain_at = 0.0
        self._step_seconds: float | None = None
        self._signals = StopSignals()
        self._progress = Progress(
            TextColumn("{task.description:9}", markup=False),
            BarColumn(bar_width=14),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=1, text="")

    def __enter__(self) -> Display:
        self._signals.__enter__()
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        self._signals.__exit__()

    def beside(self, own: Sequence[Callback]) -> Callbacks:
        """With callbacks of the user's: what they raise is shown and logged."""

        def report(line: str, error: BaseException) -> None:
            warn(self._console, line)
            text = without_passwords("".join(traceback.format_exception(error)))
            self._log.write("callback", problem=one_line(line), traceback=text)

        return Callbacks(self, own=own, report=report)

    def phase(self, name: str, *, total: int, done: int) -> None:
        """See `Callback.phase`."""
        if self._phase == "warm-up":
            self._measure_step()
        self._phase, self._total, self._done, self._began_at = name, total, done, done
        self._noun = _NOUNS.get(name, "step")
        self._phase_started = time.monotonic()
        self._detail = ""
        self._log.write("phase", name=name, total=total, done=done)
        if total:  # a phase without work is one that this search does not have
            self._show(force=True)
        if self._page is not None and time.monotonic() >= self._page.due_at:
            self._page.write(is_running=True, done=f"{self._noun} {done:,} of {total:,}")

    def advance(self, done: int, *, detail: str = "") -> None:
        """See `Callback.advance`."""
        self._done = done
        self._detail = detail
        self._show()
        if self._page is not None and time.monotonic() >= self._page.due_at:
            self._page.write(is_running=True, done=f"{self._noun} {done:,} of {self._total:,}")

    def covered(self, coverage: Coverage) -> None:
        """See `Callback.covered`."""
        warning = coverage.warning()
        self._log.write("coverage", **coverage.to_json(), warning=warning)
        if warning:
            warn(self._console, warning)

    def trial(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """See `Callback.trial`."""
        # the first record of a run that goes on meets those of before; later ones only the best so far
        known = records if self._best_record is None else (self._best_record, record)
        best = ranked(known, self._goals)
        if best:
            goal, self._best_record = self._goals[0], best[0]
            self._best = f"best trial {best[0].number}: {goal.name} {best[0].values[goal.name]:.4f}"
        self._show()

    def finalist(self, finalist: Finalist) -> None:
        """See `Callback.finalist`."""
        self._log.write("finalist", number=finalist.record.number, **finalist.figures())

    def abandoned(self, record: TrialRecord, reason: str) -> None:
        """See `Callback.abandoned`."""
        self._log.write("given_up", number=record.number, reason=reason)
        warn(self._console, f"trial {record.number} could not be trained to the end: {reason}")

    def waiting(self, text: str) -> None:
        """Nothing goes on, because of this. May raise `Stopped`."""
        if not self._signals.is_asked:
            self._trouble = text
        self._show(force=time.monotonic() - self._plain_at >= 1.0)
        self._trouble = ""
        self.poll()

    def poll(self) -> None:
        """See `Callback.poll`; a signal to any rank stops all."""
        if self._signals.is_asked or self._lead.is_asked_to_stop:
            raise Stopped

    def lost(self, *, ended: str, task: str, again: bool) -> None:
        """See `Watch.lost`."""
        self._log.write("worker_lost", ended=ended, task=task, again=again)
        warn(self._console, f"a worker {ended} in {task}, which " + ("runs again" if again else "is given up"))

    def _measure_step(self) -> None:
        done = self._done - self._began_at
        if done > 0:
            self._step_seconds = (time.monotonic() - self._phase_started) / done

    def _seconds_left(self) -> float | None:
        """This phase at its own pace, the later ones at the pace of a training step."""
        done = self._done - self._began_at
        if done <= 0 or (self._phase != "search" and done < 20):  # the first steps are slow
            return None
        pace = (time.monotonic() - self._phase_started) / done
        left = pace * (self._total - self._done)
        budget = self._budget
        if self._noun == "block" or budget is None:
            return left  # nothing is known of a step, or comes behind
        step: float | None = pace
        if self._phase == "search":
            step = pace / (budget.steps_per_trial + 1) if budget.steps_per_trial else self._step_seconds
        if step is None:
            return left
        # steps of the search's phases behind this one
        to_come = budget.trials * budget.steps_per_trial if self._phase == "warm-up" else 0
        to_come += self._finalist_steps if self._phase not in ("finalists", "baseline") else 0
        left += step * to_come
        if self._phase == "warm-up":
            left += step * budget.trials  # a score takes about as long
        if self._phase != "baseline" and budget.baseline != "none":
            spent = 0.0 if self._ledger is None else self._ledger.search_steps
            here = (self._total - self._done) * (budget.steps_per_trial if self._phase == "search" else 1)
            left += step * (spent + here + to_come)
        return left

    @property
    def how_far_before_trials(self) -> str:
        """How much of its phase is done where that comes before trials: "37 of 153 blocks"; empty elsewhere."""
        what = _BEFORE_TRIALS.get(self._phase)
        return f"{self._done:,} of {self._total:,} {what}" if what and self._total else ""

    def _show(self, *, force: bool = False) -> None:
        done, pace = self._done - self._began_at, ""
        if self._workers > 1 and self._phase == "search" and done > 0:
            pace = f"{done / (time.monotonic() - self._phase_started):.1f}/s by {self._workers} workers"
        left = self._seconds_left()
        heading = self._phase
        how_far, eta = f"{self._noun} {self._done}/{self._total}", time_to_go(left)
        text = "  ".join(filter(None, [how_far, pace, self._trouble or self._best or self._detail, eta]))
        if self._signals.is_asked:
            text = "stopping after this step or trial; Ctrl-C again stops at once"
        if self._console.is_terminal:
            self._progress.update(
                self._task, description=heading, total=max(1, self._total), completed=self._done, text=text
            )
        elif force or time.monotonic() - self._plain_at >= _PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            self._console.print(f"{heading:9} {text}", highlight=False, soft_wrap=True)
