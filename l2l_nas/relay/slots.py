"""Slots: fixed blocks of device memory, and the templates whose parameters are permanently views of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from l2l_nas.eps.gradients import GradientBlock, GradientViews, gradient_bytes
from l2l_nas.eps.layout import Layout, align, layout_of, wire_layout_of
from l2l_nas.eps.scale import norms_of
from l2l_nas.eps.sums import ChunkTree
from l2l_nas.eps.wire import host_block
from l2l_nas.relay.access import OpenState
from l2l_nas.relay.device import Device
from l2l_nas.relay.statistics import ChunkStatistics
from l2l_nas.space.build import named_tensors, owner_of, put_parameter
from l2l_nas.space.pool import Layer, LayerPool


class CallFactory(Protocol):
    """Says how templates run, where they do not run as they are."""

    @property
    def num_bytes(self) -> int:
        """Device memory that it holds for that."""

    def __call__(self, kind: object, template: Template, slot: int) -> None:
        """Set `call` and `call_again` of a new template. In other slots the same layer has the same kind."""


class Slot:
    """Blocks on the device, each as large as the largest layer needs, allocated when first used.

    Args:
        sizes: bytes of weights in the wire dtype, of gradients in float32 with their norms, and of buffers.
        chunks: whose gradients are summed by a tree; None: by micro-batches, one after the other.
        is_held: of one layer that is held: only its buffers are ever used, so that nothing else takes device memory.
    """

    def __init__(
        self, device: Device, sizes: tuple[int, int, int], *, chunks: int | None = None, is_held: bool = False
    ) -> None:
        self._device = device
        self._sizes = sizes
        self._is_held = is_held
        self.chunks = chunks

    def _allocate(self, num_bytes: int) -> Tensor:
        return host_block(num_bytes) if self._is_held else self._device.allocate(num_bytes)

    @cached_property
    def weights(self) -> Tensor:
        return self._allocate(self._sizes[0])

    @cached_property
    def gradients(self) -> Tensor:
        return self._allocate(self._sizes[1])

    @cached_property
    def buffers(self) -> Tensor:
        return self._device.allocate(self._sizes[2])

    @cached_property
    def partials(self) -> tuple[Tensor, ...]:
        """For each level of the tree of chunks, gradients that wait there."""
        return tuple(self._allocate(self._sizes[1]) for _ in range(tree_levels(self.chunks)))

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """Those that were used."""
        known = tuple(vars(self).values())  # at once: another thread may take memory meanwhile
        single = [block for block in known if isinstance(block, Tensor)]
        return (*single, *vars(self).get("partials", ()))


class _BoundBuffer(NamedTuple):
    """A buffer of a template: where the module has it, and the memory that it is a view of."""

    name: str
    owner: nn.Module
    leaf: str
    tensor: Tensor
    memory: Tensor


class Template:
    """A module bound to a slot.

    Its parameters are views of the slot's weights and, from the first training on, its `.grad`s views of the slot's
    gradients, so that a layer crosses in one copy each way and autograd accumulates in place over micro-batches. `bind`
    puts them elsewhere: see `relay/access.py`. What belongs to one of the layer's states has its number in
    `Layer.states`.
    """

    def __init__(self, pool: LayerPool, layer: Layer, slot: Slot, dtype: torch.dtype) -> None:
        self.name = layer.candidate.name  # of the first candidate that it was built for, for messages
        self.module = pool.build_module(layer, device="meta")
        self.is_channels_last = any(map(_is_channels_last, self.module.parameters()))
        self.call: Callable[..., object] = self.module  # or its compiled form, or a graph
        self.call_again: Callable[..., object] = self.module  # where an earlier run still waits for its backward
        self.opened: tuple[OpenState, ...] = ()  # the states that its slot was loaded with
        self.buffers_version: int | None = None  # of the state's, where it is held
        self.compared = 0  # micro-batches whose recompute was compared with the forward
        self._layouts = layouts = [layout_of(pool, key) for key in layer.states]
        wires = [wire_layout_of(pool, key, dtype) for key in layer.states]
        self.weights = tuple(_cut(slot.weights, [wire.parameter_bytes for wire in wires]))
        self._slot = slot
        self._tree = None if slot.chunks is None else ChunkTree(slot.chunks)
        self._in_slot: list[GradientBlock] = []
        self.gradients: list[GradientBlock] = []  # by state; none before `have_gradients`
        self.parameters: list[list[nn.Parameter]] = []  # by state
        self.places: list[tuple[nn.Module, str, nn.Parameter]] = []  # where the module has them
        owners: dict[int, tuple[int, int]] = {}
        for number, (key, wire) in enumerate(zip(layer.states, wires, strict=True)):
            self.parameters.append(self._bind_state(layer, key, wire, self.weights[number]))
            owners |= {id(parameter): (number, index) for index, parameter in enumerate(self.parameters[number])}
        self._slot_weights = [[parameter.data for parameter in parameters] for parameters in self.parameters]
        self._bound: list[Sequence[Tensor]] = list(self._slot_weights)
        # number of the state and index of each parameter, as the module lists them
        self.parameter_order = tuple(owners[id(p)] for p in self.module.parameters())
        self.learns = any(layout.is_trainable for layout in layouts)
        self.buffer_layout, self._master_layout = wires[0], layouts[0]
        self.buffers = slot.buffers[: wires[0].buffer_bytes]
        self._bound_buffers = list(self._bind_buffers(wires[0]))
        self._loaded_versions = self._buffer_versions()
        self.statistics: ChunkStatistics | None = None
        if slot.chunks is not None and self.buffer_layout.buffers:
            self.statistics = ChunkStatistics(self.module, self.buffer_layout)
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase):
                # on CUDA it would move its weights to memory of its own, where no update reaches them
                part.flatten_parameters = lambda: None  # type: ignore[method-assign]
        leftover = [name for name, tensor in named_tensors(self.module) if tensor.is_meta]
        assert not leftover, leftover

    def _bind_state(self, layer: Layer, key: str, layout: Layout, weights: Tensor) -> list[nn.Parameter]:
        parameters = []
        for entry in layout.parameters:
            parameter = nn.Parameter(entry.view(weights), requires_grad=entry.trainable)
            if entry.trainable and parameter.dtype != torch.float32:
                parameter.grad_dtype = torch.float32  # autograd adds up micro-batches in float32
            parameters.append(parameter)
            aliases = [alias for alias, name in layout.aliases if name == entry.name]
            for name in layer.tied_names(key) or [entry.name, *aliases]:
                put_parameter(self.module, name, parameter)
                self.places.append((*owner_of(self.module, name), parameter))
        return parameters

    def _bind_buffers(self, layout: Layout) -> Iterator[_BoundBuffer]:
        for entry in layout.buffers:
            # `.data`: a layer with two BatchNorms changes one buffer while autograd keeps another for the backward
            memory = entry.view(self.buffers)
            buffer = memory.data
            for name in (entry.name, *(alias for alias, other in layout.aliases if other == entry.name)):
                owner, leaf = owner_of(self.module, name)
                owner._buffers[leaf] = buffer
                yield _BoundBuffer(name, owner, leaf, buffer, memory)

    def bind(
        self, weights: Sequence[Sequence[Tensor] | None], gradients: Sequence[GradientBlock | None] | None = None
    ) -> None:
        """Put parameters and their `.grad`s where a visit wants them.

        Args:
            weights: by state, its parameters; None: those in the slot.
            gradients: by state, where the gradients of a backward go, each None: to the slot. Before `have_gradients`
                they go nowhere.
        """
        for number, tensors in enumerate(weights):
            tensors = self._slot_weights[number] if tensors is None else tensors
            if tensors is not self._bound[number]:
                for parameter, tensor in zip(self.parameters[number], tensors, strict=True):
                    parameter.data = tensor
                self._bound[number] = tensors
        for number, block in enumerate((gradients or ()) if self.gradients else ()):
            block = self._in_slot[number] if block is None else block
            if block is not self.gradients[number]:
                self.gradients[number] = block
                self._bind_gradients(number)

    def have_gradients(self) -> None:
        """Have memory for gradients, in the slot, which only training takes."""
        if not self.gradients:
            blocks = _cut(self._slot.gradients, map(slot_bytes, self._layouts))
            self._in_slot = [GradientBlock(memory) for memory in blocks]
            self.gradients = list(self._in_slot)
            for number in range(len(self.gradients)):
                self._bind_gradients(number)

    def unbind(self) -> None:
        self.opened = ()
        self.bind([None] * len(self.weights), [None] * len(self.weights))

    def _bind_gradients(self, number: int) -> None:
        for parameter, gradient in zip(self.parameters[number], self._views(number).gradients, strict=True):
            if parameter.requires_grad:
                parameter.grad = gradient

    def _views(self, number: int) -> GradientViews:
        return self.gradients[number].views(self._layouts[number])

    def has_gradients_in_slot(self, number: int) -> bool:
        return self.gradients[number] is self._in_slot[number]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of weights, and of gradients where they are added to."""
        gradients = self.gradients if torch.is_grad_enabled() else ()
        weights = (tensors[0].data_ptr() for tensors in self._bound if tensors)
        return (*weights, *(block.memory.data_ptr() for block in gradients))

    @property
    def weights_version(self) -> int:
        """Another number after anything wrote to its parameters."""
        return sum(parameter._version for parameters in self.parameters for parameter in parameters)

    def rebind_parameters(self) -> bool:
        """Bind parameters again that a forward moved or replaced, so that no update reached them; whether it did."""
        replaced = [place for place in self.places if place[0]._parameters.get(place[1]) is not place[2]]
        for owner, leaf, parameter in replaced:
            setattr(owner, leaf, parameter)
        pairs = [pair for both in zip(self.parameters, self._bound, strict=True) for pair in zip(*both, strict=True)]
        moved = [(parameter, tensor) for parameter, tensor in pairs if parameter.data_ptr() != tensor.data_ptr()]
        for parameter, tensor in moved:
            parameter.data = tensor
        return bool(replaced or moved)

    def zero_gradients(self) -> None:
        """Start a backward visit.

        Each gradient's version tells afterwards whether autograd wrote to it: filling the whole block changes the
        block's version, not theirs.
        """
        self._versions = []
        if self._tree is not None:
            self._tree.begin()
        for number in range(len(self.gradients)):
            views = self._views(number)
            views.values.zero_()
            self._versions.append([gradient._version for gradient in views.gradients])

    def has_grad(self, number: int) -> list[bool]:
        """For each parameter of a state, whether it got a gradient since `zero_gradients`.

        A parameter without one must be left alone by the optimizer, which differs from a gradient of zero.
        """
        pairs = zip(self._views(number).gradients, self._versions[number], strict=True)
        return [gradient._version != old for gradient, old in pairs]

    def end_chunk(self, *, is_empty: bool) -> None:
        """Put the gradients of a chunk aside; after the last chunk they are the sum of all. See `ChunkTree`."""
        assert self._tree is not None
        sizes = [slot_bytes(layout) for layout in self._layouts]
        values = [self._views(number).values for number in range(len(self.gradients))]
        partials = [
            [part.view(torch.float32)[: value.numel()] for part, value in zip(_cut(block, sizes), values, strict=True)]
            for block in self._slot.partials
        ]
        self._tree.end_chunk(values, partials, is_empty=is_empty)

    def measure(self) -> None:
        """Put the norm of each gradient, float32, behind them: memory that is there until they are sent.

        Norms of blocks are formed on the host, of what all ranks sum up.
        """
        for number in range(len(self.gradients) if self._tree is None else 0):
            views = self._views(number)
            if views.gradients:
                norms_of(views.gradients, out=views.norms)

    def watch_buffers(self) -> None:
        """See from now on whether torch knows of a write to a buffer."""
        self._loaded_versions = self._buffer_versions()

    def load_buffers(self, buffers: Tensor) -> None:
        """Take over a state's buffers, in the dtypes in which they cross."""
        self.watch_buffers()  # the copies below are to other tensors, of the same memory
        if self.buffer_layout.buffers == self._master_layout.buffers:
            self.buffers.copy_(buffers, non_blocking=True)
            return
        for target, source in zip(self.buffer_layout.buffers, self._master_layout.buffers, strict=True):
            target.view(self.buffers).copy_(source.view(buffers), non_blocking=True)

    @property
    def has_written_buffers(self) -> bool:
        return self._loaded_versions != self._buffer_versions()

    def _buffer_versions(self) -> list[int]:
        return [bound.tensor._version for bound in self._bound_buffers]

    def holds_buffers(self, buffers: Tensor) -> bool:
        """Whether its buffers are those of a state, to the bit."""
        pairs = zip(self.buffer_layout.buffers, self._master_layout.buffers, strict=True)
        return all(
            torch.equal(_bytes(own.view(self.buffers).cpu()), _bytes(entry.view(buffers).to(own.dtype)))
            for own, entry in pairs
        )

    def rebind_buffers(self) -> list[str]:
        """Bind buffers again that a forward replaced (`self.x = new`, `self.x.data = new`); returns their names."""
        replaced = []
        for bound in self._bound_buffers:
            has_moved = bound.tensor.data_ptr() != bound.memory.data_ptr()
            if has_moved:
                bound.tensor.data = bound.memory
            if has_moved or bound.owner._buffers.get(bound.leaf) is not bound.tensor:
                bound.owner._buffers[bound.leaf] = bound.tensor
                replaced.append(bound.name)
        return replaced


def mixed_dtypes(layout: Layout, dtype: torch.dtype, error: BaseException) -> str:
    """What to add to an error of a layer that may come from buffers in float32 beside weights of this dtype."""
    wide = [entry.name for entry in layout.buffers if entry.is_fixed and entry.dtype == torch.float32]
    if not wide or dtype == torch.float32 or not isinstance(error, RuntimeError) or "type" not in str(error):
        return ""
    return (
        f"; its buffers are float32, its weights {str(dtype).removeprefix('torch.')}: have its forward cast, or its "
        f"module say round_dtype = (names of buffers), here of {', '.join(wide[:3])}"
    )


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    return wanted is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=wanted)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def tree_levels(chunks: int | None) -> int:
    """How many sums of chunks wait at most: one on each level of their tree but the last."""
    return 0 if chunks is None else chunks.bit_length() - 1


def slot_bytes(layout: Layout) -> int:
    """Of a state, for its gradients and their norms."""
    return align(gradient_bytes(layout))


def _cut(block: Tensor, sizes: Iterable[int]) -> Iterator[Tensor]:
    start = 0
    for size in sizes:
        yield block[start : start + size]
        start += size
