"""A run's folder is locked while a process is at work in it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from l2l_nas.errors import StorageError
from l2l_nas.files import named_failures

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
