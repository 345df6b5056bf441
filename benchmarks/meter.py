"""Shows how far a bench is: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from l2l_nas.runs.progress import time_to_go

_PLAIN_SECONDS = 5.0


class Meter:
    """See `BenchWatch`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0.0
        self._started = self._plain_at = time.monotonic()
        columns = BarColumn(bar_width=20), TextColumn("{task.fields[text]}", markup=False)
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("", total=1, text="")

    def __enter__(self) -> Meter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, total: float) -> None:
        """See `BenchWatch.start`."""
        self._total, self._started = total, time.monotonic()
        self._show("starting")

    def advance(self, done: float, text: str) -> None:
        """See `BenchWatch.advance`."""
        self._done += done
        self._show(text)

    def note(self, text: str) -> None:
        """See `BenchWatch.note`."""
        self._console.print(text, soft_wrap=True)

    def _show(self, text: str) -> None:
        share, eta = self._done / self._total if self._total else 0.0, time_to_go(None)
        if share >= 0.02:  # the first rounds are slow
            eta = time_to_go((time.monotonic() - self._started) * (1 / share - 1))
        line = f"{share:4.0%}  {eta}  {text}"
        if self._console.is_terminal:
            self._progress.update(self._task, total=1, completed=share, text=line)
        elif time.monotonic() - self._plain_at >= _PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            self._console.print(line, highlight=False, soft_wrap=True)
