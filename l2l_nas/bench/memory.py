"""Bytes on the device side: by the allocator on CUDA, by counting tensors on a CPU."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators of this thread make while it is on, until each of them is freed.

    Autograd of a CPU runs its backward in the thread that asks for it, so what it makes is counted too. What other
    threads make (the relay's lanes, which are the host side) is not.

    Attributes:
        now: bytes alive that were made since it was entered.
        peak: the most there ever were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then examine what it returned: new tensors, or the given ones and views of them."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        fresh = [tensor for tensor in _tensors((result,)) if _identity(tensor) not in self._seen]
        if fresh:
            given = {_identity(tensor) for tensor in (*_tensors(args), *_tensors(kwargs.values()))}
            for tensor in fresh:
                if _identity(tensor) not in given:
                    self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._seen:
            return
        num_bytes = storage.nbytes()

        def freed(_: object) -> None:
            self.now -= num_bytes
            del self._seen[identity]

        self._seen[identity] = weakref.ref(storage, freed)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those that have memory, in nested lists and tuples."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is torch.strided and not value.is_meta:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors, each storage once."""
    storages = {_identity(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def synchronize(device: torch.device) -> None:
    """Free what is no longer used, and wait for the device."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
        torch.accelerator.empty_cache()


def allocated(device: torch.device) -> int:
    """What the device's allocator has given out; 0 on a CPU."""
    synchronize(device)
    return torch.accelerator.memory_allocated(device) if device.type != "cpu" else 0


def peak_bytes(
    step: Callable[[], object], device: torch.device, *, owned: Callable[[], int | None], before: int
) -> int | None:
    """Device-side bytes of a side at the worst moment of a step.

    On an accelerator it is the allocator's peak above `before`. On a CPU it is what the side owns on its device side
    when the step begins, and the most its operators make on top of that.

    Args:
        step: one training step; a first one has been done.
        owned: bytes the side holds on the device side between steps; None if the host side cannot be separated from it.
        before: `allocated` before the side was built.
    """
    synchronize(device)
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        step()
        torch.accelerator.synchronize(device)
        return torch.accelerator.max_memory_allocated(device) - before
    held = owned()
    if held is None:
        return None
    with LiveBytes() as live:
        step()
    return held + live.peak
