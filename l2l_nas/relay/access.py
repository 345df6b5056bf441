"""Access to states: where a layer finds its weights and where its gradients go, decided when the layer is opened.

| weights | gradients |
|---|---|
| of a state on the device: where they lie | stay on the device, in a block of the inbox |
| of the host's memory, on a CPU that computes in float32: where they lie | stay, in a block of the inbox |
| others on a CPU (files, lower precisions): copied to the slot | stay, in a block of the inbox |
| others: copied to the slot, see `eps/wire.py` | lie in the slot, and are sent |
| of which several ranks have parts: gathered to the slot | lie in the slot, and are sent |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.layout import Layout, wire_layout_of
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.eps.storage import Storage
from l2l_nas.eps.wire import WireMemory
from l2l_nas.relay.device import Device
from l2l_nas.relay.device_states import DeviceStates


@dataclass(frozen=True)
class OpenState:
    """A state of a layer that was opened for visits."""

    key: str
    weights: Sequence[Tensor] | None  # its parameters where they lie; None: they were copied to the slot
    gradients_stay: bool  # in a block of the inbox; else they lie in the slot


class StateAccess:
    """A relay's way to the states of one server.

    Args:
        wire: host memory for weights as they cross the link.
    """

    def __init__(
        self,
        server: ParamServer,
        device: Device,
        *,
        dtype: torch.dtype,
        wire: WireMemory,
        on_device: DeviceStates | None = None,
    ) -> None:
        self.server = server
        self._device = device
        self._dtype = dtype
        self._wire = wire
        self.on_device = on_device
        self._is_host = device.shares_memory

    @property
    def storage(self) -> Storage:
        """The server's states, with the device's copies of those that live there."""
        return self.server.storage if self.on_device is None else self.on_device

    def open(self, key: str, slot: Tensor) -> OpenState:
        """Open a state for a layer's visits; where it is to be copied, it comes to this slot."""
        storage = self.storage
        with storage.reading(key) as state:
            self._device.stream_wait(state.written)
            if self.server.is_sharded(key):
                self.server.all_gather_weights(key, state, slot, self._dtype)
                return OpenState(key, None, gradients_stay=False)
            weights = self._in_place(state, storage)
            if weights is None:
                self._copy(state, wire_layout_of(self.server.pool, key, self._dtype), slot, storage.is_lasting)
            return OpenState(key, weights, gradients_stay=state.is_on_device or self._is_host)

    def _in_place(self, state: LayerState, storage: Storage) -> Sequence[Tensor] | None:
        """Parameters that a layer may compute on where they lie.

        The plan's order is what keeps updates from weights in use: an update waits for all visits that read them.
        """
        is_wide = self._dtype == torch.float32
        if state.is_on_device:
            return state.views if is_wide else state.wire_views
        return state.views if self._is_host and is_wide and storage.is_lasting else None

    def _copy(self, state: LayerState, layout: Layout, slot: Tensor, is_lasting: bool) -> None:
        """See [Note: what crosses]. States on disk are rounded when they are read."""
        wire, size = self._wire, layout.parameter_bytes
        if self._dtype == torch.float32 and (state.is_pinned or not wire.is_pinned):
            slot.copy_(state.weights, non_blocking=is_lasting)
            return
        if is_lasting:
            is_there = state.wire is not None and state.wire.numel() == size and state.wire_dtype == self._dtype
            if not is_there and (block := wire.allocate(size)) is not None:
                state.keep_wire(layout, block, self._dtype)
                is_there = True
            if is_there and state.wire is not None:
                slot.copy_(state.wire, non_blocking=True)
                return
        if wire.is_pinned:
            block = wire.stage(size)
            state.copy_to_wire(layout, block)
            slot.copy_(block, non_blocking=True)
        else:
            state.copy_to_wire(layout, slot)

    def allocate_gradients(self, state: OpenState) -> GradientBlock | None:
        """Where the gradients of an opened state go in its backward; None: to the slot."""
        layout = self.server.layout(state.key)
        if not state.gradients_stay or not layout.is_trainable:
            return None
        inbox, size = self.server.gradients, gradient_bytes(layout)
        if self._is_host:
            return inbox.allocate(size)
        block = inbox.allocate(size, self._device.allocate, self._device.torch_device)
        self._device.stream_wait(block.read)
        return block

    def store_buffers(self, key: str, buffers: Tensor, layout: Layout | None = None) -> None:
        """Have a state's buffers be those that a forward changed; see `LayerState.store_buffers`. Frozen ones stay."""
        if key not in self.server.frozen:
            with self.storage.writing(key, Part.BUFFERS) as state:
                state.store_buffers(buffers, layout)
