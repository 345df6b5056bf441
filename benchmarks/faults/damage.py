"""Damages files: bytes of any file, and values of those whose form is known, with their checksums made right again.

`judged` tells whether what was changed of a model's file may change what the model computes: numbers of tensors may say
something else and be right; where tensors lie and of what type they are may not.
"""

from __future__ import annotations

import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from l2l_nas.eps.manifest import digest_of

# beginnings of files of other kinds
_OTHER_KINDS = (
    b"GGUF\x03\x00\x00\x00", b"\x93NUMPY\x01\x00v\x00", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\x1f\x8b\x08",
    b"SQLite format 3\x00", b"\x80\x04cos\nsystem\n", b"{}", b"\xff\xfe",
)  # fmt: skip
_BYTES = ("flip", "cut", "delete", "double", "insert", "zero", "random", "other", "folder", "gone", "pipe", "link")
_ODDS: tuple[Any, ...] = (
    None, True, 0, 7, -1, 10**30, 1e308, float("nan"), float("inf"), "", "x", "x" * 5000, "\ud800", "\0", "../../x",
    [], [[]], {}, [None], {"a": {"b": []}}, [1, 2, 3], "[/x]r", "1e5", "\x1b[31m", "/etc/passwd",
)  # fmt: skip
_OTHER_JSON = ("[" * 100_000, '{"a":' * 100_000, "7", "null", "[]", "{}", "1" * 5000, '"\\ud800"')
_OTHER_LINES = (b"{}", b"[]", b"7", b"\xff\xfe", b"[" * 100_000, b"no JSON", b'{"op_code": 99}')
_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
_OTHER_YAML = (
    _BOMB.encode(), b"[" * 100_000, b"a: " * 3000, b"seed: \xff\xfe\n", b"- 1\n", b"a: '" + b"x" * 3_000_000 + b"'",
    b"!!python/object/apply:os.system ['touch pwned']", b"a: 1\n---\nb: 2\n", b"a:\n\tb: 1", b"seed: 2001-99-99\n",
    b"? [a]\n: 1\n", "seed: 0".encode("utf-16"), b"a: &a [*a]\n", b"a: &x {b: 1}\nc:\n  <<: *x\n",
)  # fmt: skip
_HEADS = ("<f4", "<f2", ">f8", "|O", "<u2,(", "<U4", "f", "<c8", "|b1", "<i8", "<M8[s]", "x" * 999)
_SHAPES = ("(160, 2)", "(160,)", "()", "(-1,)", "(160, (2", "(2**62, 9)", "(0, 2)", "None", "(99999999999, 9)", "x")
Way = Callable[[Path, random.Random], str]


def mutate(path: Path, generator: random.Random) -> str:
    """Damage a file in one way; says which."""
    known = {
        ".json": _json, ".yaml": _yaml, ".jsonl": _lines, ".log": _lines, ".npz": _npz, ".npy": _npy,
        ".safetensors": _safetensors,
    }  # fmt: skip
    ways: list[Way] = [_bytes, *[known[path.suffix]] * 3] if path.suffix in known else [_bytes]
    return generator.choice(ways)(path, generator)


