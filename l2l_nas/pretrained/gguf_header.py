"""The head of a GGUF file: metadata, and where each tensor lies. Read with every count checked against the file.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` library has a reader too; a damaged
count makes it loop or fill the memory, so that only its tables of types and its dequantisation are used.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from l2l_nas.files import open_file, parsing

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4
_ALIGNMENT = 32


@dataclass(frozen=True)
class Stored:
    """One tensor of a file."""

    shape: tuple[int, ...]  # as PyTorch counts, the fastest dimension last
    kind: int  # number of its type
    offset: int  # of its first byte in the file


@dataclass(frozen=True)
class Header:
    """What stands before the tensors."""

    metadata: dict[str, Any]
    tensors: dict[str, Stored]  # by the file's own names, in the order in which they lie
    begin: int  # the byte where tensors begin
    alignment: int  # each begins at a multiple of it


def read_header(path: Path) -> Header:
    """The head of a file.

    Raises:
        StorageError: no such file, no GGUF, a version before 2, or damaged.
    """
    with open_file(path) as file, parsing(path, "a GGUF file"):
        return _Reader(file, path.stat().st_size).header()


class _Reader:
    def __init__(self, file: IO[bytes], num_bytes: int) -> None:
        self._file, self._num_bytes = file, num_bytes

    def header(self) -> Header:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, expected 2 or 3")
        num_tensors, num_keys = self._count(24), self._count(13)
        metadata = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ValueError(f"{key!r} twice")
            metadata[key] = self._value(self._scalar("I"))
        relative: dict[str, Stored] = {}
        for _ in range(num_tensors):
            name = self._string()
            dimensions = self._scalar("I")
            if dimensions > _DIMENSIONS or name in relative:
                raise ValueError(f"tensor {name!r} twice, or of {dimensions} dimensions")
            shape = tuple(self._scalar("Q") for _ in range(dimensions))
            kind = self._scalar("I")
            if not all(shape) or math.prod(shape) > 64 * self._num_bytes:
                raise ValueError(f"tensor {name!r} of shape {list(shape)}")
            relative[name] = Stored(shape[::-1], kind, self._scalar("Q"))
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"alignment {alignment!r}, expected a power of 2")
        start = -(-self._file.tell() // alignment) * alignment
        tensors = {name: replace(stored, offset=start + stored.offset) for name, stored in relative.items()}
        return Header(metadata, tensors, start, alignment)

    def _take(self, num_bytes: int) -> bytes:
        if num_bytes > self._num_bytes - self._file.tell():
            raise ValueError("it ends early")
        return self._file.read(num_bytes)

    def _scalar(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _count(self, least_bytes: int) -> int:
        """A number of items that take at least so many bytes each."""
        count = int(self._scalar("Q"))
        if count * least_bytes > self._num_bytes - self._file.tell():
            raise ValueError(f"{count} items in {self._num_bytes} bytes")
        return count

    def _string(self) -> str:
        return self._take(self._count(1)).decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"metadata of the unknown type {kind}")
        inner = self._scalar("I")
        if inner == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if inner not in _SCALARS:
            raise ValueError(f"an array of the type {inner}")
        count = self._count(struct.calcsize(f"<{_SCALARS[inner]}"))
        form = f"<{count}{_SCALARS[inner]}"
        return list(struct.unpack(form, self._take(struct.calcsize(form))))
