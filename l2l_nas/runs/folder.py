"""A run's folder: what lies in it, whose files they are, and what a kill left there.

[Note: other people's files] A new run writes into a folder only where nothing has a name that runs write. What a run
replaces or removes later are files that it wrote: a manifest of its own names them, or their names are those of files
under way.

[Note: links] A run's folder may be anybody's, and a link in it would have a run read or overwrite what lies elsewhere.
So each place in it is refused where it is a link, or has one in it. The folder itself may be one: that is the word of
whoever names it. What is appended to is refused where it has a second name; all else is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from l2l_nas.eps.scratch import STATES_PREFIX, remove_scratch
from l2l_nas.errors import StorageError
from l2l_nas.files import (
    is_temporary,
    make_folder,
    named_failures,
    refuse_links,
    remove_leftovers,
    write_atomically,
)

# all that `search` and `train` write
RUN_NAMES = (
    *("config.yaml", ".hydra", "study.log", "study.db", "log.jsonl", "earlier_tasks.json"),
    *("weights", "best", "pool", "export", "sizes"),
    *("result.json", "architecture.json", "report.html", "trace.json", "evaluations.json"),
    *("timeline.png", "learning_curve.png", "pareto.png"),
)
# the file that Hydra's sweepers write
SWEEP_CONFIG = "multirun.yaml"
# all that a sweep writes beside its runs, which are called by their numbers
SWEEP_NAMES = (SWEEP_CONFIG, "summary.json")
# of a study that is being made
_DRAFT = ".study.log.tmp"


class _Place:
    """A path in a run's folder, by its name there; see [Note: links]."""

    def __init__(self, name: str, *, is_of_weights: bool = False) -> None:
        self._name, self._is_of_weights = name, is_of_weights

    def __get__(self, folder: RunFolder, of: type[RunFolder]) -> Path:
        whole = folder.weights_in if self._is_of_weights else None
        path = (whole or folder.root) / self._name
        refuse_links(path)
        return path


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder.

    Args:
        weights_in: of a rank with a folder of its own, that of rank 0, where the weights are; None: here.

    Raises:
        StorageError: with a path, where it leads somewhere else.
    """

    root: Path
    weights_in: Path | None = None

    config = _Place("config.yaml")  # all settings of the run
    hydra = _Place(".hydra")  # what the run was started with, as Hydra writes it
    study = _Place("study.log")  # of a search: every finished trial, and events, in a journal of Optuna's
    earlier_tasks = _Place("earlier_tasks.json")  # what it knows from earlier runs, as read when it began
    log = _Place("log.jsonl")  # of a training, or of a size of a search: one event a line
    weights = _Place("weights", is_of_weights=True)  # the shared weights of the whole pool
    best = _Place("best", is_of_weights=True)  # the weights of the best architecture
    result = _Place("result.json")  # what was found
    architecture = _Place("architecture.json")  # the best architecture alone
    evaluations = _Place("evaluations.json")  # what was measured of it on texts
    report = _Place("report.html")  # everything about the run as one page
    front = _Place("pareto.png")  # the front of the finalists, above that of the trials
    curve = _Place("learning_curve.png")  # how a training went
    trace = _Place("trace.json")  # what each lane of the relay did, for chrome://tracing
    timeline = _Place("timeline.png")  # the same as a picture of the last steps
    pool = _Place("pool")  # the states of the whole pool while a run goes on that keeps them in files
    export = _Place("export")  # the best network as plain PyTorch
    sizes = _Place("sizes")  # of strategy.sizes: the network of each, in a folder that is read as a run's

    def size(self, name: str) -> RunFolder:
        """The folder of a size's network."""
        return RunFolder(self.sizes / name)

    @property
    def of_all_sizes(self) -> RunFolder:
        """The folder of the whole run: of one of several sizes, that of all; else this one."""
        whole = RunFolder(self.root.parent.parent)
        return whole if self.root.parent.name == "sizes" and whole.config.exists() else self

    def write_hydra(self, files: Mapping[str, str]) -> None:
        """Write the files of `.hydra/` that are missing: they tell what a run was started with."""
        make_folder(self.hydra)
        for name, text in files.items():
            if not (self.hydra / name).exists():
                write_atomically(self.hydra / name, text)

    @property
    def is_begun(self) -> bool:
        """Whether it holds more than settings, and what a run leaves that was killed before it had a study.

        Where there are settings it is a run's folder, and files of the user's in it tell nothing.
        """
        others = [path for path in self.root.iterdir() if not _is_left(path)] if self.root.is_dir() else []
        has_settings = self.config.exists() or self.hydra.exists()
        return any(path.name in RUN_NAMES or not has_settings for path in others)

    def refuse_links(self) -> None:
        """Refuse links of names that runs write, and in their folders. Raises StorageError: see [Note: links]."""
        for path in [self.root / name for name in RUN_NAMES] + list(self.root.glob(".*")):
            refuse_links(path)
        for path in (self.study, self.log):
            if path.exists() and path.stat().st_nlink > 1:
                raise StorageError(
                    f"{path}: has another name, too (a hard link), under which what is appended would stand; put a "
                    "copy in its place"
                )


