"""A storage whose states live on the device, moments included, from the first training step that uses them.

[Note: written back] The host's state is the one that everybody else reads. What the device changed is copied to it
before anybody does (`ParamServer.drain`), and what was changed on the host since is copied to the device again. Buffers
stay on the host: they cross with each load anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l2l_nas.eps.frames import Image
from l2l_nas.eps.layout import align, wire_layout_of
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.eps.storage import Storage
from l2l_nas.errors import SettingError, StateLostError
from l2l_nas.relay.device import Device


@dataclass
class _DeviceState:
    state: LayerState  # without buffers
    block: Tensor  # that it lies in
    saved: int  # its version when the host's state was the same
    on_host: int  # the version of the host's state then

    @property
    def is_changed(self) -> bool:  # since the host's state was the same
        return self.state.version != self.saved


class DeviceStates:
    """The states of one server that live on a device; a `Storage` around the server's own.

    Args:
        dtype: of the weights that layers compute on; beside float32 masters, a copy is stored.
    """

    def __init__(self, server: ParamServer, device: Device, dtype: torch.dtype) -> None:
        self._server = server
        self._device = device
        self._dtype = dtype
        self._states: dict[str, _DeviceState] = {}
        self._free: list[Tensor] = []  # blocks of states that went back

    def serve(self, server: ParamServer) -> None:
        """Have states of this server from now on; those of another go back to it."""
        self.release()
        self._server = server

    def __contains__(self, key: object) -> bool:
        return key in self._states

    @property
    def _host(self) -> Storage:
        return self._server.storage

    @property
    def keys(self) -> tuple[str, ...]:
        return self._host.keys

    @property
    def is_lasting(self) -> bool:
        return self._host.is_lasting

    def put(self, key: str, state: LayerState) -> None:
        self._drop([key] if key in self else [])
        self._host.put(key, state)

    def clear(self) -> None:
        self._drop(list(self._states))
        self._host.clear()

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        self._host.expect((key, part) for key, part in uses if key not in self)

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        """See `Storage`. Buffers are the host's."""
        if key in self and part is not Part.BUFFERS:
            return contextlib.nullcontext(self._states[key].state)
        return self._host.reading(key, part)

    def writing(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """See `Storage`. Buffers are the host's."""
        if key not in self:
            return self._host.writing(key, part)
        return self._writing_buffers(key) if part is Part.BUFFERS else self._updating(key)

    @contextlib.contextmanager
    def _writing_buffers(self, key: str) -> Iterator[LayerState]:
        with self._host.writing(key, Part.BUFFERS) as state:
            yield state
            self._states[key].on_host = state.version

    @contextlib.contextmanager
    def _updating(self, key: str) -> Iterator[LayerState]:
        """Issue an update; `LayerState.written` is behind what is done inside, or before on its stream.

        Streams wait for that mark, no thread does. Where something is raised, the host's state counts, if it is what
        the device's was before; else the state is lost.
        """
        entry = self._states[key]
        was_changed = entry.is_changed
        try:
            with self._device.stream("host"):
                try:
                    yield entry.state
                    entry.state.written = self._device.mark()
                except BaseException:
                    self._device.wait(self._device.mark())  # its blocks go to another state
                    raise
        except BaseException as error:
            self._drop([key])
            if was_changed:
                self._lose(key, error)
            raise

    def _lose(self, key: str, error: BaseException) -> None:
        """Have the host refuse a state whose newest weights are gone: its own are older."""
        lost = StateLostError.by(key, error)
        with contextlib.suppress(StateLostError), self._host.writing(key):
            raise lost

    @property
    def num_bytes(self) -> int:
        """Device memory of all that is here, and of blocks that wait for another state."""
        return sum(block.numel() for block in (*(entry.block for entry in self._states.values()), *self._free))

    @property
    def is_changed(self) -> bool:
        return any(entry.is_changed for entry in self._states.values())

    def stale(self) -> list[str]:
        """States that were changed on the host since they came."""
        if not self._host.is_lasting:
            return []
        return [key for key, entry in self._states.items() if self._version_on_host(key) != entry.on_host]

    def _version_on_host(self, key: str) -> int:
        with self._host.reading(key, Part.BUFFERS) as host:
            return host.version

    def forget(self, stale: Sequence[str]) -> None:
        """Drop states that were changed on the host. No update may be under way.

        Raises:
            SettingError: the device has changed one as well, and one of the changes would be lost.
        """
        both = [key for key in stale if self._states[key].is_changed]
        self._drop(stale)
        if both:
            raise SettingError(
                f"the weights of '{both[0]}' were changed on the host, but updated on the device since they were read; "
                "read them with server.state(key) right before you change them"
            )

    def bring(self, keys: Iterable[str]) -> None:
        """Have states come to the device. Nothing may be under way with them."""
        for key in keys:
            self._bring(key)

    def _bring(self, key: str) -> None:
        image = _image(self._server, key)
        block = self._allocate(state_bytes(self._server, key, self._dtype))
        state = image.state(block)
        state.is_on_device = True
        with self._device.stream("host"), self._host.reading(key, Part.ALL) as host:
            for target, source in zip(state.updated_blocks, host.updated_blocks, strict=True):
                target.copy_(source)
            if self._dtype != torch.float32:
                wire = wire_layout_of(self._server.pool, key, self._dtype)
                state.keep_wire(wire, block[image.end_bytes(Part.ALL) :][: wire.parameter_bytes], self._dtype)
            state.visits, state.version = host.visits, host.version
            self._device.wait(self._device.mark())
        self._states[key] = _DeviceState(state, block, state.version, state.version)

    def _allocate(self, num_bytes: int) -> Tensor:
        for index, block in enumerate(self._free):
            if block.numel() == num_bytes:
                return self._free.pop(index)
        return self._device.allocate(num_bytes)

    def _drop(self, keys: Sequence[str]) -> None:
        self._free += [self._states.pop(key).block for key in keys]

    def write_back(self) -> None:
        """Have the host's states be what these are. No update may be under way."""
        changed = {key: entry for key, entry in self._states.items() if entry.is_changed}
        if not changed:
            return
        with self._device.stream("host"):
            for key, entry in changed.items():
                with self._host.writing(key) as host:
                    for target, source in zip(host.updated_blocks, entry.state.updated_blocks, strict=True):
                        target.copy_(source)
                    host.visits = entry.state.visits
                    host.mark_changed()
                    entry.state.version = entry.saved = entry.on_host = host.version

    def release(self) -> None:
        """Write everything back, and hold nothing."""
        self.write_back()
        self._drop(list(self._states))


def state_bytes(server: ParamServer, key: str, dtype: torch.dtype) -> int:
    """Of a state on the device: weights, moments, step counts, and weights in another dtype."""
    wire = 0 if dtype == torch.float32 else align(wire_layout_of(server.pool, key, dtype).parameter_bytes)
    return _image(server, key).end_bytes(Part.ALL) + wire


def _image(server: ParamServer, key: str) -> Image:
    return Image(replace(server.rules.of(key).layout, buffers=()))
