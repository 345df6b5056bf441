"""Damages what a file says of its tensors: offsets, shapes, types and lengths of GGUF, safetensors and npy files.

`judged` tells whether what was changed of a model's file may change what the model computes: numbers of tensors, and
figures of the model in GGUF's metadata, may say something else and be right; where tensors lie and of what type they
are may not.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _GGUF:
    """Where each number of a whole GGUF file's head stands: its name, place and form."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0
        self.fields: list[tuple[str, int, str]] = []
        self._number("magic", "I")
        self._number("version", "I")
        tensors, keys = self._number("number of tensors", "Q"), self._number("number of keys", "Q")
        self.metadata_begin = self._place
        for _ in range(keys):
            self._value(self._text("key"), self._number("type of a value", "I"))
        self.metadata_end = self._place
        for _ in range(tensors):
            name = self._text("tensor")
            dimensions = self._number(f"dimensions of {name}", "I")
            for index in range(dimensions):
                self._number(f"size {index} of {name}", "Q")
            self._number(f"type of {name}", "I")
            self._number(f"offset of {name}", "Q")
        self.begin = -(-self._place // 32) * 32

    def _number(self, name: str, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._place)
        self.fields.append((name, self._place, form))
        self._place += struct.calcsize(f"<{form}")
        return value

    def _text(self, name: str) -> str:
        size = self._number(f"length of a {name}", "Q")
        self._place += size
        return self._data[self._place - size : self._place].decode()

    def _value(self, key: str, kind: int) -> None:
        if kind == 8:
            self._text(f"text of {key}")
        elif kind == 9:
            inner, count = self._number(f"type within {key}", "I"), self._number(f"length of {key}", "Q")
            for _ in range(count):
                self._value(key, inner)
        else:
            self._number(key, _SCALARS[kind])


def _others(value: float, form: str, generator: random.Random) -> int | float:
    """Another number in place of one."""
    if form in "fd":
        return generator.choice((0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e30, 1e-30))
    bits = 8 * struct.calcsize(form)
    near = [int(value) + step for step in (-64, -32, -4, -1, 1, 4, 32, 64)]
    other = generator.choice((*near, 0, 1, 2, 3, 8, 24, 26, 30, 2 * int(value), 1 << (bits - 1), (1 << bits) - 1, 1000))
    return other % (1 << (bits - (form in "bhiq")))


def gguf(path: Path, generator: random.Random) -> str:
    """One number of the head of a GGUF file."""
    data = bytearray(path.read_bytes())
    fields = _GGUF(bytes(data)).fields
    of_tensors = [field for field in fields if field[0].startswith(("offset", "size", "type of", "dimensions"))]
    name, place, form = generator.choice(generator.choice((fields, of_tensors, of_tensors)))
    (value,) = struct.unpack_from(f"<{form}", data, place)
    other = _others(value, form, generator)
    if form == "?":
        other = not value
    struct.pack_into(f"<{form}", data, place, other)
    path.write_bytes(data)
    return f"{name} is {other}, not {value}"


def safetensors(path: Path, generator: random.Random) -> str:
    """One entry of the head of a safetensors file, or its length."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    if generator.random() < 0.2:
        other = generator.choice((0, 1, 2**63, 2**40, len(data), size - 1, size + 1))
        path.write_bytes(struct.pack("<Q", other % 2**64) + data[8:])
        return f"head of {other} bytes, not {size}"
    head = json.loads(data[8 : 8 + size])
    name = generator.choice([name for name in head if name != "__metadata__"])
    entry, way = head[name], generator.choice(("begin", "end", "both", "dtype", "shape", "gone", "twice", "name"))
    if way in ("begin", "end", "both"):
        step = generator.choice((-64, -8, -4, -1, 1, 4, 8, 64, 10**6, 2**62))
        entry["data_offsets"] = [
            entry["data_offsets"][0] + step * (way != "end"),
            entry["data_offsets"][1] + step * (way != "begin"),
        ]
    elif way == "dtype":
        entry["dtype"] = generator.choice(("I32", "F64", "BF16", "F16", "BOOL", "F8_E4M3", "x", "U8"))
    elif way == "shape":
        shape = entry["shape"]
        entry["shape"] = generator.choice((shape[::-1], [], [0], [-1], [*shape, 1], [2**62, 4], shape[:-1], ["x"]))
    elif way == "gone":
        del head[name]
    elif way == "twice":
        head[f"{name}.more"] = entry
    else:
        head[name[:-1]] = head.pop(name)
    said = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(said)) + said + data[8 + size :])
    return f"{way} of {name}"


def npy(path: Path, generator: random.Random) -> str:
    """The head of an array."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<H", data, 8)
    numbers = data[10 + size :]
    way = generator.choice(("head", "head", "length", "version", "pickle", "npz", "zip"))
    if way == "length":
        path.write_bytes(data[:8] + struct.pack("<H", generator.choice((0, 1, size - 1, size + 64, 65535))) + data[10:])
    elif way == "version":
        path.write_bytes(data[:6] + bytes([generator.choice((0, 2, 3, 9)), generator.choice((0, 1))]) + data[8:])
    elif way == "pickle":
        path.write_bytes(b"\x80\x04K\x01.")
    elif way == "npz":
        import numpy as np

        with path.open("wb") as file:
            np.savez(file, x=np.zeros(3))
    elif way == "zip":
        path.write_bytes(b"PK\x03\x04" + data)
    else:
        descr = generator.choice(
            ("<f4", "<f2", ">f8", "|O", "<u2,(", "<U4", "f", "<c8", "|b1", "<i8", "<M8[s]", "x" * 999)
        )
        shape = generator.choice(
            (
                "(160, 2)",
                "(160,)",
                "()",
                "(-1,)",
                "(160, (2",
                "(2**62, 9)",
                "(0, 2)",
                "None",
                "(99999999999, 9)",
                "x",
                "(" * 90,
            )
        )
        head = f"{{'descr': '{descr}', 'fortran_order': {generator.choice((True, False, 7))}, 'shape': {shape}, }}"
        head = head.ljust(size - 1) + "\n"
        path.write_bytes(data[:8] + struct.pack("<H", len(head)) + head.encode() + numbers)
        way = f"head with {descr[:20]} {shape[:20]}"
    return way


def _changed(before: bytes, after: bytes) -> Iterator[int]:
    return (place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other)


def judged(path: Path, before: bytes) -> bool:
    """Whether a file of a model must give what it gave before, or be refused."""
    try:
        after = path.read_bytes() if path.is_file() else b""
    except OSError:  # a link to what cannot be read
        after = b""
    if len(after) != len(before):
        return True
    if path.suffix == ".safetensors":
        (size,) = struct.unpack_from("<Q", before)
        return any(place < 8 + size for place in _changed(before, after))
    head = _GGUF(before)
    free = range(head.metadata_begin, head.metadata_end)
    return any(place < head.begin and place not in free for place in _changed(before, after))
