"""Arrays in files: plain numbers alone, each as long as its header says, nothing unpickled."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from l2l_nas.errors import DataError
from l2l_nas.files import memory_bytes, open_file, parsing

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_ADVICE = "save it again with numpy"
_MOST_ARRAYS = 1000  # each name is compared with each


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name, in this machine's byte order.

    Raises:
        StorageError: no such file, or not an npz of whole arrays of numbers.
        DataError: it is larger than this machine's memory.
    """
    with (
        open_file(path) as opened,
        parsing(path, "an npz file of plain arrays", advice=_ADVICE),
        zipfile.ZipFile(opened) as archive,
    ):
        members = archive.infolist()
        if len(members) > _MOST_ARRAYS:
            raise ValueError(f"{len(members):,} arrays, at most {_MOST_ARRAYS:,} are read")
        _refuse_larger_than_memory(path, sum(member.file_size for member in members))
        return {_name(member, members): _read(archive, member) for member in members}


def map_npy(path: Path) -> np.ndarray:
    """The array of a .npy file, mapped: only what is used is read.

    Raises:
        StorageError: no such file, or not a .npy of one whole array of numbers.
    """
    with open_file(path) as file, parsing(path, "a .npy file of a plain array", advice=_ADVICE):
        header = _read_header(file, path.name)
        size = file.seek(0, 2)
        if size != header.end:
            raise ValueError(f"it has {size:,} bytes, its header says {header.end:,}")
        order = "F" if header.is_fortran else "C"
        return np.memmap(file, header.dtype, "r", header.begin, header.shape, order)  # type: ignore[call-overload]


def native(array: np.ndarray) -> np.ndarray:
    """An array as torch takes it: in this machine's byte order, and no dimension back to front (`x[::-1]`)."""
    is_reversed = any(stride < 0 for stride in array.strides)
    return array.astype(array.dtype.newbyteorder("="), order="C" if is_reversed else "K", copy=is_reversed)


def _refuse_larger_than_memory(path: Path, num_bytes: int) -> None:
    """A small file may say that it holds much: filling memory with it would have the process killed."""
    memory = memory_bytes()
    if memory is not None and num_bytes > memory:
        raise DataError(f"{path}: holds {num_bytes / 2**30:,.1f} GiB, this machine has {memory / 2**30:,.1f}")


def _name(member: zipfile.ZipInfo, members: list[zipfile.ZipInfo]) -> str:
    if not member.filename.endswith(".npy"):
        raise ValueError(f"'{member.filename}' is no array")
    if sum(other.filename == member.filename for other in members) > 1:
        raise ValueError(f"'{member.filename}' is there twice")
    if member.flag_bits & 1:
        raise ValueError(f"'{member.filename}' is encrypted")
    return member.filename.removesuffix(".npy")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        end = _read_header(file, member.filename).end
        if end != member.file_size:
            raise ValueError(f"'{member.filename}' has {member.file_size:,} bytes, its header says {end:,}")
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # the end: now the checksum has been examined
    return native(array)


class _Header(NamedTuple):
    """What stands before the numbers of an array, and where these begin and end in the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    begin: int
    end: int


def _read_header(file: IO[bytes], name: str) -> _Header:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"'{name}' is of version {version}")
    shape, is_fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"'{name}' holds {dtype}, not numbers")
    if any(size < 0 for size in shape):
        raise ValueError(f"'{name}' is of the shape {shape}")
    begin = file.tell()
    return _Header(shape, dtype, is_fortran, begin, begin + math.prod(shape) * dtype.itemsize)
