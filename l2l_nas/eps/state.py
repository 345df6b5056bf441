"""The state of one layer on the host: master weights, moments, step counts, buffers."""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from l2l_nas.arguments import check_kind, check_weights
from l2l_nas.eps.layout import Layout, tied_name
from l2l_nas.eps.optimizers.groups import RuleCall
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import SpaceError, user_code
from l2l_nas.space.pool import Layer, LayerPool

_VERSIONS = itertools.count(1)
_CACHED = 1 << 18  # parameters whose weights, moments and gradients fit into a core's own cache, about


@dataclass(frozen=True)
class SavedState:
    """A copy of what an update writes."""

    blocks: tuple[Tensor, ...]
    visits: int
    version: int


class Part(enum.IntEnum):
    """How much of a state is opened; each includes those before it."""

    BUFFERS = 0
    WEIGHTS = 1
    ALL = 2


@dataclass
class LayerState:
    """Flat blocks of bytes with named views.

    Attributes:
        layout: where each parameter, moment and buffer lies in the blocks.
        weights: fp32 master weights, one block.
        moments: the optimizer's blocks, as `layout.moments` says.
        steps: float32, how many updates each parameter has had. One for each parameter, not one for the layer: a
            parameter without a gradient must not age.
        buffers: of the layer, one block.
        visits: how many updates the layer has had.
        version: changes with every write, and is never the same for different contents: a checkpoint saves what
            changed since the last.
        wire, wire_views: the weights as they cross the link, where those are stored beside the masters.
        is_pinned: whether the masters lie where the device copies from.
        is_on_device: whether layers compute on the state where it lies, on a device.
        written: a mark behind the last write on a device, for the streams that read it; None where it is over.
        views: of the weights, one for each parameter.
    """

    layout: Layout
    weights: Tensor
    moments: tuple[Tensor, ...]
    steps: Tensor
    buffers: Tensor
    visits: int = 0
    version: int = field(default_factory=lambda: next(_VERSIONS))
    wire: Tensor | None = field(default=None, repr=False)
    is_pinned: bool = False
    is_on_device: bool = False
    written: Any = field(default=None, repr=False)
    views: list[Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.views = [entry.view(self.weights) for entry in self.layout.parameters]
        self._moment_views = [
            dict(zip(moment.indices, (entry.view(block) for entry in moment.entries), strict=True))
            for moment, block in zip(self.layout.moments, self.moments, strict=True)
        ]
        self._step_views = list(self.steps.unbind())
        self.wire_views: list[Tensor] = []
        self.wire_dtype: torch.dtype | None = None

    @classmethod
    def zeros(cls, layout: Layout, masters: WireMemory | None = None) -> LayerState:
        """A state of zeros; `masters` gives memory for the weights, if it has some."""
        block = partial(torch.zeros, dtype=torch.uint8)
        pinned = None if masters is None else masters.allocate(layout.parameter_bytes)
        return cls(
            layout,
            weights=block(layout.parameter_bytes) if pinned is None else pinned.zero_(),
            moments=tuple(block(moment.num_bytes) for moment in layout.moments),
            steps=torch.zeros(len(layout.parameters)),
            buffers=block(layout.buffer_bytes),
            is_pinned=pinned is not None,
        )

    def clone(self, masters: WireMemory | None = None) -> LayerState:
        """An independent copy, with `masters` as in `zeros`."""
        pinned = None if masters is None else masters.allocate(self.weights.numel())
        return LayerState(
            self.layout,
            self.weights.clone() if pinned is None else pinned.copy_(self.weights),
            tuple(block.clone() for block in self.moments),
            self.steps.clone(),
            self.buffers.clone(),
            self.visits,
            self.version,
            is_pinned=pinned is not None,
        )

    def parameters(self) -> dict[str, Tensor]:
        return {entry.name: view for entry, view in zip(self.layout.parameters, self.views, strict=True)}

    def named_buffers(self) -> dict[str, Tensor]:
        return {entry.name: entry.view(self.buffers) for entry in self.layout.buffers}

    def update(self, calls: Sequence[RuleCall], gradients: Sequence[Tensor | None], *, lr: float) -> None:
        """Apply one update; parameters without a gradient stay as they are, as in torch."""
        self.version = next(_VERSIONS)  # first: an update that raises has changed something
        for call in calls:
            for part in self._parts([index for index in call.indices if gradients[index] is not None]):
                weights, moments, steps = self.tensors_for(call, part)
                present = [gradient for index in part if (gradient := gradients[index]) is not None]
                call.rule.update(weights, present, moments, steps, lr=lr * call.lr_scale)
                for index in part if self.wire_views else ():
                    self.wire_views[index].copy_(self.views[index])
        self.visits += 1

    def tensors_for(
        self, call: RuleCall, indices: Sequence[int]
    ) -> tuple[list[Tensor], list[list[Tensor]], list[Tensor]]:
        return (
            [self.views[index] for index in indices],
            [[self._moment_views[number][index] for index in indices] for number in call.moments],
            [self._step_views[index] for index in indices],
        )

    def mark_updated(self) -> None:
        """To be called after an update through `tensors_for`."""
        self.visits += 1
        self.mark_changed()

    @property
    def updated_blocks(self) -> tuple[Tensor, ...]:
        return (self.weights, *self.moments, self.steps)

    def save(self, blocks: Sequence[Tensor] | None = None) -> SavedState:
        """Copy what an update writes, into these blocks if there are some."""
        copies = tuple(torch.empty_like(block) for block in self.updated_blocks) if blocks is None else tuple(blocks)
        for copy, block in zip(copies, self.updated_blocks, strict=True):
            copy.copy_(block)
        return SavedState(copies, self.visits, self.version)

    def restore(self, saved: SavedState) -> None:
        self.version = next(_VERSIONS)  # first: a copy that raises has changed something
        for block, copy in zip(self.updated_blocks, saved.blocks, strict=True):
            block.copy_(copy)
        self.visits, self.version = saved.visits, saved.version
        self._refresh_wire()

    def _parts(self, chosen: list[int]) -> list[list[int]]:
        """Parameters to update together: all, or few enough that their copies to the wire find them in the cache."""
        if not self.wire_views:
            return [chosen] if chosen else []
        ends = itertools.accumulate(self.layout.parameters[index].numel for index in chosen)
        return [list(part) for _, part in itertools.groupby(chosen, key=lambda _: next(ends) // _CACHED)]

    def keep_wire(self, layout: Layout, block: Tensor, dtype: torch.dtype) -> None:
        """Store a copy of the weights as they cross the link in this block, from now on."""
        self.wire, self.wire_dtype = block, dtype
        self.wire_views = [entry.view(block) for entry in layout.parameters]
        self._refresh_wire()

    @property
    def writes(self) -> tuple[int, ...]:
        """Changes with every write to a tensor, with or without `mark_changed`."""
        return (self.visits, self.version, *(block._version for block in (*self.updated_blocks, self.buffers)))

    def mark_changed(self) -> None:
        """To be called after the tensors were written manually."""
        self.version = next(_VERSIONS)
        self._refresh_wire()

    def _refresh_wire(self) -> None:
        for wire, view in zip(self.wire_views, self.views, strict=False):
            wire.copy_(view)

    def copy_to_wire(self, layout: Layout, block: Tensor) -> None:
        for entry, view in zip(layout.parameters, self.views, strict=True):
            entry.view(block).copy_(view)

    def store_buffers(self, buffers: Tensor, layout: Layout | None = None) -> None:
        """Take over buffers that a forward changed; they lie as this layout says, by default as the state's."""
        if layout is None or layout.buffers == self.layout.buffers:
            self.buffers.copy_(buffers)
        else:
            for target, source in zip(self.layout.buffers, layout.buffers, strict=True):
                target.view(self.buffers).copy_(source.view(buffers))
        self.version = next(_VERSIONS)

    def tensors(self) -> dict[str, Tensor]:
        named = {"steps": self.steps, "visits": torch.tensor(self.visits)}
        named |= {f"weights.{name}": view for name, view in self.parameters().items()}
        for moment, views in zip(self.layout.moments, self._moment_views, strict=True):
            named |= {f"{moment.name}.{self.layout.parameters[index].name}": view for index, view in views.items()}
        return named | {f"buffers.{name}": view for name, view in self.named_buffers().items()}

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave.

        Moments of a parameter that is frozen now are dropped, and its steps are counted anew. A parameter that was
        never updated, or was frozen then, begins with moments of zeros.

        Raises:
            KeyError: a name is missing or unknown.
            ValueError: a shape or dtype differs.
        """
        _copy_by_name(self._with_present_moments(named), self.tensors())
        self.visits = int(named["visits"])
        self.mark_changed()

    def _with_present_moments(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        named, expected = dict(named), self.tensors()
        for index, entry in enumerate(self.layout.parameters):
            moments = [name for name in named if _is_moment(name, of=entry.name)]
            if moments and not entry.trainable:
                for name in moments:
                    del named[name]
                named["steps"] = named["steps"].index_fill(0, torch.tensor(index), 0.0)
            elif not moments and "steps" in named and named["steps"].numel() > index and named["steps"][index] == 0:
                missing = (name for name in expected if _is_moment(name, of=entry.name))
                named |= {name: torch.zeros_like(expected[name]) for name in missing}
        return named

    def load_weights(self, named: dict[str, Tensor]) -> None:
        """Take over weights and buffers alone of what `tensors` gave, whatever the optimizer; see `load_tensors`."""
        sources, targets = (
            {name: tensor for name, tensor in tensors.items() if name.startswith(("weights.", "buffers."))}
            for tensors in (named, self.tensors())
        )
        _copy_by_name(sources, targets)
        self.mark_changed()


def _is_moment(name: str, *, of: str) -> bool:
    kind, _, parameter = name.partition(".")
    return parameter == of and kind not in ("weights", "buffers")


def _copy_by_name(sources: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
    if sources.keys() != targets.keys():
        raise KeyError(", ".join(sorted(sources.keys() ^ targets.keys())))
    for name, target in targets.items():
        source = sources[name]
        if source.shape != target.shape or source.dtype != target.dtype:
            raise ValueError(f"{name} is {tuple(source.shape)}, expected {tuple(target.shape)}")
    for name, target in targets.items():
        target.copy_(sources[name])


def seed_of(seed: int, key: str) -> int:
    """The seed of a state's first weights, from the run's seed and the state's key alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:7], "big")


def first_state(
    pool: LayerPool, key: str, *, layout: Layout, seed: int, masters: WireMemory | None = None
) -> LayerState:
    """A state as its layer's factory or its candidate's `weights` initialise it, whatever was built before it.

    Args:
        layout: of the state, with what the optimizer keeps.

    Raises:
        SpaceError: the factory raised, or the weights have another shape.
        SettingError: the weights hold NaN or inf.
        StorageError: the weights cannot be read.
    """
    state = LayerState.zeros(layout, masters)
    owner = pool.owner(key)
    read = first_weights(pool, owner)
    tied = tied_name(pool, key)
    with torch.no_grad():
        if read is not None:
            for name, view in state.parameters().items():
                view.copy_(read(tied or name, view.shape))
            if not state.layout.buffers:
                return state  # a module would draw weights that nobody needs
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(seed, key))  # `torch.manual_seed` would seed CUDA's too
            module = pool.build_module(owner)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, view in state.parameters().items() if read is None else ():
            parameter = parameters[tied or name]
            check_weights(f"the first weights '{name}' of '{key}'", parameter, is_trained=parameter.requires_grad)
            view.copy_(parameter)
        buffers = dict(module.named_buffers())
        for name, view in state.named_buffers().items():
            view.copy_(buffers[name])
    return state


def first_weights(pool: LayerPool, layer: Layer) -> Callable[[str, torch.Size], Tensor] | None:
    """A function that reads a layer's first weights, by name and expected shape; None where its factory draws them.

    It raises SpaceError for a tensor of another shape or of integers, SettingError for NaN or inf, and L2LError for
    what the user's `read` raises.
    """
    weights = layer.candidate.weights
    if weights is None:
        return None

    def read(name: str, shape: torch.Size) -> Tensor:
        what = f"the first weights '{name}' of '{layer.key}'"
        with user_code(f"reading {what}"):
            tensor: object = weights.read(name)
        check_kind(what, tensor, Tensor, wanted="a tensor")
        assert isinstance(tensor, Tensor)
        if tensor.shape != shape or not tensor.is_floating_point():
            raise SpaceError(
                f"its first weights '{name}' are {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}, "
                f"expected {list(shape)} of floating numbers",
                position=pool.positions[layer.position].name,
                candidate=layer.candidate.name,
            )
        check_weights(what, tensor)
        return tensor

    return read
