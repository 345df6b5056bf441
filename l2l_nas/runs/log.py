"""The log of a training, or of a size: one event a line. A search has its events in its study, see `nas/study`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from l2l_nas.errors import StorageError
from l2l_nas.files import named_failures, read_bytes


class Log(Protocol):
    """Where a run writes what it tells of itself."""

    @property
    def is_begun(self) -> bool:
        """Whether this process has written an event."""

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; its fields are JSON.

        Raises:
            StorageError: it could not be written.
        """


def line_of(event: str, **fields: Any) -> str:
    """An event as a log has it."""
    return json.dumps({"event": event, "time": round(time.time(), 3), **fields}) + "\n"


class LogFile:
    """`log.jsonl`: one event a line, appended and flushed. A line cut off by a crash does not hurt the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def write(self, event: str, **fields: Any) -> None:
        """Append an event.

        Raises:
            StorageError: it could not be written.
        """
        with named_failures(self._path):
            if self._file is None:
                self._file = self._open()
            elif not self._path.exists() or not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                # what is written into another file would be lost
                raise StorageError(f"{self._path}: it was deleted or moved while the run was at work in its folder")
            self._file.write(line_of(event, **fields))
            self._file.flush()

    def _open(self) -> TextIO:
        before = read_bytes(self._path) if self._path.exists() else b""  # which refuses a pipe
        file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the run
        if before and not before.endswith(b"\n"):
            file.write("\n")
        return file

    @property
    def is_begun(self) -> bool:
        """Whether this process has written an event."""
        return self._file is not None

    def close(self) -> None:
        """Close the file; what cannot be flushed was reported before."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
