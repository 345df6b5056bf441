"""Slots: fixed blocks of device memory, and the templates whose parameters are permanently views of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor, nn

from l2l_nas.eps.layout import Layout, layout_of, tied_name
from l2l_nas.relay.device import Device
from l2l_nas.space.pool import Layer, LayerPool


@dataclass(frozen=True)
class Slot:
    """Three blocks on the device, each as large as the largest layer needs."""

    weights: Tensor
    gradients: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class Segment:
    """Where one state of a layer lies in a slot, and which of the template's gradients are its own."""

    weights: slice
    gradients: tuple[Tensor, ...]


class Template:
    """A module bound to a slot for good.

    Its parameters are views of the slot's weights and its `.grad`s views of the slot's gradients, so that a layer
    crosses in one copy each way and autograd accumulates in place over micro-batches.

    Attributes:
        module: the layer.
        segments: one for each of the layer's states, in the order of `Layer.states`.
        buffers: the part of the slot's buffers that it uses.
    """

    def __init__(self, pool: LayerPool, layer: Layer, slot: Slot) -> None:
        self.module = pool.build_module(layer, device="meta")
        modules = dict(self.module.named_modules(remove_duplicate=False))
        layouts = [layout_of(pool, key) for key in layer.states]
        ends = list(accumulate((layout.parameter_bytes for layout in layouts), initial=0))
        self.size_bytes = ends[-1]
        self._gradients = slot.gradients[: self.size_bytes]
        segments = []
        for key, layout, start, end in zip(layer.states, layouts, ends, ends[1:], strict=False):
            gradients = self._bind_state(modules, layer, key, layout, slot, start, tied_name(pool, key) is not None)
            segments.append(Segment(slice(start, end), gradients))
        self.segments = tuple(segments)
        self.buffers = slot.buffers[: layouts[0].buffer_bytes]
        self._bound_buffers = []
        for entry in layouts[0].buffers:
            owner, leaf = _locate(modules, entry.name)
            # `.data`: a layer with two BatchNorms changes one buffer while autograd keeps another for the backward
            buffer = entry.view(self.buffers).data
            owner._buffers[leaf] = buffer
            self._bound_buffers.append((entry.name, owner, leaf, buffer))
        leftover = [name for name, p in self.module.named_parameters() if p.is_meta]
        assert not leftover, leftover

    def _bind_state(
        self,
        modules: dict[str, nn.Module],
        layer: Layer,
        key: str,
        layout: Layout,
        slot: Slot,
        start: int,
        is_tied: bool,
    ) -> tuple[Tensor, ...]:
        weights, block = slot.weights[start:], slot.gradients[start:]
        gradients = []
        for entry in layout.parameters:
            parameter = nn.Parameter(entry.view(weights), requires_grad=entry.trainable)
            # `.data` gives the view a version counter of its own
            gradient = entry.view(block).data
            if entry.trainable:
                parameter.grad = gradient
            gradients.append(gradient)
            if is_tied:
                group = key.removeprefix("tied/")
                names = [name for name, other in layer.candidate.tied.items() if other == group]
            else:
                names = [entry.name, *(alias for alias, name in layout.aliases if name == entry.name)]
            for name in names:
                owner, leaf = _locate(modules, name)
                setattr(owner, leaf, parameter)  # setattr, as modules like nn.LSTM keep lists that follow it
        return tuple(gradients)

    def zero_gradients(self) -> None:
        """Start a backward visit.

        Each gradient's version tells afterwards whether autograd wrote to it: filling the whole block changes the
        block's version, not theirs.
        """
        self._gradients.zero_()
        self._versions = [[g._version for g in segment.gradients] for segment in self.segments]

    def touched(self, segment: int) -> list[bool]:
        """For each parameter of a segment, whether it got a gradient since `zero_gradients`.

        A parameter without one must be left alone by the optimizer, which differs from a gradient of zero.
        """
        gradients = self.segments[segment].gradients
        return [g._version != old for g, old in zip(gradients, self._versions[segment], strict=True)]

    def rebind_buffers(self) -> list[str]:
        """Bind buffers that a forward replaced (`self.x = new`) to the slot again; returns their names."""
        replaced = [bound for bound in self._bound_buffers if bound[1]._buffers[bound[2]] is not bound[3]]
        for _, owner, leaf, buffer in replaced:
            owner._buffers[leaf] = buffer
        return [name for name, *_ in replaced]

    def gradient_block(self, segment: int) -> Tensor:
        """The gradients of one state, as bytes."""
        return self._gradients[self.segments[segment].weights]


def _locate(modules: dict[str, nn.Module], name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return modules[path], leaf


class SlotBank:
    """All slots, and every template a path of the pool could need; built once, never grown.

    Args:
        pool: decides the size of a slot: that of its largest layer.
        slots: how many.
        device: where.
    """

    def __init__(self, pool: LayerPool, *, slots: int, device: Device) -> None:
        layers = [layer for layer in pool.layers if not layer.candidate.is_skip]
        largest = max((sum(layout_of(pool, k).parameter_bytes for k in layer.states) for layer in layers), default=0)
        buffers = max((layout_of(pool, layer.key).buffer_bytes for layer in layers), default=0)
        self.slots = tuple(
            Slot(device.allocate(largest), device.allocate(largest), device.allocate(buffers)) for _ in range(slots)
        )
        self._templates: dict[tuple[object, int], Template] = {}
        self._kinds: dict[tuple[str, int], object] = {}
        for layer in layers:
            kind = (layer.candidate.kind, tuple(sorted(layer.candidate.tied.items())))
            self._kinds[layer.key, layer.position] = kind
            for index, slot in enumerate(self.slots):
                if (kind, index) not in self._templates:
                    self._templates[kind, index] = Template(pool, layer, slot)

    def template(self, layer: Layer, slot: int) -> Template:
        """The template of a layer's kind in a slot."""
        return self._templates[self._kinds[layer.key, layer.position], slot]

    @property
    def num_templates(self) -> int:
        """How many templates there are."""
        return len(self._templates)

    def tensors(self) -> list[Tensor]:
        """Every device tensor it owns or refers to, for counting."""
        blocks = [block for slot in self.slots for block in (slot.weights, slot.gradients, slot.buffers)]
        for template in self._templates.values():
            blocks += [*template.module.parameters(), *template.module.buffers()]
            blocks += [gradient for segment in template.segments for gradient in segment.gradients]
        return blocks

    @property
    def num_bytes(self) -> int:
        """Device memory of all slots: each distinct storage once."""
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self.tensors()}
        return sum(storages.values())
