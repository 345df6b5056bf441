"""Counts the device memory of a relay on a CPU: what it owns, and every storage made in the thread of the layers.

Lanes have threads of their own, so what they make on the host is not in it. States exist before, too; and so do the
blocks in which gradients wait for updates, on the host: where the device is the host, a layer takes them in its own
thread, and how many it takes depends on how far updates are behind.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from l2l_nas.relay.slots import gradient_bytes


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages made inside that are alive, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {_id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                number = _id(tensor)
                if number not in self._known and number not in given:
                    storage = tensor.untyped_storage()
                    self._known.add(number)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._over, number, storage.nbytes())
        return result

    def _over(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now -= size


def _id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def peak_bytes(relay, step) -> int:
    """Of a warm relay: what it owns and the most that a step makes besides."""
    step()
    step()
    relay.drain()
    fill(relay.server)
    live = LiveBytes()
    with live:
        step()
    relay.drain()
    torch.set_grad_enabled(True)
    return relay.device_bytes + live.peak


def fill(server) -> None:
    """Have a free block for the gradients of every state."""
    layouts = [server.layout(key) for key in server.visited]
    size = max(gradient_bytes([layout]) for layout in layouts)
    blocks = [torch.empty(size, dtype=torch.uint8) for _ in layouts]
    server.gradients.forget(server.gradients.keys)
    server.gradients._blocks[:] = blocks
