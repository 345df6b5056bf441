"""Damages what a file says of its tensors: offsets, shapes, types and lengths of safetensors and npy files.

`judged` tells whether what was changed of a model's file may change what the model computes: numbers of tensors may say
something else and be right; where tensors lie and of what type they are may not.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path


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
    (size,) = struct.unpack_from("<Q", before)
    return any(place < 8 + size for place in _changed(before, after))
