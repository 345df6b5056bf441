"""Results on their way to a shared study: stored in the run's folder until the study has them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from l2l_nas.files import named_failures, read_bytes, sync_folder


class Outbox:
    """`pending.jsonl`: one result a line, on disk before anybody tries to deliver it.

    Args:
        path: there only while something waits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries: list[dict[str, Any]] = self._read()

    def _read(self) -> list[dict[str, Any]]:
        entries = []
        content = read_bytes(self._path) if self._path.exists() else b""
        for line in content.decode("utf-8", "replace").splitlines():
            with contextlib.suppress(
                ValueError, RecursionError
            ):  # a line that a kill cut off: its trial was not finished
                entry = json.loads(line)
                if isinstance(entry, dict) and "claim" in entry:  # of version 0.1.0
                    entry["lease"] = entry.pop("claim")
                if isinstance(entry, dict) and isinstance(entry.get("lease"), str):
                    entries.append(entry)
        return entries

    def add(self, entry: dict[str, Any]) -> None:
        """Keep a result.

        Raises:
            StorageError: the folder cannot be written.
        """
        is_new = not self._path.exists()
        with named_failures(self._path), open(self._path, "a", encoding="utf-8") as file:
            file.write(("" if is_new else "\n") + json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self._path.parent)
        self.entries.append(entry)

    def drop(self, entry: dict[str, Any]) -> None:
        """The study has it."""
        self.entries.remove(entry)
        if not self.entries:
            with named_failures(self._path):
                self._path.unlink(missing_ok=True)
