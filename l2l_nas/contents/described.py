"""What an object is, as a text that is the same in every process that was given the same one.

Ranks compare such texts. A value is told by itself, an object by its class and its fields, a function by its code,
its defaults and what it closes over. What a function finds in its module is not followed. An object that has neither
fields nor code, such as one that was written in C, is told by its class alone; so are places on a disk, devices and
generators of random numbers, of which each process has its own.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
import zlib
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2l_nas.contents.tensors import checksum_of

_PLAIN = (int, float, complex, str, bytes, type(None), type(...), torch.dtype, range, slice)
_OWN = (os.PathLike, torch.Generator, np.random.Generator, np.random.RandomState, types.ModuleType)
# of a module, what torch keeps beside its parts
_BOOKKEEPING = vars(nn.Module()).keys() - {"_parameters", "_buffers", "_modules"}
_DEEPEST = 32  # objects within objects; what lies deeper is told by its class
_LONGEST = 4096  # letters of an object; of a longer text stands a hash, so that texts of many that share one stay short
_LIBRARIES = {"torch", "numpy", "l2l_nas", *sys.stdlib_module_names}


def described(value: object, *, has_values: bool = True) -> str:
    """The text.

    Args:
        has_values: whether the numbers in tensors belong to it, or their shapes and dtypes alone.
    """
    return _Description(has_values).of(value)


def digest_of(value: object, *, has_values: bool = True) -> int:
    """A hash of the text, as a signed number of 64 bits."""
    text = value if isinstance(value, str) else described(value, has_values=has_values)
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], signed=True)


class _Description:
    def __init__(self, has_values: bool) -> None:
        self._has_values = has_values
        self._texts: dict[int, str] = {}  # by identity, of what was told whole
        self._alive: list[object] = []
        self._within: list[int] = []  # identities of what is being told, the outermost first

    def of(self, value: object) -> str:
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name}"
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, _OWN):
            return _name(type(value))
        if id(value) in self._within:  # a circle
            return f"#{self._within.index(id(value)) - len(self._within)}"
        if id(value) not in self._texts:
            if len(self._within) == _DEEPEST:
                return _name(type(value))
            self._alive.append(value)  # an identity that is used again would be another object's
            self._within.append(id(value))
            text = self._of_new(value)
            self._within.pop()
            # what is met again is told again: whether two of the same value are one object is no fact of them
            is_long = len(text) > _LONGEST
            self._texts[id(value)] = hashlib.sha256(text.encode(errors="replace")).hexdigest() if is_long else text
        return self._texts[id(value)]

    def _of_new(self, value: Any) -> str:
        if isinstance(value, Tensor | np.ndarray):
            return self._of_numbers(value)
        if isinstance(value, Mapping):
            return f"{_name(type(value))}{{{self._of_items(value)}}}"
        if isinstance(value, Set):
            return f"{_name(type(value))}{{{', '.join(sorted(map(self.of, value)))}}}"
        if isinstance(value, list | tuple):
            return f"{_name(type(value))}[{', '.join(map(self.of, value))}]"
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, types.CodeType):
            parts = (value.co_code.hex(), value.co_names, value.co_varnames, value.co_freevars, value.co_consts)
            return f"code({', '.join(map(self.of, parts))})"
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.MethodType):
            return f"{self.of(value.__self__)}.{value.__name__}: {self.of(value.__func__)}"
        if isinstance(value, functools.partial):
            return f"partial({self.of(value.func)}, {self.of(value.args)}, {self.of(value.keywords)})"
        return f"{self._of_class(type(value))}({self._of_items(fields_of(value))})"

    def _of_numbers(self, value: Tensor | np.ndarray[Any, Any]) -> str:
        tensor = value.detach() if isinstance(value, Tensor) else torch.empty(0)
        numbers = f"{value.dtype}{tuple(value.shape)}"
        if isinstance(value, np.ndarray):
            return f"{numbers} {zlib.crc32(value.tobytes()):08x}" if value.dtype != object else numbers
        if not self._has_values or tensor.is_meta:
            return numbers
        return f"{numbers} {checksum_of([tensor]):08x}"

    def _of_items(self, items: Mapping[Any, Any]) -> str:
        return ", ".join(f"{self.of(name)}: {self.of(item)}" for name, item in items.items())

    def _of_function(self, value: types.FunctionType) -> str:
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_of_library(value.__module__):
            return name
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return f"{name}({', '.join(map(self.of, (value.__code__, value.__defaults__, value.__kwdefaults__, cells)))})"

    def _of_class(self, kind: type) -> str:
        """Its name, and the code of what it and its bases define that are no library's."""
        own = [base for base in kind.__mro__ if not _is_of_library(base.__module__)]
        methods = [
            f"{name}={self.of(getattr(member, '__func__', getattr(member, 'fget', member)))}"
            for base in own
            for name, member in vars(base).items()
            if isinstance(member, types.FunctionType | staticmethod | classmethod | property)
        ]
        constants = [
            f"{name}={self.of(member)}"
            for base in own
            for name, member in vars(base).items()
            if isinstance(member, bool | int | float | str) and not name.startswith("__")
        ]
        return f"{_name(kind)}<{', '.join(methods + constants)}>" if own else _name(kind)


def fields_of(value: object) -> dict[str, Any]:
    """Of an object, by name and in its order; those that change as it runs are left out."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        return {entry.name: getattr(value, entry.name, None) for entry in dataclasses.fields(value)}
    names = [name for base in kind.__mro__ for name in _slots_of(base)]
    fields = {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(value, "__dict__", {})
    passing = {"__weakref__", *(_BOOKKEEPING if isinstance(value, nn.Module) else ())}
    passing |= {name for name in fields if isinstance(getattr(kind, name, None), functools.cached_property)}
    if _is_of_library(kind.__module__) and not isinstance(value, nn.Module):
        passing |= {name for name in fields if name.startswith("_")}  # what a library's object keeps to itself
    return {name: fields[name] for name in sorted(fields) if name not in passing}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
