"""Scratch files: written and read at positions, and deleted with the process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.eps.layout import align
from l2l_nas.errors import StorageError
from l2l_nas.files import make_folder, named_failures, remove_files, remove_if_empty

STATES_PREFIX = "l2l_nas-states-"
_LOCK = "in-use"
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # not everywhere
_CHUNK_BYTES = 32 << 20
PAGE_BYTES = 4096  # what direct reads and writes are whole numbers of, in memory and in the file
_YOUNG_S = 60.0  # a folder that another process makes just now may not be locked yet
_ADVICE = "leave scratch files alone; from the last checkpoint, go on with: resume=FOLDER"


class Scratch:
    """A new folder inside another one, for this process alone, and locked until it is closed.

    The folders of killed processes are deleted by the next process that makes one beside them. StorageError: the folder
    cannot be made or written.
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
        self._count += 1
        return self.folder / f"{self._count:06}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', key)[:80]}"

    def close(self) -> None:
        """Delete everything, unless this process is a fork of the one that made the folder."""
        if os.getpid() == self._process and self._lock >= 0:
            remove_files(self.folder, _is_ours)
            os.close(self._lock)
            self._lock = -1


def create(path: Path, num_bytes: int) -> None:
    """Make a file and have the disk set its space aside: a full disk shows now, not in the middle of an update.

    Raises:
        StorageError: the file could not be made, and does not exist.
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


def read_into(path: Path, block: Tensor, offset_bytes: int, *, is_direct: bool = False) -> None:
    """Fill a block of bytes from a position of a file.

    Where `is_direct` bypasses the system's page cache, the block begins and ends, in memory and in the file, at whole
    numbers of `PAGE_BYTES`.

    Raises:
        StorageError: the file is missing, too short, or cannot be read.
    """
    with _opened(path, os.O_RDONLY, is_direct=is_direct) as handle:
        try:
            _transfer(os.preadv, handle, block, offset_bytes)
        except EOFError:
            size, expected = os.fstat(handle).st_size, offset_bytes + block.numel()
            message = f"{path}: was cut short ({size} bytes, expected {expected} or more); {_ADVICE}"
            raise StorageError(message) from None


def write_from(path: Path, block: Tensor, offset_bytes: int, *, is_direct: bool = False) -> None:
    """Write a block of bytes to a position of a file that exists.

    With `is_direct` as for `read_into` the block may lie, and end, anywhere: what is behind it in the file, to the next
    whole number of `PAGE_BYTES`, may hold anything then.

    Raises:
        StorageError: the file is missing, or cannot be written; its bytes at that position are not known then.
    """
    with _opened(path, os.O_WRONLY, is_direct=is_direct) as handle:
        if not is_direct or not (block.data_ptr() % PAGE_BYTES or block.numel() % PAGE_BYTES):
            _transfer(os.pwritev, handle, block, offset_bytes)
            return
        bounce = page_aligned(align(min(block.numel(), _CHUNK_BYTES), PAGE_BYTES))
        for number, piece in enumerate(block.split(_CHUNK_BYTES)):
            bounce[: piece.numel()] = piece
            whole = bounce[: align(piece.numel(), PAGE_BYTES)]
            _transfer(os.pwritev, handle, whole, offset_bytes + number * _CHUNK_BYTES)


def page_aligned(num_bytes: int) -> Tensor:
    """A block of memory, as uint8, that begins at a whole number of `PAGE_BYTES`."""
    block = torch.empty(num_bytes + PAGE_BYTES, dtype=torch.uint8)
    start = -block.data_ptr() % PAGE_BYTES
    return block[start : start + num_bytes]


_Move = Callable[[int, list[memoryview], int], int]  # `os.preadv` or `os.pwritev`


def _transfer(move: _Move, handle: int, block: Tensor, position: int) -> None:
    """Read or write a whole block; EOFError where the file ends before."""
    view = block.numpy().data
    while view:
        count = _move(move, handle, view, position)  # never more than 2 GiB at once, sometimes less than asked
        if count == 0:
            raise EOFError
        view, position = view[count:], position + count


def _move(move: _Move, handle: int, view: memoryview, position: int) -> int:
    """Read or write once; through the page cache where the file system or an odd size does not allow otherwise."""
    try:
        return move(handle, [view], position)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        import fcntl

        flags = fcntl.fcntl(handle, fcntl.F_GETFL)
        if not flags & _DIRECT:
            raise
        fcntl.fcntl(handle, fcntl.F_SETFL, flags & ~_DIRECT)
        return move(handle, [view], position)


def sequential_seconds(path: Path, num_bytes: int) -> tuple[float, float]:
    """How long the disk takes to write a new file of so many bytes, and to read it again; the file is deleted.

    The system's page cache is bypassed where the file system allows that, and emptied where not.

    Raises:
        StorageError: the file cannot be written or read.
    """
    size = align(num_bytes, PAGE_BYTES)
    chunk = page_aligned(min(size, _CHUNK_BYTES)).numpy().data
    chunk[:] = os.urandom(len(chunk))  # some disks do not write what they can guess
    seconds = []
    try:
        create(path, size)
        for flags, move in ((os.O_WRONLY, os.pwritev), (os.O_RDONLY, os.preadv)):
            with _opened(path, flags, is_direct=True) as handle:
                started, position = time.perf_counter(), 0
                while position < size:
                    position += _move(move, handle, chunk[: size - position], position)
                os.fsync(handle)
                seconds.append(time.perf_counter() - started)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        path.unlink(missing_ok=True)
    return seconds[0], seconds[1]


@contextlib.contextmanager
def _opened(path: Path, flags: int, *, is_direct: bool) -> Iterator[int]:
    with _scratch_failures(path):
        try:
            handle = os.open(path, flags | os.O_CLOEXEC | (_DIRECT if is_direct else 0))
        except OSError as error:
            if not is_direct or error.errno != errno.EINVAL:  # a file system without it, such as tmpfs
                raise
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
    """Whether nobody else holds this lock; this process does now, until the handle is closed or the process ends."""
    import fcntl  # not on Windows, where the rest of the package does without

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_scratch(folder: Path) -> None:
    """Delete what killed processes left, and the folder if it is empty then. No other process may use it meanwhile."""
    _sweep(folder, young_s=0.0)
    remove_if_empty(folder)


def _sweep(folder: Path, *, young_s: float) -> None:
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