def _bytes(path: Path, generator: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place = generator.randrange(len(data) + 1)
    end = min(len(data), place + generator.choice((1, 4, 64, 4096)))
    way = generator.choice(_BYTES)
    if way == "flip":
        for _ in range(generator.choice((1, 1, 3, 30))):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    elif way == "cut":
        del data[place:]
    elif way == "delete":
        del data[place:end]
    elif way == "double":
        data[place:place] = data[place:end]
    elif way == "insert":
        data[place:place] = generator.randbytes(generator.choice((1, 3, 300)))
    elif way == "zero":
        data[place:end] = bytes(end - place)
    elif way == "random":
        data[:] = generator.randbytes(generator.choice((0, 1, 100, 10_000)))
    elif way == "other":
        data[:] = generator.choice(_OTHER_KINDS) + data[: generator.choice((0, 1, 1000))]
    path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "link":
        path.symlink_to(generator.choice(("/dev/zero", "nowhere", path.name, "..", "/proc/self/mem")))
    elif way == "pipe":
        os.mkfifo(path)
    elif way != "gone":
        path.write_bytes(data)
    return way


def _places(content: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        found.append((content, key))
        _places(value, found)
    return found


def _value(content: Any, generator: random.Random) -> str:
    places = _places(content, [])
    if not places:
        return "nothing in it"
    where, key = generator.choice(places)
    if generator.random() < 0.3:
        del where[key]
        return f"without {key!r}"
    where[key] = generator.choice(_ODDS)
    return f"{key!r} is {str(where[key])[:40]!r}"


def _text(content: Any) -> bytes:
    return json.dumps(content).encode(errors="surrogatepass")


def _json(path: Path, generator: random.Random) -> str:
    if generator.random() < 0.1:
        path.write_text(generator.choice(_OTHER_JSON))
        return "is other JSON"
    content = json.loads(path.read_bytes())
    said = _value(content, generator)
    if isinstance(content, dict) and "sha256" in content and path.name.startswith("manifest"):
        content["sha256"] = digest_of(content)
    path.write_bytes(_text(content))
    return said


def _lines(path: Path, generator: random.Random) -> str:
    lines = path.read_bytes().splitlines(keepends=True)
    place = generator.randrange(len(lines))
    way = generator.choice(("value", "value", "value", "swap", "double", "delete", "text"))
    said = way
    if way == "value":
        content = json.loads(lines[place])
        said = _value(content, generator)
        lines[place] = _text(content) + b"\n"
    elif way == "swap":
        other = generator.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif way == "double":
        lines.insert(place, lines[place])
    elif way == "delete":
        del lines[place]
    else:
        lines.insert(place, generator.choice(_OTHER_LINES) + b"\n")
    path.write_bytes(b"".join(lines))
    return f"line {place}: {said}"


def _yaml(path: Path, generator: random.Random) -> str:
    if generator.random() < 0.25:
        text = generator.choice(_OTHER_YAML)
        path.write_bytes(text)
        return f"is {text[:20]!r}"
    content = yaml.safe_load(path.read_bytes())
    said = _value(content, generator)
    path.write_bytes(yaml.safe_dump(content).encode(errors="surrogatepass"))
    return said


def _npz(path: Path, generator: random.Random) -> str:
    """Other arrays, or an archive whose members are none."""
    number = np.random.default_rng(generator.randrange(2**32))
    x, y = number.random((160, 2), dtype=np.float32), number.integers(0, 2, 160)
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    header += ("{'descr': '<f4', 'fortran_order': False, 'shape': (64000000000000, 1), }".ljust(117) + "\n").encode()
    kinds = ("f2", "f8", "f16", "i1", "u2", "u8", "c8", "S3", "U3", "?", "M8[s]", ">f4")
    shapes = ((0, 2), (160,), (), (160, 2, 1), (160, 3), (1, 2), (159, 2))
    others: dict[str, Callable[[], dict[str, Any]]] = {
        "dtype": lambda: {"x": x.astype(generator.choice(kinds)), "y": y},
        "shape": lambda: {"x": np.zeros(generator.choice(shapes), np.float32), "y": y},
        "nan": lambda: {"x": np.where(x > 0.9, np.nan, x).astype(np.float32), "y": y},
        "targets": lambda: {"x": x, "y": generator.choice((y - 5, y * 1000, y[:, None], y * 0, y / 3, y[:100]))},
        "names": lambda: generator.choice(({"x": x}, {"a": x, "b": y}, {}, {"x": x, "y": y, "z/../../w": y})),
        "object": lambda: {"x": np.array([{"a": 1}] * 160, dtype=object), "y": y},
    }
    members = {
        "no array": [("y.npy", b"no array")],
        "huge": [("y.npy", header)],
        "text": [("y.npy", header), ("readme.txt", b"x")],
        "deflate": [("x.npy", header + bytes(50_000_000))],
    }
    way = generator.choice((*others, *members))
    if way in others:
        np.savez(path, **others[way]())
        return way
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members[way]:
            archive.writestr(name, data)
    return way


def _npy(path: Path, generator: random.Random) -> str:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<H", data, 8)
    way = generator.choice(("head", "head", "length", "version", "pickle", "zip"))
    if way == "length":
        path.write_bytes(data[:8] + struct.pack("<H", generator.choice((0, 1, size - 1, size + 64, 65535))) + data[10:])
    elif way == "version":
        path.write_bytes(data[:6] + bytes([generator.choice((0, 2, 3, 9)), generator.choice((0, 1))]) + data[8:])
    elif way == "pickle":
        path.write_bytes(b"\x80\x04K\x01.")
    elif way == "zip":
        path.write_bytes(b"PK\x03\x04" + data)
    else:
        descr, shape = generator.choice(_HEADS), generator.choice(_SHAPES)
        head = f"{{'descr': '{descr}', 'fortran_order': {generator.choice((True, False, 7))}, 'shape': {shape}, }}"
        head = head.ljust(size - 1) + "\n"
        path.write_bytes(data[:8] + struct.pack("<H", len(head)) + head.encode() + data[10 + size :])
        way = f"head with {descr[:20]} {shape}"
    return way


def _safetensors(path: Path, generator: random.Random) -> str:
    """One entry of the head, or its length."""
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
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = [begin + step * (way != "end"), end + step * (way != "begin")]
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


def judged(path: Path, before: bytes) -> bool:
    """Whether a file of weights must give what it gave before, or be refused."""
    try:
        after = path.read_bytes() if path.is_file() else b""
    except OSError:  # a link to what cannot be read
        after = b""
    (size,) = struct.unpack_from("<Q", before)
    return len(after) != len(before) or after[: 8 + size] != before[: 8 + size]
