"""How tensors lie in a file, and whether weights are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.errors import StorageError

_PART = 1 << 20  # numbers of a tensor that are looked at together


def refuse_misplaced(spans: Mapping[str, tuple[int, int]], *, begin: int, end: int, alignment: int = 1) -> None:
    """Refuse tensors that do not lie one right behind the other: a wrong offset would give other weights in silence.

    Args:
        spans: first byte and number of bytes of each tensor, in the order in which they must lie.
        begin, end: of the tensors in the file; nothing lies behind the last one but what fills up to `alignment`.
        alignment: each begins at the next multiple of it.

    Raises:
        ValueError: one begins elsewhere, or the file ends early or late.
    """
    place = begin
    for name, (offset, num_bytes) in spans.items():
        if offset != place:
            raise ValueError(f"{name} begins at byte {offset}, expected {place}: right behind the tensor before it")
        if offset + num_bytes > end:
            raise ValueError(f"{name} does not lie within the file: {offset + num_bytes} bytes of {end}")
        last = offset + num_bytes
        place = -(-last // alignment) * alignment
    if spans and end > place:
        raise ValueError(f"{end - place} bytes lie behind the last tensor")


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
