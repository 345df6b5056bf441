"""Writing and reading files so that a crash, a full disk or a foreign file loses nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `StorageError` that names the file and says what to do."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full: free some space, then go on with: resume=FOLDER",
            errno.EDQUOT: "the disk quota is used up: free some space, then go on with: resume=FOLDER",
            errno.EFBIG: "the file would grow past the limit set for this process: raise it (ulimit -f)",
            errno.EACCES: "no permission: choose a folder you may write to",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.ENOENT: "no such file or folder: check the path",
            errno.ENOTDIR: "part of the path is a file, not a folder: choose another folder",
        }.get(error.errno or 0, str(error.strerror or error))
        raise StorageError(f"{error.filename or path}: {advice}") from error


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file: after a crash there is the old one or the new one, never a part.

    Raises:
        StorageError: it could not be written; the old file, if any, is whole.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with named_failures(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def publish(finished: Path, path: Path) -> None:
    """Give a file that another library wrote its name, once it is safe on disk; both must lie in one file system.

    Raises:
        StorageError: it could not be done; a file of that name, if any, is whole.
    """
    with named_failures(path):
        with open(finished, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(finished, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the platform can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder and its parents.

    Raises:
        StorageError: it could not be created.
    """
    with named_failures(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(path)) from None


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: it is missing, or not JSON.
    """
    with named_failures(path):
        data = path.read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(f"{path}: damaged, not JSON ({error}); restore it or start a new run") from None


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically.

    Raises:
        StorageError: it could not be written.
    """
    write_atomically(path, json.dumps(content, indent=2) + "\n")
