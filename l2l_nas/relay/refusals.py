"""What layers and objectives must not do: each is refused with the layer that did it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from l2l_nas.arguments import listed
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import (
    L2LError,
    SettingError,
    SpaceError,
    UserCodeError,
    is_of_code,
    is_out_of_memory,
    what_raised,
)
from l2l_nas.relay.interface import Batch, Objective
from l2l_nas.relay.slots import Template, mixed_dtypes
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.operations import graph_leaves
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes, dry_run_of
from l2l_nas.space.torch_state import GRADIENTS, TorchStateError, refuse_change, unchanged

T = TypeVar("T")


def refuse_own_parameters(objective: Objective, loss: Tensor, outputs: Batch, modules: Sequence[nn.Module]) -> None:
    """Refuse an objective that would learn what nothing updates; see [Note: objectives that learn]."""
    leaves = [leaf for leaf in graph_leaves([loss], until=outputs) if not any(leaf is output for output in outputs)]
    if leaves and not {id(p) for module in modules for p in module.parameters()}.issuperset(map(id, leaves)):
        raise SettingError(
            f"the objective {type(objective).__name__} has parameters of its own, which nothing would train; "
            "derive it from nn.Module, make them part of the last layer, or detach them"
        )


def where(layer: Layer, pool: LayerPool) -> dict[str, str]:
    """Position and candidate of a layer, for errors."""
    return {"position": pool.positions[layer.position].name, "candidate": layer.candidate.name}


def refuse_replaced_buffers(layer: Layer, template: Template, pool: LayerPool) -> None:
    """Refuse a forward that replaced a buffer."""
    for name in template.rebind_buffers():
        raise SpaceError(
            f"its forward replaces the buffer '{name}'; change it in place: self.{name}.copy_(...)",
            **where(layer, pool),
        )


def refuse_changed_parameters(layer: Layer, pool: LayerPool) -> None:
    """Refuse a forward that wrote to parameters; the probe sees it before, unless a value decided it."""
    raise SpaceError(
        "changed its parameters, which only the optimizer may; keep running values in a buffer",
        **where(layer, pool),
    )


def refuse_moved_parameters(layer: Layer, template: Template, pool: LayerPool) -> None:
    """Refuse a forward that moved or replaced parameters."""
    if template.rebind_parameters():
        raise SpaceError(
            "moved or replaced its parameters, so that no update would reach them; leave them as they are",
            **where(layer, pool),
        )


def refuse_changes(layer: Layer, template: Template, version: int, pool: LayerPool) -> None:
    """Refuse what a visit may not change; the probe sees it before, unless a value decided it."""
    refuse_replaced_buffers(layer, template, pool)
    if template.weights_version != version:
        refuse_changed_parameters(layer, pool)
    refuse_moved_parameters(layer, template, pool)


def refuse_gradient_mode(*, is_training: bool) -> None:
    """Refuse a layer that left torch in another mode than it was called in."""
    if torch.is_grad_enabled() != is_training:
        refuse_change("forward")(GRADIENTS, None)


def refuse_torch_change(pool: LayerPool, layers: Iterable[Layer], change: str, cause: BaseException | None) -> NoReturn:
    """Refuse layers that changed torch's state, and name the one that does so when it runs alone."""
    inputs, path = (
        check_shapes(pool).takes,
        {layer.key: layer for layer in layers if not layer.candidate.is_skip},
    )
    for layer in path.values():
        try:
            with pool.naming(layer):
                dry_run = dry_run_of(pool, layer, inputs[layer.position])
                dry_run.forward()
                dry_run.backward()
                dry_run.evaluate()
        except TorchStateError as error:
            raise error from cause
        except Exception:
            continue
    raise SpaceError(
        f"one of the layers {', '.join(path)}, or the task, changes {change}, which all other code sees; leave it, or "
        "set it back before it returns"
    ) from cause


def keeps_torch_state(method: Callable[..., T]) -> Callable[..., T]:
    """Have a method of an executor refuse layers that change torch's state, and put that back."""

    @functools.wraps(method)
    def kept(executor: Any, *args: Any, **kwargs: Any) -> T:
        with unchanged(functools.partial(_refuse_of, executor.pool, args)):
            return method(executor, *args, **kwargs)

    return kept


def _refuse_of(pool: LayerPool, args: tuple[Any, ...], change: str, cause: BaseException | None) -> NoReturn:
    """Refuse what the layers of a call's architectures changed."""
    given = args[:1] if args and isinstance(args[0], Architecture) else (args and listed(args[0])) or ()
    chosen = [one for one in given if isinstance(one, Architecture)]
    layers = [layer for one in chosen for layer in pool.path(one)]
    refuse_torch_change(pool, layers or pool.layers, change, cause)


def raise_named(
    error: BaseException, path: Sequence[Layer], at: int | None, pool: LayerPool, dtype: torch.dtype
) -> NoReturn:
    """Raise what the user's code raised, with the layer that it is; other errors as they are."""
    if isinstance(error, SpaceError) and error.position is None and at is not None and at < len(path):
        raise SpaceError(str(error), **where(path[at], pool)) from None
    is_named = isinstance(error, L2LError | MemoryError) or is_out_of_memory(error)
    if is_named or not is_of_code(error):
        raise error
    raised = what_raised(error)
    if at is None:
        raise SpaceError(f"the backward from '{path[-1].key}' towards '{path[0].key}' {raised}") from error
    if at == len(path):
        raise UserCodeError(f"the task's loss {raised}") from error
    if "more than 1 value per channel" in raised:
        raised += "; a micro-batch has 1 sample, too few for batch statistics: choose sizes that leave no rest of 1"
    raised += mixed_dtypes(layout_of(pool, path[at].key), dtype, error)
    raise SpaceError(f"its layer {raised}", **where(path[at], pool)) from error
