"""Scratch files: written and read at positions, gone with the process, refused in one line where something is wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from l2l_nas.errors import StorageError
from l2l_nas.files import make_folder, named_failures, remove_files, remove_if_empty

STATES_PREFIX = "l2l_nas-states-"
_LOCK = "in-use"
_YOUNG_S = 60.0  # a folder that another process makes just now may not be locked yet
_ADVICE = "leave scratch files alone, and go on from the last checkpoint with resume=FOLDER"


class Scratch:
    """A folder of its own inside a given one, for this process alone.

    It is locked for as long as it is used. Folders whose process was killed are deleted by whoever comes next.

    Raises:
        StorageError: the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        _sweep(folder, young_s=_YOUNG_S)
        with named_failures(folder):
            self.folder = Path(tempfile.mkdtemp(prefix=STATES_PREFIX, dir=folder))
            self._lock = os.open(self.folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        _try_lock(self._lock)
        self._process = os.getpid()
        self._count = 0

    def new_path(self, key: str) -> Path:
        """A path that was not given out before."""
        self._count += 1
        return self.folder / f"{self._count:06}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', key)[:80]}"

    def close(self) -> None:
        """Delete everything. In a process forked from the one that made it, nothing happens."""
        if os.getpid() == self._process and self._lock >= 0:
            remove_files(self.folder, _is_ours)
            os.close(self._lock)
            self._lock = -1


def create(path: Path, num_bytes: int) -> None:
    """Make a file and have the disk set its space aside: a full disk shows now, not in the middle of an update.

    Raises:
        StorageError: it could not be made; there is no such file then.
    """
    with _scratch_failures(path):
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            _reserve(handle, num_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


def _reserve(handle: int, num_bytes: int) -> None:
    if sys.platform == "linux" and num_bytes > 0:
        try:
            os.posix_fallocate(handle, 0, num_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.ftruncate(handle, num_bytes)


def read_into(path: Path, block: Tensor, offset_bytes: int) -> None:
    """Fill a block of bytes from a position of a file.

    Raises:
        StorageError: it is missing, too short, or cannot be read.
    """
    with _opened(path, os.O_RDONLY) as handle:
        view, position = block.numpy().data, offset_bytes
        while view:
            count = os.preadv(handle, [view], position)  # never more than 2 GiB at once, and sometimes less than asked
            if count == 0:
                got, expected = os.fstat(handle).st_size, offset_bytes + block.numel()
                raise StorageError(f"{path}: was cut short ({got} bytes, expected {expected} or more); {_ADVICE}")
            view, position = view[count:], position + count


def write_from(path: Path, block: Tensor, offset_bytes: int) -> None:
    """Write a block of bytes to a position of a file that exists.

    Raises:
        StorageError: it is missing, or cannot be written; what it holds at that position is not known then.
    """
    with _opened(path, os.O_WRONLY) as handle:
        view, position = block.numpy().data, offset_bytes
        while view:
            count = os.pwritev(handle, [view], position)
            view, position = view[count:], position + count


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    with _scratch_failures(path):
        handle = os.open(path, flags | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            os.close(handle)


@contextlib.contextmanager
def _scratch_failures(path: Path) -> Iterator[None]:
    try:
        with named_failures(path):
            yield
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StorageError(f"{path}: was deleted while in use; {_ADVICE}") from error.__cause__
        raise


def _try_lock(handle: int) -> bool:
    """Whether nobody else holds this lock; it is held from now on, until the handle is closed or the process ends."""
    import fcntl  # not on Windows, where the rest of the package does without

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_scratch(folder: Path) -> None:
    """Delete what killed processes left, whenever that was, and the folder if nothing else is in it.

    No other process of ours may be at work there.
    """
    _sweep(folder, young_s=0.0)
    remove_if_empty(folder)


def _sweep(folder: Path, *, young_s: float) -> None:
    """Delete what killed processes left."""
    for left in folder.glob(f"{STATES_PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.is_symlink() or time.time() - left.stat().st_mtime < young_s:
                continue
            handle = os.open(left / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)  # a kill may have come before it
            try:
                if _try_lock(handle):
                    remove_files(left, _is_ours)
            finally:
                os.close(handle)


def _is_ours(name: str) -> bool:
    return name == _LOCK or re.fullmatch(r"\d{6,}-.*", name, re.DOTALL) is not None
