"""Calls factories: modules on meta for slots, modules on the host for weights, and never a module of the user's own.

[Note: modules that exist] A factory may return a module that was built before (`lambda: pretrained[3]`), or put one
into a new module. The layer is then a copy of it, whose first weights are its own, and the user's module is neither
bound nor changed: two layers of one module are two layers. Such a factory is known by what it gives where it is asked
to build on meta: tensors that have memory. A factory that cannot build on meta (it calls `.item()`, decomposes a
matrix) is treated alike: it builds on the host, and what it gives is copied without its memory.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from l2l_nas.errors import SpaceError, is_of_code, is_out_of_memory, what_raised
from l2l_nas.space.contents import TENSOR_TABLES, contents, storage_of
from l2l_nas.space.torch_state import TorchStateError, refuse_change, unchanged


def meta_copy(module: nn.Module) -> nn.Module:
    """A copy without memory: its parameters and buffers are on meta."""

    def without_memory(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    return copy_with(module, lambda p: nn.Parameter(without_memory(p), p.requires_grad), without_memory)


def copy_with(
    module: nn.Module,
    parameter: Callable[[nn.Parameter], nn.Parameter],
    buffer: Callable[[Tensor], Tensor],
) -> nn.Module:
    """A copy of a module whose tensors are what these functions give of the module's."""
    copies: dict[int, Any] = {id(tensor): parameter(tensor) for tensor in module.parameters()}
    copies |= {id(tensor): buffer(tensor) for tensor in module.buffers()}
    return copy.deepcopy(module, copies)


def named_tensors(module: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once, or under all its names."""
    yield from module.named_parameters(remove_duplicate=remove_duplicate)
    yield from module.named_buffers(remove_duplicate=remove_duplicate)


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The part of a module that has a tensor of this name, and what the tensor is called there."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def put_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Replace the parameter of this name."""
    owner, leaf = owner_of(module, name)
    setattr(owner, leaf, parameter)  # setattr, as modules like nn.LSTM keep lists that follow it


class Builder:
    """Builds the layers of a pool; see [Note: modules that exist].

    Attributes:
        borrowed: by kind, the trainable parameters, by name, that a factory takes from elsewhere into new modules.
    """

    def __init__(self) -> None:
        self.borrowed: dict[object, dict[str, nn.Parameter]] = {}
        # by kind, what to copy on meta; None where the factory builds there itself
        self._prototypes: dict[object, nn.Module | None] = {}

    def build(self, kind: object, factory: Callable[[], object], device: str) -> nn.Module:
        """A new module on a device: "meta", "cpu" or an accelerator.

        Raises:
            SpaceError: the factory raised, or returned something else than a module that can be a layer.
        """
        if kind not in self._prototypes:
            module = self._first(kind, factory)
            if device == "meta" and self._prototypes[kind] is None:
                return module
        prototype = self._prototypes[kind]
        if device == "meta" and prototype is not None:
            return meta_copy(prototype)
        module = _call(factory, device)
        if prototype is not None:
            module = _copied(copy.deepcopy, module)
        if device != "meta":
            module = module.to(device)
        leftover = [name for name, tensor in named_tensors(module) if tensor.is_meta is not (device == "meta")]
        if leftover:
            raise SpaceError(f"its factory builds '{leftover[0]}' on another device in some of its calls")
        return module

    def _first(self, kind: object, factory: Callable[[], object]) -> nn.Module:
        """Call a factory for the first time: whether it can build on meta, and whether each of its modules is new."""
        device = "meta"
        try:
            module = _call(factory, device)
        except SpaceError:
            device = "cpu"
            with torch.random.fork_rng(devices=[]):
                module = _call(factory, device)
        _refuse_unusable(module)
        is_new = all(tensor.is_meta for _, tensor in named_tensors(module)) and not isinstance(factory, Existing)
        if not is_new:
            _refuse_ties_to_itself(module)
            with torch.random.fork_rng(devices=[]):
                again = _call(factory, device)
            same = {id(parameter) for parameter in again.parameters() if again is not module}
            self.borrowed[kind] = {n: p for n, p in module.named_parameters() if id(p) in same and p.requires_grad}
        self._prototypes[kind] = None if is_new else _copied(meta_copy, module)
        return module


class Existing:
    """The factory of a candidate that was given as a module; a `Builder` copies it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        """The module itself."""
        return self.module


def _call(factory: Callable[[], object], device: str) -> nn.Module:
    try:
        with torch.device(device), unchanged(refuse_change("factory")):
            module = factory()
    except BaseException as error:
        if isinstance(error, TorchStateError) or not is_of_code(error) or is_out_of_memory(error):
            raise
        raise SpaceError(f"its factory {what_raised(error)}") from error
    if not isinstance(module, nn.Module):
        raise SpaceError(f"its factory returned {type(module).__name__}, expected an nn.Module")
    return module


def _copied(how: Callable[[nn.Module], nn.Module], module: nn.Module) -> nn.Module:
    try:
        return how(module)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpaceError(
            f"it was built before and cannot be copied ({text}); build it in the factory and load its weights there"
        ) from error


def _refuse_unusable(module: nn.Module) -> None:
    """Refuse what neither a copy nor a slot can carry: parameters without a shape, hooks on them, shared memory."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise SpaceError(f"{name or 'it'} gives sparse gradients, which no slot holds; write sparse=False")
    extents: dict[int, list[tuple[str, int, int]]] = {}
    for name, tensor in named_tensors(module):
        if is_lazy(tensor):
            raise SpaceError(
                f"'{name}' gets its shape in the first forward; give the shape, such as nn.Linear(in, out) for "
                "nn.LazyLinear(out)"
            )
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise SpaceError(
                f"the tensor '{name}' has a hook (register_hook), which would be lost: weights cross to the device "
                "without it; do the same in the forward, such as self.weight * mask, or with "
                "torch.nn.utils.parametrize"
            )
        start = int(tensor.storage_offset()) * tensor.itemsize
        extent = 1 + sum(int((size - 1) * step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        neighbours = extents.setdefault(storage_of(tensor), [])
        end = start + extent * tensor.itemsize if tensor.numel() else start
        for other, begins, ends in neighbours:
            if start < ends and begins < end:
                raise SpaceError(f"'{name}' and '{other}' share memory; clone one, or make them one tensor")
        neighbours.append((name, start, end))


def _refuse_ties_to_itself(module: nn.Module) -> None:
    """Refuse functions that hold the module: they are not copied, and would go on using the original."""
    parts = {id(item) for _, item in (*module.named_modules(), *named_tensors(module))}
    for part in module.modules():
        for attribute, value in vars(part).items():
            for _, function in () if attribute in TENSOR_TABLES else contents(value, attribute):
                if not isinstance(function, types.FunctionType):
                    continue  # a bound method is copied together with its module
                if any(id(held) in parts for _, held in contents(function, attribute, opaque=False)):
                    raise SpaceError(
                        f"a function in '{attribute}' holds a part of the layer itself, and would use the original "
                        "where the layer is a copy; make it a method, or build the layer in the factory"
                    )
