"""Writing and reading files so that a crash, a full disk or a foreign file loses nothing.

[Note: files of others] What is read may be anybody's: damaged, cut, of another kind, or made to do harm. So

- it is opened by `open_file` (or read by `read_bytes`): a regular file, never a pipe or a device, of a bounded size;
- a parser of another library runs within `parsing`, which makes one error with the file and the reason of whatever it
  raises;
- `l2l_nas.contents` checks what was parsed before it is used: numbers and texts by name (`Fields`), arrays (`map_npy`,
  `read_npz`), and that weights are numbers (`refuse_non_finite`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import yaml

from l2l_nas.errors import L2LError, StorageError, described

# of a file that is written: a kill may leave it behind, and the number says whose it was
_TEMPORARY = re.compile(r"\..+\.(\d+)\.l2l_nas\.tmp")
# file systems take names of 255 bytes; what is put around this much fits
_LONGEST_NAME = 180
# no settings are longer, and a reader in Python takes seconds for a megabyte
_MOST_YAML_BYTES = 1 << 20
_MOST_YAML_DEPTH = 50
_MOST_YAML_VALUES = 100_000  # with what aliases stand for, each time: ten lines of them can stand for all memory
_MOST_JSON_BYTES = 1 << 28
_RESTORE = "restore it or start a new run"


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Make of an `OSError`, or of a name that no file can have, a `StorageError` that names it and says what to do."""
    try:
        yield
    except ValueError as error:
        is_name = isinstance(error, UnicodeEncodeError) and str(path).startswith(error.object)
        if is_name or "embedded null" in str(error):
            raise StorageError(f"{str(path)!r}: no file can have this name; choose another") from error
        raise
    except OSError as error:
        advice = {
            errno.ENOSPC: "the disk is full: free some space, then try again; a run goes on by resume=FOLDER",
            errno.EDQUOT: "the disk quota is used up: free some space, then try again; a run goes on by resume=FOLDER",
            errno.EFBIG: "the file would grow past the limit set for this process: raise it (ulimit -f), "
            "then try again; a run goes on by resume=FOLDER",
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
            if match and (int(match[1]) == os.getpid() or not is_process_alive(int(match[1]))):
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


def is_process_alive(process: int) -> bool:
    """Whether a process of this machine runs."""
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


def refuse_links(path: Path) -> None:
    """Refuse a file or folder of a run that leads somewhere else, as does a folder with a link in it.

    Raises:
        StorageError: it names the link.
    """
    entries: list[Path] = []
    with contextlib.suppress(OSError):  # a file, or not there
        entries = [path / entry.name for entry in os.scandir(path) if entry.is_symlink()]
    for link in [path] * path.is_symlink() or entries:
        raise StorageError(
            f"{link}: a link to {os.readlink(link)}, and nothing in a run's folder is followed out of it; put what it "
            "leads to in its place, or remove the link"
        )


def refuse_other_than_file(path: Path) -> None:
    """Refuse what is no file: opening a pipe would wait for ever.

    Raises:
        StorageError: it is a folder, a pipe or a device, or missing.
    """
    with named_failures(path):
        _refuse_other_than_file(path, os.stat(path))


def _refuse_other_than_file(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, "not a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise StorageError(f"{path}: a pipe or a device, not a file")


@contextlib.contextmanager
def open_file(path: Path, *, most_bytes: int | None = None) -> Iterator[BinaryIO]:
    """A regular file, open for reading. See [Note: files of others].

    What was opened is asked whether it is one, so that nothing can take its place in between.

    Args:
        most_bytes: a larger file is refused; None: any size, for what reads a part of it.

    Raises:
        StorageError: it is missing, a folder, a pipe or a device, larger, or cannot be read.
    """
    with named_failures(path), open(path, "rb", opener=_at_once) as file:
        found = os.fstat(file.fileno())
        _refuse_other_than_file(path, found)
        if most_bytes is not None and found.st_size > most_bytes:
            raise StorageError(f"{path}: {found.st_size:,} bytes; at most {most_bytes:,} are read")
        yield file


def _at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes to would be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextlib.contextmanager
def parsing(
    path: Path | str, kind: str, *, advice: str = "get it again", error: type[L2LError] = StorageError
) -> Iterator[None]:
    """Around a parser of another library, and checks of ours that raise a ValueError. See [Note: files of others].

    Whatever is raised within becomes one error with the file and the reason: also lack of memory, a nesting too deep,
    and the panic of a library in Rust, which is no `Exception`. Errors of ours and Ctrl-C pass.

    Args:
        path: of the file.
        kind: what it should be, such as "a safetensors file".
        advice: what to do.
        error: what to raise.

    Raises:
        StorageError: something was raised.
    """
    try:
        yield
    except L2LError:
        raise
    except BaseException as raised:
        if not isinstance(raised, Exception) and type(raised).__name__ != "PanicException":
            raise
        raise error(f"{path}: damaged, not {kind} ({_reason(raised)}); {advice}") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "what it says that it holds does not fit into memory"
    if isinstance(error, RecursionError):
        return "nested too deep"
    return re.sub(r" <_io\.[^>]*>", "", described(error))  # an open file's name is in the message already


def read_bytes(path: Path, *, most_bytes: int | None = None) -> bytes:
    """Read a whole file.

    Args:
        most_bytes: a larger one is refused; None: one that is larger than this machine's memory.

    Raises:
        StorageError: it is missing, no file, too large, or cannot be read.
    """
    with open_file(path, most_bytes=most_bytes or memory_bytes()) as file:
        return file.read()


def memory_bytes() -> int | None:
    """Of this machine; None where that is not known."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        StorageError: it is missing, or not JSON.
    """
    data = read_bytes(path, most_bytes=_MOST_JSON_BYTES)
    with parsing(path, "JSON", advice=_RESTORE):
        return json.loads(data)


class _Endless(yaml.composer.ComposerError):  # type: ignore[misc]
    """What would take for ever, or all memory."""


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain data alone, not nested deeper than settings are, nor larger; what an alias stands for counts each time."""

    _depth, _values = 0, 0

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._within: dict[str, int] = {}  # by anchor, the values below it

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias within what it stands for, too many values, and what is nested too deep."""
        event, before, reason = self.peek_event(), self._values, ""
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor in self.anchors and event.anchor not in self._within:
            reason = "an alias within what it stands for"
        self._values += self._within.get(event.anchor, 1) if is_alias else 1
        reason = reason or ("nested too deep" if self._depth > _MOST_YAML_DEPTH else "")
        reason = reason or (f"more than {_MOST_YAML_VALUES:,} values" if self._values > _MOST_YAML_VALUES else "")
        if reason:
            raise _Endless(None, None, reason, event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1
            if not is_alias and getattr(event, "anchor", None) is not None:
                self._within[event.anchor] = self._values - before


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings of a run: plain data, nothing in it is resolved or imported.

    Raises:
        StorageError: it is missing, or holds no settings.
    """
    content = _plain_yaml(path)
    if not isinstance(content, dict):
        raise StorageError(f"{path}: damaged, not the settings of a run; {_RESTORE}")
    return content


def read_yaml_list(path: Path) -> list[Any]:
    """Read a list of plain data.

    Raises:
        StorageError: it is missing, or holds no list.
    """
    content = _plain_yaml(path)
    if not isinstance(content, list):
        raise StorageError(f"{path}: damaged, not a list; {_RESTORE}")
    return content


def _plain_yaml(path: Path) -> Any:
    with parsing(path, "YAML of plain data", advice=_RESTORE):
        return _PlainLoader(read_bytes(path, most_bytes=_MOST_YAML_BYTES).decode()).get_single_data()


def check_yaml(path: Path) -> None:
    """Refuse a YAML file of the user's that another library would not come to the end of.

    What is no YAML at all, that library says.

    Raises:
        StorageError: it is missing, no file, too large, nested too deep, or its aliases stand for too much.
    """
    data = read_bytes(path, most_bytes=_MOST_YAML_BYTES)
    try:
        _PlainLoader(data.decode(errors="replace")).get_single_node()
    except _Endless as error:
        raise StorageError(f"{path}: {' '.join(str(error).split())}; write less into it") from None
    except yaml.YAMLError:
        return


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write settings atomically, as `read_yaml` reads them.

    Raises:
        StorageError: it could not be written.
    """
    write_atomically(path, yaml_text(content))


def yaml_text(content: Mapping[str, Any]) -> str:
    """Settings as `write_yaml` writes them."""
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically.

    Raises:
        StorageError: it could not be written.
    """
    write_atomically(path, json.dumps(content, indent=2) + "\n")
