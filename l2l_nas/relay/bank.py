"""The slots of a relay, and the templates that paths needed so far."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from l2l_nas.eps.layout import align, layout_of, wire_layout_of
from l2l_nas.relay.device import Device
from l2l_nas.relay.slots import CallFactory, Slot, Template, slot_bytes, tree_levels
from l2l_nas.space.pool import Layer, LayerPool

_MOST_SEPARATE = 512  # templates of single layers that are stored


class SlotBank:
    """All slots, and the templates that paths needed so far: one for each kind of layer and slot, built once.

    Args:
        pool: decides the size of a slot: that of its largest layer.
        slots: how many.
        dtype: of the weights on the device.
        calls: says how templates run; None: as they are.
        chunks: whose gradients are summed by a tree; None: by micro-batches, one after the other.
    """

    def __init__(
        self,
        pool: LayerPool,
        *,
        slots: int,
        device: Device,
        dtype: torch.dtype = torch.float32,
        calls: CallFactory | None = None,
        chunks: int | None = None,
    ) -> None:
        self.pool = pool
        self.chunks = chunks
        self._device = device
        self._dtype = dtype
        self._calls = calls
        layers = [layer for layer in pool.layers if not layer.candidate.is_skip]
        sizes = [self._layer_bytes(layer, dtype) for layer in layers]
        weights, gradients, buffers = (max(column) for column in zip((0, 0, 0), *sizes, strict=True))
        self._sizes = (weights, gradients, buffers)
        self.weights_bytes = weights  # of the largest layer, on the device
        self.slot_bytes = sum(align(size) for size in self._sizes) + tree_levels(chunks) * align(gradients)
        self.slots: tuple[Slot, ...] = ()
        self._templates: dict[tuple[object, int], Template] = {}  # by kind and number of the slot
        self._separate: dict[str, Template] = {}  # by layer, the latest last
        self._has_warned = False  # of a memory format that is not kept
        self._kinds: dict[tuple[str, int], object] = {
            (layer.key, layer.position): (layer.candidate.kind, tuple(sorted(layer.candidate.tied.items())))
            for layer in layers
        }
        self.resize(slots)

    def _layer_bytes(self, layer: Layer, dtype: torch.dtype) -> tuple[int, int, int]:
        """Of weights, of gradients with their norms, and of buffers."""
        return (
            sum(wire_layout_of(self.pool, key, dtype).parameter_bytes for key in layer.states),
            sum(slot_bytes(layout_of(self.pool, key)) for key in layer.states),
            wire_layout_of(self.pool, layer.key, dtype).buffer_bytes,
        )

    def resize(self, slots: int) -> None:
        """Have so many slots. Nothing may be under way in those that are given back."""
        more = (Slot(self._device, self._sizes, chunks=self.chunks) for _ in range(len(self.slots), slots))
        self.slots = (*self.slots[:slots], *more)
        self._templates = {key: template for key, template in self._templates.items() if key[1] < slots}

    def build(self, layer: Layer, slot: int) -> None:
        """Have a template of a layer's kind in a slot, in the caller's thread: building runs the user's code."""
        kind = self.kind(layer)
        if (kind, slot) not in self._templates:
            template = self._new_template(layer, self.slots[slot])
            if self._calls is not None:
                self._calls(kind, template, slot)
            self._templates[kind, slot] = template

    def _new_template(self, layer: Layer, slot: Slot) -> Template:
        template = Template(self.pool, layer, slot, self._dtype)
        if template.is_channels_last and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the weights of '{layer.key}' are channels_last; the relay keeps and computes with contiguous "
                "ones, and with contiguous tensors between layers: results differ by rounding, and a convolution "
                "may be slower on a GPU",
                stacklevel=2,
            )
        return template

    def separate(self, layer: Layer) -> Template:
        """A template of this layer alone, which is held, for as long as it is among the latest that were asked for."""
        template = self._separate.pop(layer.key, None)
        if template is None:
            sizes = self._layer_bytes(layer, torch.float32)
            template = self._new_template(layer, Slot(self._device, sizes, is_held=True))
            if len(self._separate) >= _MOST_SEPARATE:
                self._separate.pop(next(iter(self._separate)))
        self._separate[layer.key] = template
        return template

    def forget(self, layer: Layer) -> None:
        self._separate.pop(layer.key, None)

    def template(self, layer: Layer, slot: int) -> Template:
        return self._templates[self.kind(layer), slot]

    def parameter_order(self, layer: Layer) -> tuple[tuple[int, int], ...]:
        """See `Template.parameter_order`; of a layer that has a template in some slot."""
        kind = self.kind(layer)
        return next(t.parameter_order for (other, _), t in self._templates.items() if other == kind)

    def kind(self, layer: Layer) -> object:
        """What layers that share templates have in common."""
        return self._kinds[layer.key, layer.position]

    @property
    def templates(self) -> tuple[Template, ...]:
        """Those in slots, then those of single layers."""
        return *self._templates.values(), *self._separate.values()

    @property
    def num_templates(self) -> int:
        return len(self._templates)

    def holds(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(block.untyped_storage().data_ptr() == address for slot in self.slots for block in slot.blocks)

    def unbind(self) -> None:
        for template in self.templates:
            template.unbind()

    @property
    def unused_bytes(self) -> int:
        """What slots that were not used yet will take."""
        used = sum(block.numel() for slot in self.slots for block in slot.blocks)
        return len(self.slots) * self.slot_bytes - used

    @property
    def num_bytes(self) -> int:
        """Device memory of all slots once they are used, and of what runs the layers in them."""
        return (self._calls.num_bytes if self._calls else 0) + len(self.slots) * self.slot_bytes