def refuse_taken(root: Path, names: Collection[str] = RUN_NAMES, *, but: Collection[str] = ()) -> None:
    """Refuse a folder for something new; see [Note: other people's files].

    Args:
        names: what would be written.
        but: those that are known to be of the same run.

    Raises:
        StorageError: something of that name is there, or the folder cannot be read.
    """
    for name in names:
        path = root / name
        if name not in but and (path.exists() or path.is_symlink()) and not _is_left_pool(path):
            raise StorageError(f"{path} is there already and would be overwritten; choose another folder, or move it")


def tidy(folder: RunFolder) -> None:
    """Remove what killed processes left in a run's folder. Whoever calls holds its lock."""
    sizes = [RunFolder(path) for path in folder.sizes.iterdir()] if folder.sizes.is_dir() else []
    for one in (folder, *sizes):
        for place in (one.root, one.weights, one.best, one.export):
            remove_leftovers(place)
    remove_scratch(folder.pool)


def _is_left_pool(path: Path) -> bool:
    """Whether it is a folder of states that nobody needs but the process that made it."""
    if path.name != "pool" or path.is_symlink() or not path.is_dir():
        return False
    with named_failures(path):
        return all(is_temporary(one.name) or one.name.startswith(STATES_PREFIX) for one in path.iterdir())


def _is_left(path: Path) -> bool:
    return (
        _is_left_pool(path)
        or path.name.startswith(_DRAFT)
        or path.name in ("error.txt", "config.yaml", ".hydra", "earlier_tasks.json")
        or is_temporary(path.name)
    )


_LOCKED: set[int] = set()
# who asks whether a folder is locked is in the way for less than a millisecond
_ASKED_S = 0.2


def _leave_locks() -> None:
    """In a process that loads data: a lock ends when the last process that has it open does."""
    while _LOCKED:
        os.close(_LOCKED.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of a run's folder. The lock ends with the process, however that ends.

    Raises:
        StorageError: another process is at work there.
    """
    with _lock(folder):
        yield


def is_locked(folder: Path) -> bool:
    """Whether a search is at work in a folder. Others may ask at the same time."""
    try:
        with _lock(folder, is_asking=True):
            return False
    except StorageError:
        return True


@contextlib.contextmanager
def _lock(folder: Path, *, is_asking: bool = False) -> Iterator[None]:
    """The lock of a folder, for one alone; or, to ask whether somebody has it, one that all who ask share."""
    if sys.platform == "win32":  # no such lock
        yield
        return
    import fcntl

    with named_failures(folder):
        handle = os.open(folder, os.O_RDONLY)
    _LOCKED.add(handle)
    until = time.monotonic() + (0 if is_asking else _ASKED_S)
    try:
        while True:
            try:
                fcntl.flock(handle, (fcntl.LOCK_SH if is_asking else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(_ASKED_S / 20)
                    continue
                raise StorageError(
                    f"{folder}: another process is at work in this folder; wait for it, or stop it"
                ) from None
            except OSError:
                logging.getLogger("l2l_nas").warning(
                    f"{folder}: its file system has no locks: nothing keeps a second process out of this folder"
                )
            break
        yield
    finally:
        _LOCKED.discard(handle)
        os.close(handle)
