from __future__ import annotations

import os
import struct
import zipfile

import numpy as np
import pytest

from l2l_nas.contents.arrays import map_npy, read_npz
from l2l_nas.errors import DataError, StorageError
from l2l_nas.training.data import from_npz

X = np.arange(320, dtype=np.float32).reshape(160, 2)
Y = np.arange(160) % 2


def member(shape: str, content: bytes = b"", *, descr: str = "<f4") -> bytes:
    """An array as np.save writes it, with whatever header."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + content


def archive(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("_npy", ".npy"), data)
    return path


def test_arrays_come_back_as_they_were_saved(tmp_path):
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", x=X, y=Y, z=np.asfortranarray(X), e=np.zeros((0, 3)))
        found = read_npz(tmp_path / "a.npz")
        assert sorted(found) == ["e", "x", "y", "z"]
        for name, array in (("x", X), ("y", Y), ("z", X), ("e", np.zeros((0, 3)))):
            np.testing.assert_array_equal(found[name], array)


def test_arrays_of_another_byte_order_are_turned(tmp_path):
    np.savez(tmp_path / "a.npz", x=X.astype(">f4"), y=Y.astype(">i8"))
    data = from_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=X, y=Y)
    assert data.digest == from_npz(tmp_path / "b.npz").digest


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"x_npy": b"no array"}, "magic string"),
        ({"x_npy": member("(160, 2)", bytes(100))}, "has 228 bytes, its header says 1,408"),
        ({"x_npy": member("(-1, 2)")}, r"header says|of the shape"),
        ({"x_npy": member("(160, 2)", descr="|O")}, "not numbers"),
        ({"readme.txt": b"hello"}, "'readme.txt' is no array"),
    ],
)
def test_what_is_no_array_is_refused_in_one_line(tmp_path, members, says):
    path = archive(tmp_path / "a.npz", **members)
    with pytest.raises(StorageError, match=says) as caught:
        read_npz(path)
    assert "\n" not in str(caught.value)
    assert "a.npz: damaged, not an npz file of plain arrays" in str(caught.value)


def test_an_encrypted_member_is_refused(tmp_path):
    path = archive(tmp_path / "a.npz", x_npy=member("(2,)", bytes(8)))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x03\x04") + 6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"'x.npy' is encrypted"):
        read_npz(path)


def test_a_file_that_was_cut_or_changed_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=Y)
    whole = path.read_bytes()
    for data in (whole[:-1], whole[:300], b"", whole[:500] + b"\xff" + whole[501:]):
        path.write_bytes(data)
        with pytest.raises(StorageError, match="damaged, not an npz file of plain arrays"):
            read_npz(path)


def test_more_arrays_than_anybody_names_are_not_begun(tmp_path):
    path = archive(tmp_path / "a.npz", **{f"x{number}_npy": b"" for number in range(1001)})
    with pytest.raises(StorageError, match=r"a\.npz: damaged, not an npz file of plain arrays \(1,001 arrays, at most"):
        read_npz(path)


def test_more_than_the_memory_of_this_machine_is_not_begun(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=X)
    monkeypatch.setattr("os.sysconf", lambda name: 16)
    with pytest.raises(DataError, match="this machine has"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("array", [X, np.asfortranarray(X), X.astype(">f4"), np.zeros((0, 3)), np.float64(2.0)])
def test_an_array_is_mapped_as_it_was_saved(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    found = map_npy(tmp_path / "a.npy")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def _npz(path):
    with path.open("wb") as file:
        np.savez(file, x=X)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        _npz,
        lambda path: path.write_bytes(member("(160, 2)", bytes(1281))),
        lambda path: path.write_bytes(member("(-160, 2)", bytes(1280))),
        lambda path: path.write_bytes(member("(160, 2)", bytes(1280), descr="<u2,(")),
        lambda path: path.write_bytes(member("(" * 60, bytes(1280))),
        lambda path: path.write_bytes(member("(160, 2)", bytes(2560), descr="|O")),
        os.mkdir,
        os.mkfifo,
    ],
)
def test_what_is_no_npy_file_is_refused_in_one_line(tmp_path, damage):
    damage(tmp_path / "y.npy")
    with pytest.raises(StorageError, match=r"y\.npy: ") as caught:
        map_npy(tmp_path / "y.npy")
    assert "\n" not in str(caught.value)
