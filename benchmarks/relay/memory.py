"""Bytes on the device side: by the allocator on CUDA, by counting tensors on a CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.space.contents import storage_of
from l2l_nas.space.operations import LiveBytes


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


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors, each storage once."""
    storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def process_figures(file: str, *names: str) -> list[int]:
    """Figures of this process as Linux has them in `/proc/self/FILE`; none where nobody counts."""
    try:
        lines = Path("/proc/self", file).read_text().splitlines()
    except OSError:
        return []
    found = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if name in names}
    return [found[name] for name in names if name in found]
