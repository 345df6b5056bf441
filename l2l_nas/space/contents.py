"""A walk through containers, functions and plain objects, for checks that search for tensors."""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# attributes that every module has: tensors, submodules, hooks
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
TENSOR_TABLES = frozenset(("_parameters", "_buffers", "_modules"))
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_LEAVES = (Tensor, nn.Module, type, types.ModuleType, logging.Logger, *_PLAIN)
# by class, something that differs where two values do
_MARKS: tuple[tuple[Any, Callable[[Any], object]], ...] = (
    (Tensor, lambda value: (id(value), value._version)),
    (_PLAIN, lambda value: (type(value), repr(value))),
    (random.Random, lambda value: value.getstate()),
    (np.random.Generator, lambda value: repr(value.bit_generator.state)),
    (np.random.RandomState, lambda value: repr(value.get_state())),
    (torch.Generator, lambda value: bytes(value.get_state().tolist())),
    (np.ndarray, lambda value: (id(value), value.tobytes())),
    ((list, tuple, set, frozenset, dict), lambda value: (type(value), len(value))),
    (object, id),
)


def contents(
    value: object, name: str, *, opaque: bool = True, depth: int = 5, seen: dict[int, int] | None = None
) -> Iterator[tuple[str, object]]:
    """A value and what is in it, each with the expression that leads there, such as `tables[0]`.

    Args:
        opaque: walk into containers only, not into functions (what they close over) and plain objects (their
            attributes).
        depth: how many steps to go.
        seen: of several walks, how deep each object was walked, by identity: what many values share is walked once.
    """
    seen = {} if seen is None else seen
    yield name, value
    if isinstance(value, _LEAVES) or seen.get(id(value), 0) >= depth:
        return
    seen[id(value)] = depth
    for path, item in _items(value, name, opaque):
        yield from contents(item, path, opaque=opaque, depth=depth - 1, seen=seen)


def _items(value: object, name: str, opaque: bool) -> Iterator[tuple[str, object]]:
    if isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
    elif opaque:
        return
    elif isinstance(value, functools.partial):
        yield from ((name, item) for item in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield name, value.__self__
    elif isinstance(value, types.FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty yet
                yield variable, cell.cell_contents
        yield from ((f"{name}'s default", item) for item in (*(value.__defaults__ or ()), value.__kwdefaults__))
    elif hasattr(value, "__dict__"):
        yield from ((f"{name}.{key}", item) for key, item in vars(value).items())


def storage_of(tensor: Tensor) -> int:
    """A number that identifies the memory of a tensor while it is alive; on meta, too."""
    return tensor.untyped_storage()._cdata


class Snapshot:
    """What a module keeps outside parameters and buffers' values, to be compared with a later one.

    Attributes:
        marks: by expression, something that differs where the value does. The `training` flag is left out.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        self._alive: list[object] = []  # an identity that is used again would hide a change
        self.marks: dict[str, object] = {}
        seen: dict[int, int] = {}
        for path, part in module.named_modules():
            start = f"{path}." if path else ""
            for table in (part._parameters, part._buffers, part._modules):
                for name, item in table.items():
                    self._alive.append(item)
                    self.marks[start + name] = id(item)
            for name, value in vars(part).items():
                if name in MODULE_ATTRIBUTES:
                    continue
                for expression, found in contents(value, start + name, opaque=False, seen=seen):
                    self._alive.append(found)
                    mark = next(mark for kind, mark in _MARKS if isinstance(found, kind))
                    self.marks[expression] = id(found) if id(found) in tensors else mark(found)

    def changed(self, later: Snapshot) -> str | None:
        """The first expression whose value is another one in `later`, new or gone; None if there is none."""
        names = (*later.marks, *self.marks)
        return next((name for name in names if self.marks.get(name, self) != later.marks.get(name, self)), None)
