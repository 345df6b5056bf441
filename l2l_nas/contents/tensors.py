"""Whether the weights of a file are numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.errors import StorageError

_PART = 1 << 20  # numbers of a tensor that are looked at together


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
