"""Reads npz files: plain arrays alone, each as long as its header says, nothing unpickled."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from l2l_nas.errors import DataError, L2LError, StorageError, described
from l2l_nas.files import named_failures, refuse_other_than_file

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file by name, in this machine's byte order.

    Raises:
        StorageError: no such file, or not an npz of whole arrays of numbers.
        DataError: it is larger than this machine's memory.
    """
    try:
        refuse_other_than_file(path)
        with named_failures(path), open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _refuse_larger_than_memory(path, sum(member.file_size for member in members))
            return {_name(member, members): _read(archive, member) for member in members}
    except (L2LError, MemoryError):
        raise
    except Exception as error:  # zipfile and numpy raise nine kinds of errors for what is damaged
        raise StorageError(f"{path}: not an npz file of plain arrays ({described(error)})") from None


def native(array: np.ndarray) -> np.ndarray:
    """An array in this machine's byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def refuse_left_over(names: Iterable[str], used: Collection[str], place: Path) -> None:
    """Refuse arrays that nothing would use, such as a part under another name.

    Raises:
        DataError: with their names.
    """
    left = sorted(set(names) - set(used))
    if left:
        raise DataError(
            f"{place}: {', '.join(sorted(used))} are used, and {', '.join(left)} would not be; leave that out, or name "
            "arrays x_train y_train x_test y_test x_validation y_validation"
        )


def _refuse_larger_than_memory(path: Path, num_bytes: int) -> None:
    """A small file may say that it holds much: filling memory with it would have the process killed."""
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory:
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
        header_bytes, needed_bytes = _sizes(file, member.filename)
        if header_bytes + needed_bytes != member.file_size:
            raise ValueError(
                f"'{member.filename}' has {member.file_size:,} bytes, its header says {header_bytes + needed_bytes:,}"
            )
    with archive.open(member) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        file.read(1)  # the end: now the checksum has been examined
    return native(array)


def _sizes(file: IO[bytes], name: str) -> tuple[int, int]:
    """Bytes of an array's header, and of the numbers that it announces."""
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"'{name}' is of version {version}")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.names is not None:
        raise ValueError(f"'{name}' holds {dtype}, not numbers")
    if any(size < 0 for size in shape):
        raise ValueError(f"'{name}' is of the shape {shape}")
    return file.tell(), math.prod(shape) * dtype.itemsize
