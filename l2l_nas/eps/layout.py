"""Layouts: where each named tensor of a state lies in its flat block."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
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
    """Round up to the alignment."""
    return -(-num_bytes // to_bytes) * to_bytes


@dataclass(frozen=True)
class Entry:
    """One tensor in a block: its offset is in bytes.

    Args:
        is_fixed: it crosses the link as it is, in every precision.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int
    trainable: bool = False
    is_fixed: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def view(self, block: Tensor) -> Tensor:
        """This tensor inside a uint8 block."""
        num_bytes = self.numel * self.dtype.itemsize
        part = block[self.offset_bytes : self.offset_bytes + num_bytes]
        return part.view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Moment:
    """A block of what an optimizer keeps: the tensors of one name.

    Args:
        entries: one for each parameter of the state; None where it keeps no tensor of this name.
    """

    name: str
    entries: tuple[Entry | None, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the block."""
        return _end(tuple(entry for entry in self.entries if entry is not None))


@dataclass(frozen=True)
class Layout:
    """The parameters and buffers of one state, and what its optimizer keeps for them.

    Args:
        aliases: further names that the module gives to a parameter or buffer listed under another name.
        moments: empty in layouts that know of no optimizer.
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
        """Size of the block of buffers."""
        return _end(self.buffers)

    @property
    def num_parameters(self) -> int:
        """Number of weights, frozen ones included, padding not."""
        return sum(entry.numel for entry in self.parameters)

    @property
    def is_trainable(self) -> bool:
        """Whether anything in it learns."""
        return any(entry.trainable for entry in self.parameters)

    def as_wire(self, dtype: torch.dtype) -> Layout:
        """The layout in which these tensors cross the link: float32 weights become the wire dtype, but for BatchNorm's.

        Buffers keep their dtype: tables of rotary positions and running statistics would lose what they hold. BatchNorm
        takes inputs of lower precision, but wants its own weights in the dtype of its statistics.
        """
        if dtype == torch.float32:
            return self

        def pack(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
            packed: list[Entry] = []
            for e in entries:
                own = dtype if e.dtype == torch.float32 and not e.is_fixed else e.dtype
                packed.append(Entry(e.name, e.shape, own, _end(tuple(packed[-1:])), e.trainable, e.is_fixed))
            return tuple(packed)

        return Layout(pack(self.parameters), pack(self.buffers), self.aliases)

    def with_moments(self, stored: Sequence[Sequence[tuple[str, tuple[int, ...], torch.dtype]]]) -> Layout:
        """This layout with an optimizer's tensors.

        Args:
            stored: of each parameter, name, shape and dtype of the tensors that are stored for it.
        """
        names = dict.fromkeys(name for tensors in stored for name, _, _ in tensors)
        moments = []
        for name in names:
            entries: list[Entry | None] = []
            end = 0
            for parameter, tensors in zip(self.parameters, stored, strict=True):
                own = next(((shape, dtype) for known, shape, dtype in tensors if known == name), None)
                entry = None if own is None else Entry(parameter.name, *own, offset_bytes=end)
                end = end if entry is None else _end((entry,))
                entries.append(entry)
            moments.append(Moment(name, tuple(entries)))
        return replace(self, moments=tuple(moments))

    def describe(self) -> list[list[object]]:
        """Names, shapes and dtypes of the module's own tensors as JSON."""
        return [[e.name, list(e.shape), str(e.dtype), e.trainable] for e in (*self.parameters, *self.buffers)]


def _end(entries: tuple[Entry, ...]) -> int:
    if not entries:
        return 0
    last = entries[-1]
    return align(last.offset_bytes + last.numel * last.dtype.itemsize)


def _pack(tensors: Iterable[tuple[str, Tensor, bool]], fixed: frozenset[str] = frozenset()) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    for name, tensor, trainable in tensors:
        start = _end(tuple(entries[-1:]))
        entries.append(Entry(name, tuple(tensor.shape), tensor.dtype, start, trainable, name in fixed))
    return tuple(entries)


def layout_of_module(module: nn.Module, *, tied: Iterable[str] = ()) -> Layout:
    """The layout of a module's own tensors, those tied elsewhere left out.

    Raises:
        TypeError: a parameter that is not float32, as masters are; or one that shares its tensor with a tied one.
    """
    hidden = set(tied)
    shared = {id(p) for name, p in module.named_parameters(remove_duplicate=False) if name in hidden}
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
            parameters.append((name, parameter, parameter.requires_grad))
    first = {id(buffer): name for name, buffer in module.named_buffers()}
    named = module.named_buffers(remove_duplicate=False)
    aliases += [(name, first[id(buffer)]) for name, buffer in named if first[id(buffer)] != name]
    buffers = ((name, buffer, False) for name, buffer in module.named_buffers())
    norms = [(path, part) for path, part in module.named_modules() if isinstance(part, _NormBase)]
    fixed = frozenset(
        f"{path}.{leaf}".lstrip(".") for path, part in norms for leaf in (*part._parameters, *part._buffers)
    )
    kept, rounded = _named_in(module, "keep_dtype"), _named_in(module, "round_dtype")
    fixed |= kept | (frozenset(name for name, _ in module.named_buffers()) - rounded)
    return Layout(_pack(parameters, fixed), _pack(buffers, fixed), tuple(aliases))


def _named_in(module: nn.Module, attribute: str) -> frozenset[str]:
    """Tensors that an attribute of modules names, all that a module has where it is True.

    Raises:
        TypeError: it names what the module does not have.
    """
    found = set()
    for path, part in module.named_modules():
        asked = getattr(part, attribute, ())
        if asked is True:
            asked = ()
            found |= {f"{path}.{name}".lstrip(".") for name, _ in named_tensors(part)}
        for name in asked:
            if name not in part._buffers and name not in part._parameters:
                raise TypeError(f"{attribute} names '{name}', which is neither parameter nor buffer of the module")
            found.add(f"{path}.{name}".lstrip("."))
    return frozenset(found)


def tied_name(pool: LayerPool, key: str) -> str | None:
    """For the state of a tied parameter, the parameter's name in the layer that defines it; None for other states."""
    return next(iter(pool.owner(key).tied_names(key)), None)


_LAYOUTS: PerPool[dict[str, Layout]] = PerPool()


def layout_of(pool: LayerPool, key: str) -> Layout:
    """The layout of a state of a pool, from a module on meta; remembered for as long as the pool lives.

    Raises:
        SpaceError: the factory raised, or built a parameter that is not float32 or tied under one of its names only.
    """
    layouts = _LAYOUTS.setdefault(pool, {})
    if key not in layouts:
        layout = _layout_of(pool, key)
        # equal ones are one object, which blocks of gradients know their views by
        layouts[key] = next((other for other in layouts.values() if other == layout), layout)
    return layouts[key]


_WIRES: PerPool[dict[tuple[str, torch.dtype], Layout]] = PerPool()


def wire_layout_of(pool: LayerPool, key: str, dtype: torch.dtype) -> Layout:
    """The layout in which a state crosses the link; remembered too."""
    layouts = _WIRES.setdefault(pool, {})
    if (key, dtype) not in layouts:
        layouts[key, dtype] = layout_of(pool, key).as_wire(dtype)
    return layouts[key, dtype]


def _layout_of(pool: LayerPool, key: str) -> Layout:
    layer = pool.owner(key)
    module = pool.build_module(layer, device="meta")
    name = tied_name(pool, key)
    try:
        if name is None:
            return layout_of_module(module, tied=layer.candidate.tied)
        parameter = dict(module.named_parameters(remove_duplicate=False))[name]
        return Layout(_pack([("weight", parameter, parameter.requires_grad)]), ())
    except TypeError as error:
        raise SpaceError(
            str(error), position=pool.positions[layer.position].name, candidate=layer.candidate.name
        ) from None


def values_of(pool: LayerPool) -> dict[str, object]:
    """What positions read, write and follow, as JSON; nothing of a chain, which says it by its order."""
    wiring = pool.wiring
    follows = {position.name: position.follows for position in pool.positions if position.follows is not None}
    if wiring.is_chain:
        return {"follows": follows} if follows else {}
    return {
        **({"follows": follows} if follows else {}),
        "values": {
            "inputs": [[name, count] for name, count in wiring.inputs.items()],
            "reads": [list(names) for names in wiring.reads],
            "writes": [list(names) for names in wiring.writes],
            "outputs": list(wiring.outputs),
        },
    }


def fingerprint(pool: LayerPool) -> str:
    """A hash of names, order and shapes: pools of one fingerprint train alike."""
    content = {
        "shared": pool.shared,
        "inputs": [str(spec) for spec in pool.inputs],
        "positions": [
            [position.name, [[c.name, sorted(c.tied.items()), c.is_skip] for c in position.candidates]]
            for position in pool.positions
        ],
        "states": {key: layout_of(pool, key).describe() for key in sorted(pool.states)},
        **values_of(pool),
    }
    weights = {layer.key: layer.candidate.weights.fingerprint for layer in pool.layers if layer.candidate.weights}
    if weights:
        content["weights"] = weights
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
