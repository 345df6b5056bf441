"""Copies of a model: of its code, with its own tensors or others."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from l2l_nas.errors import SpaceError


def with_hooks(model: nn.Module, ran: nn.Module) -> nn.Module:
    """A shallow_copy of a model, with the hooks that the first forward of a copy, `ran`, installed, and its flags."""
    copied = shallow_copy(model)
    pairs = list(zip(copied.modules(), ran.modules(), strict=True))
    if any(len(own._forward_hooks) != len(other._forward_hooks) for own, other in pairs):
        for own, other in pairs:
            hooks = {name: table for name, table in vars(other).items() if name.startswith("_forward_")}
            flags = {name: value for name, value in vars(other).items() if isinstance(value, bool)}
            vars(own).update(hooks | flags | {"training": own.training})
    return copied


def shallow_copy(model: nn.Module, *, own_buffers: bool = False) -> nn.Module:
    """A copy of a model that has the same parameters and buffers as the model itself: it takes no memory.

    Args:
        own_buffers: copy the buffers.
    """
    known: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    known |= {id(buffer): buffer.clone() if own_buffers else buffer for buffer in model.buffers()}
    return copied(model, known)


def copied(model: nn.Module, known: dict[int, Any]) -> nn.Module:
    """A copy of a model; `known` are the copies of its tensors, by identity.

    Raises:
        SpaceError: it cannot be copied.
    """
    try:
        return copy.deepcopy(model, known)
    except Exception as error:
        raise SpaceError(
            f"the model cannot be copied ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            "for torch.nn.utils.weight_norm take the function of this name in torch.nn.utils.parametrizations"
        ) from error
