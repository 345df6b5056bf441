"""Gathers what a run's page shows from its folder, and keeps the page fresh while a search runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from l2l_nas.cli.again import changed_settings, next_commands
from l2l_nas.cli.progress import Log
from l2l_nas.cli.run_folder import RunFolder
from l2l_nas.errors import L2LError, StorageError, one_line
from l2l_nas.files import read_bytes, read_json, read_yaml, write_atomically
from l2l_nas.report.history import History, Scored, read_events, read_history
from l2l_nas.report.page import render_page
from l2l_nas.report.summary import Summary, only_finite
from l2l_nas.search.coverage import Coverage
from l2l_nas.search.reading import read_study
from l2l_nas.search.records import Goal, TrialRecord

_FOREIGN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_REFRESH_SECONDS = 30.0
_MAX_SHARE = 0.02  # of the run's time that goes into pages
_MAX_PICTURE_BYTES = 2_000_000


def gather(
    root: Path,
    *,
    is_running: bool,
    records: Sequence[TrialRecord] | None = None,
    goals: Sequence[Goal] = (),
    done: str = "",
) -> Summary:
    """Read a run's folder; nothing in it is run or imported.

    Args:
        root: the folder.
        is_running: whether a search is at work in it.
        records, goals: of the study, if they are at hand; otherwise they are read from it.
        done: how much of its phase the running search has done.

    Raises:
        StorageError: a file is missing, damaged or of another run.
    """
    folder = RunFolder(root)
    if not root.is_dir():
        raise StorageError(f"{root}: no such folder")
    if records is None:
        if folder.worker.exists():
            raise StorageError(
                f"{root}: the study of this run is in a database, and its last page is {folder.report}; "
                "resume the run for a new one"
            )
        goals, records = read_study(folder.study)
    log = read_bytes(folder.log).decode(errors="replace")
    now = time.time()
    try:
        history = read_history(read_events(log), running_at=now if is_running else None)
    except _FOREIGN as error:
        raise _damaged(folder.log, error) from None
    config = read_yaml(folder.config)
    found = _read_found(folder.result)
    records = only_finite(records, goals)
    _refuse_strangers(folder, history, records, found, goals)
    try:
        trials = int(config["search"]["trials"])
        commands = next_commands(root, config, is_finished=history.state == "finished", has_result=found is not None)
        pool, seed, changed = str(config["space"]["pool"]), str(config["seed"]), changed_settings(config)
    except _FOREIGN as error:
        raise _damaged(folder.config, error) from None
    return Summary(
        pool, str(root), now, done, history, tuple(goals), records, trials, found, changed, commands, seed,
        timeline=_read_picture(folder.timeline),
    )  # fmt: skip


def _read_found(path: Path) -> Scored | None:
    """The network in a run's result; None before there is one."""
    if not path.exists():
        return None
    result = read_json(path)
    try:
        return Scored.from_json(result["best"])
    except _FOREIGN as error:
        raise _damaged(path, error) from None


def _read_picture(path: Path) -> bytes:
    """A picture to put into the page; nothing where there is none, or one too large."""
    try:
        content = path.read_bytes()
    except OSError:
        return b""
    return content if len(content) <= _MAX_PICTURE_BYTES else b""


def _refuse_strangers(
    folder: RunFolder,
    history: History,
    records: Sequence[TrialRecord],
    found: Scored | None,
    goals: Sequence[Goal],
) -> None:
    """Files of different runs in one folder would give a page that is wrong.

    Raises:
        StorageError: an architecture is not of the space, or a value is missing.
    """
    scored = [(folder.log, entry) for entry in history.finalists]
    scored += [(folder.result, found)] if found is not None else []
    for path, architecture in (
        *((folder.study, record.architecture) for record in records),
        *((path, entry.architecture) for path, entry in scored),
    ):
        if not history.card.offers(architecture):
            raise StorageError(f"{path}: holds an architecture of another space than {folder.log.name}; restore both")
    for path, entry in scored:
        for goal in goals:
            if goal.name not in entry.values:
                raise StorageError(f"{path}: has no {goal.name}, which {folder.study.name} searched for; restore both")


def _damaged(path: Path, error: Exception) -> StorageError:
    cause = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return StorageError(f"{path}: damaged ({cause}); restore it")


class LivePage:
    """Keeps `report.html` fresh: an observer of a search that writes the page every half minute, and at its end.

    A page that cannot be made never costs the search: the log tells why, and the search goes on without it.

    Args:
        root: the run's folder.
        log: the run's.
        goals: of the search.
        records: gives all trials so far.
    """

    def __init__(
        self, root: Path, log: Log, *, goals: Sequence[Goal], records: Callable[[], Sequence[TrialRecord]]
    ) -> None:
        self._root = root
        self._log = log
        self._goals = goals
        self._records = records
        self._due_at = 0.0
        self._unit = ""
        self._total = self._done = 0
        self.problem = ""
        self.finalists: list[tuple[TrialRecord, dict[str, float]]] = []

    def write(self, *, is_running: bool) -> None:
        """Write the page now; `problem` tells what went wrong, if anything did."""
        began = time.monotonic()
        try:
            done = f"{self._unit} {self._done:,} of {self._total:,}" if self._unit else ""
            summary = gather(self._root, is_running=is_running, records=self._records(), goals=self._goals, done=done)
            write_atomically(RunFolder(self._root).report, render_page(summary))
            self.problem = ""
        except Exception as error:  # whatever it is, hours of search are worth more than a page
            self.problem = one_line(str(error) if isinstance(error, L2LError) else f"{type(error).__name__}: {error}")
        seconds = time.monotonic() - began
        self._due_at = time.monotonic() + max(_REFRESH_SECONDS, seconds / _MAX_SHARE)
        fields = {"problem": self.problem} if self.problem else {}
        with contextlib.suppress(StorageError):
            self._log.write("page", seconds=round(seconds, 4), **fields)

    def _write_when_due(self) -> None:
        if time.monotonic() >= self._due_at:
            self.write(is_running=True)

    def phase(self, name: str, *, total: int, done: int) -> None:
        """See `Observer.phase`."""
        self._unit, self._total, self._done = "trial" if name == "search" else "step", total, done
        self._write_when_due()

    def advance(self, done: int, *, detail: str = "") -> None:
        """See `Observer.advance`."""
        self._done = done
        self._write_when_due()

    def covered(self, coverage: Coverage) -> None:
        """See `Observer.covered`: the log tells the page."""

    def trial(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """See `Observer.trial`: `advance` follows."""

    def finalist(self, record: TrialRecord, metrics: Mapping[str, float]) -> None:
        """See `Observer.finalist`."""
        self.finalists.append((record, dict(metrics)))

    def poll(self) -> None:
        """See `Observer.poll`: this one never stops a search."""
