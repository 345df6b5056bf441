"""Layouts: where each named tensor of a state lies in its flat block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from l2l_nas.errors import SpaceError
from l2l_nas.space.build import named_tensors
from l2l_nas.space.pool import LayerPool, PerPool

# Kernels may take another path on unaligned memory, so that results would differ in the last bit from a plain module's.
# 256 is the most that cuBLAS and torch ask for; torch's allocators align to 64 on a CPU, to 512 on CUDA.
ALIGNMENT_BYTES = 256


def align(num_bytes: int, to_bytes: int = ALIGNMENT_BYTES) -> int:
    """Round up to a whole number of `to_bytes`."""
    return -(-num_bytes // to_bytes) * to_bytes


@dataclass(frozen=True)
class Entry:
    """One tensor in a block; a fixed one crosses the link as it is, in every precision."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int = 0
    trainable: bool = False
    is_fixed: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.numel * self.dtype.itemsize

    def view(self, block: Tensor) -> Tensor:
        """The tensor inside a uint8 block."""
        return block[self.offset_bytes : self.end_bytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Moment:
    """A block of what an optimizer keeps: the tensors of one name."""

    name: str
    indices: tuple[int, ...]  # of the parameters that have one
    entries: tuple[Entry, ...]

    @property
    def num_bytes(self) -> int:
        return _end(self.entries)


@dataclass(frozen=True)
class Layout:
    """The parameters and buffers of one state, and what its optimizer keeps for them.

    Args:
        aliases: further names that the module gives to a parameter or buffer listed under another name.
        moments: empty in layouts without an optimizer.
    """

    parameters: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    moments: tuple[Moment, ...] = ()

    @property
    def parameter_bytes(self) -> int:
        """Size of the block of weights; the block of gradients is as large."""
        return _end(self.parameters)

    @property
    def buffer_bytes(self) -> int:
        return _end(self.buffers)

    @property
    def num_parameters(self) -> int:
        """Number of weights, frozen ones included, padding not."""
        return sum(entry.numel for entry in self.parameters)

    @property
    def is_trainable(self) -> bool:
        return any(entry.trainable for entry in self.parameters)

    def as_wire(self, dtype: torch.dtype) -> Layout:
        """The layout in which these tensors cross the link: float32 weights become the wire dtype, but for BatchNorm's.

        Buffers keep their dtype: tables of rotary positions and running statistics would lose what they hold. BatchNorm
        takes inputs of lower precision, but wants its own weights in the dtype of its statistics.
        """
        if dtype == torch.float32:
            return self
        parameters, buffers = (
            packed(
                replace(entry, dtype=dtype) if entry.dtype == torch.float32 and not entry.is_fixed else entry
                for entry in entries
            )
            for entries in (self.parameters, self.buffers)
        )
        return Layout(parameters, buffers, self.aliases)

    def with_moments(self, stored: Sequence[Mapping[str, tuple[tuple[int, ...], torch.dtype]]]) -> Layout:
        """This layout with an optimizer's tensors: for each parameter, their shapes and dtypes by name."""
        moments = []
        for name in dict.fromkeys(name for tensors in stored for name in tensors):
            indices = tuple(index for index, tensors in enumerate(stored) if name in tensors)
            entries = packed(Entry(self.parameters[index].name, *stored[index][name]) for index in indices)
            moments.append(Moment(name, indices, entries))
        return replace(self, moments=tuple(moments))

    def describe(self) -> list[list[object]]:
        """Names, shapes and dtypes of the module's own tensors as JSON."""
        return [[e.name, list(e.shape), str(e.dtype), e.trainable] for e in (*self.parameters, *self.buffers)]


def _end(entries: Sequence[Entry]) -> int:
    return align(entries[-1].end_bytes) if entries else 0


def packed(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Put tensors one behind the other into a block."""
    placed: list[Entry] = []
    for entry in entries:
        placed.append(replace(entry, offset_bytes=_end(placed)))
    return tuple(placed)


def layout_of_module(module: nn.Module, *, tied: Iterable[str] = ()) -> Layout:
    """The layout of a module's tensors, without the parameters that are tied to other layers.

    Raises:
        TypeError: a parameter that is not float32, as masters are; or one that shares its tensor with a tied one.
    """
    hidden = set(tied)
    shared = {id(p) for name, p in module.named_parameters(remove_duplicate=False) if name in hidden}
    fixed = _fixed_names(module)
    names: dict[int, str] = {}
    parameters, aliases = [], []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in hidden:
            continue
        if parameter.dtype != torch.float32:
            raise TypeError(f"parameter '{name}' is {parameter.dtype}; masters are float32, so build it in float32")
        if id(parameter) in shared:
            raise TypeError(f"parameter '{name}' is the same tensor as a tied one; tie '{name}' as well")
        if id(parameter) in names:
            aliases.append((name, names[id(parameter)]))
        else:
            names[id(parameter)] = name
            parameters.append(_entry(name, parameter, is_fixed=name in fixed))
    first = {id(buffer): name for name, buffer in module.named_buffers()}
    named = module.named_buffers(remove_duplicate=False)
    aliases += [(name, first[id(buffer)]) for name, buffer in named if first[id(buffer)] != name]
    buffers = [_entry(name, buffer, is_fixed=name in fixed) for name, buffer in module.named_buffers()]
    return Layout(packed(parameters), packed(buffers), tuple(aliases))


def _entry(name: str, tensor: Tensor, *, is_fixed: bool = False) -> Entry:
    is_trainable = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    return Entry(name, tuple(tensor.shape), tensor.dtype, trainable=is_trainable, is_fixed=is_fixed)


def _fixed_names(module: nn.Module) -> frozenset[str]:
    """Tensors that keep their dtype on the device: BatchNorm's, `keep_dtype`, and buffers without `round_dtype`."""
    norms = [(path, part) for path, part in module.named_modules() if isinstance(part, _NormBase)]
    of_norms = {f"{path}.{leaf}".lstrip(".") for path, part in norms for leaf in (*part._parameters, *part._buffers)}
    buffers = frozenset(name for name, _ in module.named_buffers())
    return _names_in(module, "keep_dtype") | of_norms | (buffers - _names_in(module, "round_dtype"))


def _names_in(module: nn.Module, attribute: str) -> frozenset[str]:
    """Tensors that an attribute of modules names; all tensors of a module where the attribute is True."""
    names = set()
    for path, part in module.named_modules():
        listed = getattr(part, attribute, ())
        if listed is True:
            listed = [name for name, _ in named_tensors(part)]
        else:
            for name in listed:
                if name not in part._buffers and name not in part._parameters:
                    raise TypeError(f"{attribute} names '{name}', which is neither parameter nor buffer of the module")
        names |= {f"{path}.{name}".lstrip(".") for name in listed}
    return frozenset(names)


def tied_name(pool: LayerPool, key: str) -> str | None:
    """For the state of a tied parameter, the parameter's name in the layer that defines it; None for other states."""
    return next(iter(pool.owner(key).tied_names(key)), None)


_LAYOUTS: PerPool[dict[str, Layout]] = PerPool()
_WIRES: PerPool[dict[tuple[str, torch.dtype], Layout]] = PerPool()


def layout_of(pool: LayerPool, key: str) -> Layout:
    """The layout of a state of a pool, from a module on meta; remembered for as long as the pool lives.

    Raises:
        SpaceError: the factory raised, or built a parameter that is not float32 or tied under one of its names only.
    """
    layouts = _LAYOUTS.setdefault(pool, {})
    if key not in layouts:
        layout = _layout_of(pool, key)
        # equal ones are one object, by which blocks of gradients remember their views
        layouts[key] = next((other for other in layouts.values() if other == layout), layout)
    return layouts[key]


def _layout_of(pool: LayerPool, key: str) -> Layout:
    layer = pool.owner(key)
    module = pool.build_module(layer, device="meta")
    name = tied_name(pool, key)
    try:
        if name is None:
            return layout_of_module(module, tied=layer.candidate.tied)
        return Layout(packed([_entry("weight", dict(module.named_parameters(remove_duplicate=False))[name])]), ())
    except TypeError as error:
        raise SpaceError(
            str(error), position=pool.positions[layer.position].name, candidate=layer.candidate.name
        ) from None


def wire_layout_of(pool: LayerPool, key: str, dtype: torch.dtype) -> Layout:
    """The layout in which a state crosses the link; remembered for as long as the pool lives."""
    layouts = _WIRES.setdefault(pool, {})
    if (key, dtype) not in layouts:
        layouts[key, dtype] = layout_of(pool, key).as_wire(dtype)
    return layouts[key, dtype]
