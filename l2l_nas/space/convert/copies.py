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
    if any(len(module._forward_hooks) != len(source._forward_hooks) for module, source in pairs):
        for module, source in pairs:
            hooks = {name: table for name, table in vars(source).items() if name.startswith("_forward_")}
            flags = {name: value for name, value in vars(source).items() if isinstance(value, bool)}
            vars(module).update(hooks | flags | {"training": module.training})
    return copied


def shallow_copy(model: nn.Module, *, own_buffers: bool = False) -> nn.Module:
    """A copy of a model that has the same parameters and buffers as the model itself: it takes no memory.

    Args:
        own_buffers: copy the buffers.
    """
    copies: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    copies |= {id(buffer): buffer.clone() if own_buffers else buffer for buffer in model.buffers()}
    return copied(model, copies)


def copied(model: nn.Module, copies: dict[int, Any]) -> nn.Module:
    """A copy of a model; `copies` are those of its tensors, by identity.

    Raises:
        SpaceError: it cannot be copied.
    """
    try:
        return copy.deepcopy(model, copies)
    except Exception as error:
        raise SpaceError(
            f"the model cannot be copied ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            "for torch.nn.utils.weight_norm take the function of this name in torch.nn.utils.parametrizations"
        ) from error
