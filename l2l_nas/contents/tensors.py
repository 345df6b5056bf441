"""What the numbers of tensors are: a checksum of them, and whether they are finite."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.errors import StorageError

_PART = 1 << 20  # numbers of a tensor that are looked at together


def checksum_of(tensors: Iterable[Tensor]) -> int:
    """The CRC-32 of the numbers in tensors, one after the other, whatever their shapes."""
    checksum = 0
    for tensor in tensors:
        numbers = tensor.detach().cpu().contiguous().view(-1)
        checksum = zlib.crc32(numbers.view(torch.uint8).numpy().data, checksum)
    return checksum


def refuse_non_finite(tensor: Tensor, name: str, where: Path | str) -> None:
    """Refuse weights of a file with a NaN or an infinity among them.

    Raises:
        StorageError: there is one.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return
    flat = tensor.detach().reshape(-1)
    for begin in range(0, flat.numel(), _PART):
        if not torch.isfinite(flat[begin : begin + _PART]).all():
            raise StorageError(f"{where}: {name} holds NaN or infinity, which no weight is; get it again")
