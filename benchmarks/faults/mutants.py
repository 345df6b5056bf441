"""Damages files: bytes of any file, and values of those whose form is known, with their checksums made right again."""

from __future__ import annotations

import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import headers
from l2l_nas.eps.manifest import digest_of

# beginnings of files of other kinds
_OTHER_KINDS = (
    b"GGUF\x03\x00\x00\x00",
    b"\x93NUMPY\x01\x00v\x00",
    b"PK\x03\x04",
    b"\x89PNG\r\n\x1a\n",
    b"\x1f\x8b\x08",
    b"%!PS-Adobe-3.0\n",
    b"SQLite format 3\x00",
    b"\x80\x04cos\nsystem\n",
    b"{}",
    b"\xff\xfe",
)


def mutate(path: Path, generator: random.Random) -> str:
    """Damage a file in one way; says which."""
    special = {".json": _json, ".yaml": _yaml, ".jsonl": _lines, ".log": _lines, ".npz": _npz}
    ways: list[Callable[[Path, random.Random], str]] = [_bytes]
    if path.suffix in special:
        ways += [special[path.suffix]] * 3
    binary = {".safetensors": headers.safetensors, ".npy": headers.npy}
    if path.suffix in binary:
        ways += [binary[path.suffix]] * 3
    return generator.choice(ways)(path, generator)


