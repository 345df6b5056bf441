"""Writing and reading files so that a crash, a full disk or a foreign file loses nothing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from l2l_nas.errors import StorageError

# of a file that is written: a kill may leave it behind, and the number says whose it was
_TEMPORARY = re.compile(r"\..+\.(\d+)\.l2l_nas\.tmp")
# file systems take names of 255 bytes; what is put around this much fits
_LONGEST_NAME = 180
# no settings of a run are longer, and a reader in Python takes seconds for a megabyte
_MOST_YAML_BYTES = 1 << 20
_MOST_YAML_DEPTH = 50
_RESTORE = "restore it or start a new run"


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Make of an `OSError` a `StorageError` that names the file and says what to do."""
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
            errno.EEXIST: "part of the path is a file, not a folder: choose another folder",
            errno.EISDIR: "a folder, not a file",
            errno.ENAMETOOLONG: "the name is too long for this file system: choose a shorter one",
            errno.ELOOP: "links that lead in a circle",
        }.get(error.errno or 0, str(error.strerror or error))
        raise StorageError(f"{error.filename or path}: {advice}") from error


def temporary_name(path: Path) -> Path:
    """What a file is called while this process writes it; `remove_leftovers` knows the names."""
    name = path.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f"{os.fsencode(name)[: _LONGEST_NAME - 20].decode(errors='ignore')}-{_digest(name)}"
    return path.with_name(f".{name}.{os.getpid()}.l2l_nas.tmp")


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def short_name(text: str) -> str:
    """A text as the beginning of a file name: plain letters, and not too long for what is put behind it."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", text)
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 20]}-{_digest(text)}"


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that did not exist: what a killed process of the same number left goes, and a link is never followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        handle = os.open(path, flags, 0o666)
    with os.fdopen(handle, "wb") as file:
        yield file


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file: after a crash there is the old one or the new one, never a part.

    Raises:
        StorageError: it could not be written; the old file, if any, is whole.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = temporary_name(path)
    with named_failures(path):
        try:
            with _new_file(temporary) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):  # its name may be too long to exist
                temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing in a folder: files of our temporary names whose process is gone.

    This process must not be writing there.
    """
    with contextlib.suppress(OSError):  # no such folder, or one that may not be changed: nothing of ours is lost
        for path in list(folder.iterdir()):
            match = _TEMPORARY.fullmatch(path.name)
            if match and (int(match[1]) == os.getpid() or not _is_alive(int(match[1]))):
                if path.is_dir() and not path.is_symlink():
                    remove_files(path, lambda name: True)
                else:
                    path.unlink()


def remove_files(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the files right in a folder whose names are ours, and the folder itself if nothing else is in it.

    A link to a folder is left alone, with all that it leads to.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if is_ours(path.name) and not path.is_dir():
                path.unlink()
        folder.rmdir()


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing; a link to one stays."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that a process of ours writes or has left behind."""
    return _TEMPORARY.fullmatch(name) is not None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True


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


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        StorageError: it is missing or cannot be read.
    """
    refuse_other_than_file(path)
    with named_failures(path):
        return path.read_bytes()


def refuse_other_than_file(path: Path) -> None:
    """Refuse what is no file: opening a pipe would wait for ever.

    Raises:
        StorageError: it is a folder, a pipe or the like, or missing.
    """
    with named_failures(path):
        if not path.is_file():
            raise OSError(errno.EISDIR if path.is_dir() else errno.ENOENT, "not a file", str(path))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: it is missing, or not JSON.
    """
    data = read_bytes(path)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: damaged, not JSON ({error}); {_RESTORE}") from None


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain data alone. What stands in a file twice by an alias is none of ours, and ten of them are a bomb."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse aliases, and what is nested deeper than settings are."""
        reason = "aliases are not read" if self.check_event(yaml.AliasEvent) else ""
        reason = reason or ("nested too deep" if self._depth > _MOST_YAML_DEPTH else "")
        if reason:
            raise yaml.composer.ComposerError(None, None, reason, self.peek_event().start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings of a run: plain data, nothing in it is resolved or imported.

    Raises:
        StorageError: it is missing, or holds no settings.
    """
    data = read_bytes(path)
    if len(data) > _MOST_YAML_BYTES:
        raise StorageError(f"{path}: damaged, {len(data):,} bytes are no settings of a run; {_RESTORE}")
    try:
        content = yaml.load(data.decode(), Loader=_PlainLoader)  # a safe loader
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise StorageError(f"{path}: damaged ({' '.join(str(error).split())}); {_RESTORE}") from None
    if not isinstance(content, dict):
        raise StorageError(f"{path}: damaged, not the settings of a run; {_RESTORE}")
    return content


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write settings atomically, as `read_yaml` reads them.

    Raises:
        StorageError: it could not be written.
    """
    write_atomically(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically.

    Raises:
        StorageError: it could not be written.
    """
    write_atomically(path, json.dumps(content, indent=2) + "\n")
