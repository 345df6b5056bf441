"""The state of one layer on the host: master weights, moments, step counts, buffers."""

from __future__ import annotations

import enum
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from l2l_nas.arguments import check_kind, check_weights
from l2l_nas.eps.layout import Layout, tied_name
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import RuleCall, rules_of
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import SpaceError, user_code
from l2l_nas.space.pool import Layer, LayerPool

_VERSIONS = itertools.count(1)
_PROCESS_VERSIONS = 1 << 40  # more than a process ever makes
_CACHED = 1 << 18  # parameters whose weights, moments and gradients fit into a core's own cache, about


def number_versions(process: int) -> None:
    """Make versions that no other process makes, each of which has a number of its own; the first one has 0."""
    global _VERSIONS
    _VERSIONS = itertools.count(max(next(_VERSIONS), process * _PROCESS_VERSIONS))


@dataclass(frozen=True)
class SavedState:
    """What a state was before an update: blocks of its own, and its counts."""

    blocks: tuple[Tensor, ...]
    visits: int
    version: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each block; states of equal sizes may use the same blocks."""
        return tuple(block.numel() for block in self.blocks)


class Part(enum.IntEnum):
    """How much of a state is opened; each includes those before it."""

    BUFFERS = 0
    WEIGHTS = 1
    ALL = 2


@dataclass
class LayerState:
    """Flat blocks of bytes with named views.

    Attributes:
        weights: fp32 master weights, one block.
        moments: the optimizer's blocks, as `layout.moments` says; none in a copy that is only examined.
        steps: float32, how many updates each parameter has had. One for each parameter, not one for the layer: a
            parameter without a gradient must not age.
        buffers: such as BatchNorm's running statistics.
        wire: the weights as they cross the link, where those are stored beside the masters.
        is_pinned: whether the masters lie where the device copies from.
        is_on_device: whether it is a copy on a device, on which layers compute where it lies.
        visits: how many updates the layer has had.
        views: of the weights, one for each parameter of the layout.
        version: another one after every write, and never the same for different contents: a checkpoint saves what
            changed since the last.
        written: a mark behind the last write on a device, for the streams that read it; None where it is over.
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
            [None if entry is None else entry.view(block) for entry in moment.entries]
            for moment, block in zip(self.layout.moments, self.moments, strict=False)
        ]
        self._step_views = list(self.steps.unbind())
        self._wire_views: list[Tensor] = []
        self.wire_dtype: torch.dtype | None = None

    @classmethod
    def zeros(cls, layout: Layout, masters: WireMemory | None = None) -> LayerState:
        """A state of zeros.

        Args:
            masters: gives memory for the weights, if it has some.
        """

        def block(num_bytes: int) -> Tensor:
            return torch.zeros(num_bytes, dtype=torch.uint8)

        own = None if masters is None else masters.take(layout.parameter_bytes)
        return cls(
            layout=layout,
            weights=block(layout.parameter_bytes) if own is None else own.zero_(),
            moments=tuple(block(moment.num_bytes) for moment in layout.moments),
            steps=torch.zeros(len(layout.parameters)),
            buffers=block(layout.buffer_bytes),
            is_pinned=own is not None,
        )

    def clone(self, masters: WireMemory | None = None) -> LayerState:
        """An independent copy.

        Args:
            masters: gives memory for the weights, if it has some.
        """
        own = None if masters is None else masters.take(self.weights.numel())
        copy = LayerState(
            self.layout,
            self.weights.clone() if own is None else own.copy_(self.weights),
            tuple(block.clone() for block in self.moments),
            self.steps.clone(),
            self.buffers.clone(),
            is_pinned=own is not None,
        )
        copy.visits, copy.version = self.visits, self.version
        return copy

    def parameters(self) -> dict[str, Tensor]:
        """Named views of the master weights."""
        return {entry.name: view for entry, view in zip(self.layout.parameters, self.views, strict=True)}

    def named_buffers(self) -> dict[str, Tensor]:
        """Named views of the buffers."""
        return {entry.name: entry.view(self.buffers) for entry in self.layout.buffers}

    def update(self, calls: Sequence[RuleCall], gradients: Tensor, touched: Sequence[bool], *, lr: float) -> None:
        """Apply one update.

        Args:
            calls: which rule updates which parameters.
            gradients: a block laid out as the weights.
            touched: for each parameter, whether it got a gradient; the others stay as they are, as in torch.
        """
        views = [
            entry.view(gradients) if own else None for entry, own in zip(self.layout.parameters, touched, strict=True)
        ]
        self.apply(calls, views, lr=lr)

    def apply(self, calls: Sequence[RuleCall], gradients: Sequence[Tensor | None], *, lr: float) -> None:
        """`update` with gradients where they are; None where there is none."""
        self.version = next(_VERSIONS)  # first: an update that raises has changed something
        for call in calls:
            for part in self._parts([index for index in call.indices if gradients[index] is not None]):
                weights, moments, steps = self.tensors_for(call, part)
                own = [gradient for index in part if (gradient := gradients[index]) is not None]
                call.rule.update(weights, own, moments, steps, lr=lr * call.lr_scale)
                for index in part if self._wire_views else ():
                    self._wire_views[index].copy_(self.views[index])
        self.visits += 1

    def tensors_for(
        self, call: RuleCall, indices: Sequence[int]
    ) -> tuple[list[Tensor], list[list[Tensor]], list[Tensor]]:
        """Weights, moments and steps of some of a call's parameters."""
        return (
            [self.views[index] for index in indices],
            [[self._moment(number, index) for index in indices] for number in call.moments],
            [self._step_views[index] for index in indices],
        )

    def mark_updated(self) -> None:
        """After an update through `tensors_for`."""
        self.visits += 1
        self.mark_changed()

    @property
    def updated_blocks(self) -> tuple[Tensor, ...]:
        """What an update writes."""
        return (self.weights, *self.moments, self.steps)

    def save(self, blocks: Sequence[Tensor] | None = None) -> SavedState:
        """Copy what an update writes, into these blocks if they are given."""
        own = tuple(torch.empty_like(block) for block in self.updated_blocks) if blocks is None else tuple(blocks)
        for target, block in zip(own, self.updated_blocks, strict=True):
            target.copy_(block)
        return SavedState(own, self.visits, self.version)

    def put_back(self, saved: SavedState) -> None:
        """Take over what `save` gave."""
        self.version = next(_VERSIONS)
        for block, before in zip(self.updated_blocks, saved.blocks, strict=True):
            block.copy_(before)
        self.visits, self.version = saved.visits, saved.version
        self.refresh_wire()

    def _moment(self, number: int, index: int) -> Tensor:
        view = self._moment_views[number][index]
        assert view is not None
        return view

    def _parts(self, chosen: list[int]) -> list[list[int]]:
        """Parameters to update together: all, or few enough that their copies to the wire find them in the cache."""
        if not self._wire_views or not chosen:
            return [chosen] if chosen else []
        parts: list[list[int]] = [[]]
        size = 0
        for index in chosen:
            if size > _CACHED:
                parts.append([])
                size = 0
            parts[-1].append(index)
            size += self.layout.parameters[index].numel
        return parts

    @property
    def wire_views(self) -> Sequence[Tensor]:
        """Views of the weights as they cross the link, one for each parameter, where those are stored."""
        return self._wire_views

    def keep_wire(self, layout: Layout, block: Tensor, dtype: torch.dtype) -> None:
        """Keep a copy of the weights as they cross the link in this block, and keep it up to date."""
        self.wire = block
        self.wire_dtype = dtype
        self._wire_views = [entry.view(block) for entry in layout.parameters]
        self.refresh_wire()

    @property
    def writes(self) -> tuple[int, ...]:
        """Another value after anything wrote to it, whether or not whoever did so told."""
        return (self.visits, self.version, *(block._version for block in (*self.updated_blocks, self.buffers)))

    def mark_changed(self) -> None:
        """To be called after the tensors were written manually."""
        self.version = next(_VERSIONS)
        self.refresh_wire()

    def refresh_wire(self) -> None:
        """Bring that copy up to date after the weights were written: round(master), to the bit."""
        for own, view in zip(self._wire_views, self.views, strict=False):
            own.copy_(view)

    def copy_to_wire(self, layout: Layout, block: Tensor) -> None:
        """Round the weights into a block laid out as they cross the link, beside which no copy is held."""
        for entry, view in zip(layout.parameters, self.views, strict=True):
            entry.view(block).copy_(view)

    def store_buffers(self, buffers: Tensor, layout: Layout | None = None) -> None:
        """Take over buffers that a forward changed; they lie as this layout says, if it is not the state's own."""
        if layout is None or layout.buffers == self.layout.buffers:
            self.buffers.copy_(buffers)
        else:
            for own, entry in zip(self.layout.buffers, layout.buffers, strict=True):
                own.view(self.buffers).copy_(entry.view(buffers))
        self.version = next(_VERSIONS)

    def tensors(self) -> dict[str, Tensor]:
        """Everything there is to save, by name."""
        named = {"steps": self.steps, "visits": torch.tensor(self.visits)}
        for entry in self.layout.parameters:
            named[f"weights.{entry.name}"] = entry.view(self.weights)
        for moment, views in zip(self.layout.moments, self._moment_views, strict=False):
            for held, view in zip(moment.entries, views, strict=True):
                if held is not None and view is not None:
                    named[f"{moment.name}.{held.name}"] = view
        for entry in self.layout.buffers:
            named[f"buffers.{entry.name}"] = entry.view(self.buffers)
        return named

    def load_tensors(self, named: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave.

        What was held for a parameter that is frozen now is dropped, and its steps are counted anew. A parameter that
        was never updated, or was frozen then, begins with moments of zeros.

        Raises:
            KeyError: a name is missing or unknown.
            ValueError: a shape or dtype differs.
        """
        _take_over(self.tensors(), self._with_present_moments(named))
        self.visits = int(named["visits"])
        self.mark_changed()

    def _with_present_moments(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own, found = self.tensors(), dict(named)
        for index, entry in enumerate(self.layout.parameters):
            given = {name for name in found if _is_moment(name, of=entry.name)}
            if given and not entry.trainable:
                found = {name: tensor for name, tensor in found.items() if name not in given}
                found["steps"] = found["steps"].index_fill(0, torch.tensor(index), 0.0)
            elif not given and "steps" in found and found["steps"].numel() > index and found["steps"][index] == 0:
                missing = (name for name in own if _is_moment(name, of=entry.name))
                found |= {name: torch.zeros_like(own[name]) for name in missing}
        return found

    def load_weights(self, named: dict[str, Tensor]) -> None:
        """Take over weights and buffers alone of what `tensors` gave, whatever the optimizer; the rest stays.

        Raises:
            KeyError: a name is missing or unknown.
            ValueError: a shape or dtype differs.
        """
        own, given = (
            {name: tensor for name, tensor in tensors.items() if name.startswith(("weights.", "buffers."))}
            for tensors in (self.tensors(), named)
        )
        _take_over(own, given)
        self.mark_changed()


def _is_moment(name: str, *, of: str) -> bool:
    kind, _, parameter = name.partition(".")
    return parameter == of and kind not in ("weights", "buffers")


def _take_over(own: Mapping[str, Tensor], named: Mapping[str, Tensor]) -> None:
    if own.keys() != named.keys():
        raise KeyError(", ".join(sorted(own.keys() ^ named.keys())))
    for name, tensor in own.items():
        if tensor.shape != named[name].shape or tensor.dtype != named[name].dtype:
            raise ValueError(f"{name} is {tuple(named[name].shape)}, expected {tuple(tensor.shape)}")
    for name, tensor in own.items():
        tensor.copy_(named[name])


def seed_of(seed: int, key: str) -> int:
    """The seed of a state's first weights, from the run's seed and the state's key alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{key}".encode()).digest()[:7], "big")


def first_state(
    pool: LayerPool, key: str, *, optimizer: Optimizer, seed: int, masters: WireMemory | None = None
) -> LayerState:
    """A state as its layer's factory or its candidate's `weights` initialise it, whatever was built before it.

    Args:
        optimizer: decides what is stored beside the weights.
        masters: gives memory for the weights, if it has some.

    Raises:
        SpaceError: the factory raised, or the weights have another shape.
        SettingError: the weights hold NaN or inf.
        StorageError: the weights cannot be read.
    """
    state = LayerState.zeros(rules_of(pool, optimizer).of(key).layout, masters)
    owner = pool.owner(key)
    read = first_weights(pool, owner)
    name = tied_name(pool, key)
    with torch.no_grad():
        if read is not None:
            for own, view in state.parameters().items():
                view.copy_(read(own if name is None else name, view.shape))
            if not state.layout.buffers:
                return state  # a module would draw weights that nobody needs
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(seed, key))  # `torch.manual_seed` would seed CUDA's too
            module = pool.build_module(owner)
        built = dict(module.named_parameters(remove_duplicate=False))
        for own, view in state.parameters().items() if read is None else ():
            parameter = built[own if name is None else name]
            check_weights(f"the first weights '{own}' of '{key}'", parameter, is_trained=parameter.requires_grad)
            view.copy_(parameter)
        values = dict(module.named_buffers())
        for own, view in state.named_buffers().items():
            view.copy_(values[own])
    return state


def first_weights(pool: LayerPool, layer: Layer) -> Callable[[str, torch.Size], Tensor] | None:
    """Reads a layer's first weights, by name and expected shape; None where its factory draws them.

    Raises:
        SpaceError: when called, for a tensor of another shape or of integers.
        SettingError: likewise, for NaN or inf.
        L2LError: `read` raised something.
    """
    weights = layer.candidate.weights
    if weights is None:
        return None

    def read(name: str, shape: torch.Size) -> Tensor:
        with user_code(f"reading the first weights '{name}' of '{layer.key}'"):
            tensor: object = weights.read(name)
        check_kind(f"the first weights '{name}' of '{layer.key}'", tensor, Tensor, wanted="a tensor")
        assert isinstance(tensor, Tensor)
        if tensor.shape != shape or not tensor.is_floating_point():
            raise SpaceError(
                f"its first weights '{name}' are {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}, "
                f"expected {list(shape)} of floating numbers",
                position=pool.positions[layer.position].name,
                candidate=layer.candidate.name,
            )
        check_weights(f"the first weights '{name}' of '{layer.key}'", tensor)
        return tensor

    return read