def _bytes(path: Path, generator: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place = generator.randrange(len(data) + 1)
    end = min(len(data), place + generator.choice((1, 4, 64, 4096)))
    way = generator.choice(
        (
            "flip",
            "cut",
            "delete",
            "double",
            "insert",
            "zero",
            "empty",
            "random",
            "other",
            "folder",
            "gone",
            "pipe",
            "link",
        )
    )
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
    elif way == "empty":
        data.clear()
    elif way == "random":
        data[:] = generator.randbytes(generator.choice((1, 100, 10_000)))
    elif way == "other":
        data[:] = generator.choice(_OTHER_KINDS) + data[: generator.choice((0, 1, 1000))]
    path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "link":
        path.symlink_to(generator.choice(("/dev/zero", "nowhere", path.name, "..", "/proc/self/mem")))
    elif way == "pipe":
        import os

        os.mkfifo(path)
    elif way != "gone":
        path.write_bytes(data)
    return way


def odd(generator: random.Random) -> Any:
    """A value that nobody expects."""
    return generator.choice(
        (
            None,
            True,
            0,
            7,
            -1,
            10**30,
            1e308,
            float("nan"),
            float("inf"),
            "",
            "x",
            "x" * 5000,
            "\ud800",
            "\0",
            "../../x",
            [],
            [[]],
            {},
            [None],
            {"a": {"b": []}},
            [1, 2, 3],
            "[/x]r",
            "1e5",
            "\x1b[31m",
            "/etc/passwd",
        )
    )


def _places(content: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container and key in some JSON."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        found.append((content, key))
        _places(value, found)
    return found


def _damage_value(content: Any, generator: random.Random) -> str:
    places = _places(content, [])
    if not places:
        return "nothing in it"
    where, key = generator.choice(places)
    if generator.random() < 0.3:
        del where[key]
        return f"without {key!r}"
    value = odd(generator)
    where[key] = value
    return f"{key!r} is {str(value)[:40]!r}"


def _text(content: Any) -> bytes:
    return json.dumps(content).encode(errors="surrogatepass")


def _json(path: Path, generator: random.Random) -> str:
    if generator.random() < 0.1:
        path.write_text(
            generator.choice(("[" * 100_000, '{"a":' * 100_000, "7", "null", "[]", "{}", "1" * 5000, '"\\ud800"'))
        )
        return "is other JSON"
    content = json.loads(path.read_bytes())
    said = _damage_value(content, generator)
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
        said = _damage_value(content, generator)
        lines[place] = _text(content) + b"\n"
    elif way == "swap":
        other = generator.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif way == "double":
        lines.insert(place, lines[place])
    elif way == "delete":
        del lines[place]
    else:
        lines.insert(
            place,
            generator.choice(
                (b"{}\n", b"[]\n", b"7\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"no JSON\n", b'{"op_code": 99}\n')
            ),
        )
    path.write_bytes(b"".join(lines))
    return f"line {place}: {said}"


def _yaml(path: Path, generator: random.Random) -> str:
    import yaml

    if generator.random() < 0.25:
        bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
        )
        name, text = generator.choice(
            (
                ("bomb", bomb.encode()),
                ("deep", b"[" * 100_000),
                ("deep map", b"a: " * 3000),
                ("latin-1", b"seed: \xff\xfe\n"),
                ("tag", b"!!python/object/apply:os.system ['touch pwned']"),
                ("two documents", b"a: 1\n---\nb: 2\n"),
                ("list", b"- 1\n"),
                ("long", b"a: '" + b"x" * 3_000_000 + b"'"),
                ("tab", b"a:\n\tb: 1"),
                ("date", b"seed: 2001-99-99\n"),
                ("key", b"? [a]\n: 1\n"),
                ("utf-16", "seed: 0".encode("utf-16")),
                ("alias", b"a: &a [*a]\n"),
                ("<<", b"a: &x {b: 1}\nc:\n  <<: *x\n"),
            )
        )
        path.write_bytes(text)
        return name
    content = yaml.safe_load(path.read_bytes())
    said = _damage_value(content, generator)
    path.write_bytes(yaml.safe_dump(content).encode(errors="surrogatepass"))
    return said


def _npz(path: Path, generator: random.Random) -> str:
    number = np.random.default_rng(generator.randrange(2**32))
    x, y = number.random((160, 2), dtype=np.float32), number.integers(0, 2, 160)
    way = generator.choice(
        (
            "dtype",
            "shape",
            "endian",
            "no array",
            "encrypted",
            "huge",
            "object",
            "nan",
            "names",
            "targets",
            "text",
            "twice",
            "deflate",
        )
    )
    arrays: dict[str, Any] = {"x": x, "y": y}
    if way == "dtype":
        arrays["x"] = x.astype(generator.choice(("f2", "f8", "f16", "i1", "u2", "u8", "c8", "S3", "U3", "?", "M8[s]")))
    elif way == "shape":
        arrays["x"] = np.zeros(
            generator.choice(((0, 2), (160,), (), (160, 2, 1), (160, 3), (1, 2), (159, 2))), np.float32
        )
    elif way == "endian":
        arrays = {"x": x.astype(">f4"), "y": y.astype(">i8")}
    elif way == "nan":
        arrays["x"] = np.where(x > 0.9, np.nan, x).astype(np.float32)
    elif way == "targets":
        arrays["y"] = generator.choice(
            (y - 5, y * 1000, y[:, None], y * 0, y.astype(float) / 3, np.zeros(160, "U2"), y[:100])
        )
    elif way == "names":
        arrays = generator.choice(
            ({"x": x}, {"a": x, "b": y}, {}, {"x_train": x, "y_train": y}, {"x": x, "y": y, "z/../../w": y})
        )
    elif way == "object":
        arrays["x"] = np.array([{"a": 1}] * 160, dtype=object)
    np.savez(path, **arrays)
    if way in ("no array", "huge", "text", "twice", "deflate", "encrypted"):
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
        said = "{'descr': '<f4', 'fortran_order': False, 'shape': (64000000000000, 1), }".ljust(117) + "\n"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("y.npy", b"no array" if way == "no array" else header + said.encode())
            if way == "text":
                archive.writestr("readme.txt", "x")
            if way == "twice":
                archive.writestr("y.npy", header)
            if way == "deflate":
                archive.writestr("x.npy", header + said.encode() + bytes(50_000_000))
        if way == "encrypted":
            data = path.read_bytes()
            for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
                place = data.index(mark) + offset
                data = data[:place] + bytes([data[place] | 1]) + data[place + 1 :]
            path.write_bytes(data)
    return way
