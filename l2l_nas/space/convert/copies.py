"""Copies of a model: of its code, with its own tensors or others."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from l2l_nas.errors import SpaceError
from l2l_nas.space.build import copy_with


def with_hooks(model: nn.Module, ran: nn.Module) -> nn.Module:
    """A copy of a model with its tensors, and the hooks and flags that the first forward of another, `ran`, set."""
    copy = copied(model)
    pairs = list(zip(copy.modules(), ran.modules(), strict=True))
    if any(len(module._forward_hooks) != len(source._forward_hooks) for module, source in pairs):
        for module, source in pairs:
            hooks = {name: table for name, table in vars(source).items() if name.startswith("_forward_")}
            flags = {name: value for name, value in vars(source).items() if isinstance(value, bool)}
            vars(module).update(hooks | flags | {"training": module.training})
    return copy


def copied(
    model: nn.Module,
    *,
    parameter: Callable[[nn.Parameter], nn.Parameter] = lambda tensor: tensor,
    buffer: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> nn.Module:
    """A copy of a model whose tensors are what these functions give of the model's: by default those themselves.

    Raises:
        SpaceError: it cannot be copied.
    """
    try:
        return copy_with(model, parameter, buffer)
    except Exception as error:
        raise SpaceError(
            f"the model cannot be copied ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            "for torch.nn.utils.weight_norm take the function of this name in torch.nn.utils.parametrizations"
        ) from error
