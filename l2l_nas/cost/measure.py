"""Measures this machine: the figures of a hardware profile, in well under a minute."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.scratch import sequential_seconds
from l2l_nas.eps.server import ParamServer
from l2l_nas.files import named_failures, temporary_name
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.relay.device import Device, open_device
from l2l_nas.relay.interface import Batch, Targets
from l2l_nas.relay.relay import Relay
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.values import as_tuple

_ROUNDS = 5  # of which the fastest counts: other processes only make it slower
_LIMIT_S = 3.0  # of a figure
_COPY_BYTES = 64 << 20
# of the profile; what is left has its default, or is none
_MEASURED = (
    *("peak_flops", "device_bytes", "device_bandwidth", "link_up", "link_down", "host_bytes", "host_bandwidth"),
    *("host_updates", "disk", "kernel_s", "step_s"),
)
_PARAMETERS = 8 << 20


def measure(device: str = "auto", *, folder: Path) -> Hardware:
    """A profile of this machine.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:N".
        folder: on the disk that is measured.

    Raises:
        SettingError: no such device.
        StorageError: the disk could not be written.
    """
    opened = open_device(device)
    is_host = opened.torch_device.type == "cpu"
    host, far, other = opened.allocate_host(_COPY_BYTES), opened.allocate(_COPY_BYTES), opened.allocate(_COPY_BYTES)
    beside = torch.zeros_like(host)
    tiny = opened.put(torch.zeros(8))
    source = (
        f"measured on {opened.torch_device.type}, {platform.machine()}, torch {torch.__version__}, "
        f"threads: {torch.get_num_threads()}; matrix rates are those of large products"
    )
    with named_failures(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # free now, and what this process has taken of it
    host_bytes = free_memory_bytes()
    profile = Hardware(
        name="measured",
        peak_flops={name: _products(opened, dtype) for name, dtype in PRECISIONS.items()},
        efficiency=1.0,
        device_bytes=host_bytes if is_host else opened.free_bytes() + 2 * _COPY_BYTES,
        device_bandwidth=2 * _copy_rate(other, far, opened),
        link_up=_copy_rate(far, host, opened),
        link_down=_copy_rate(host, far, opened),
        host_bytes=host_bytes,
        host_bandwidth=2 * _copy_rate(beside, host, opened),
        host_updates=_updates(),
        disk=_COPY_BYTES / max(*sequential_seconds(temporary_name(folder / "disk"), _COPY_BYTES), 1e-9),
        kernel_s=_fastest(lambda: [tiny.add_(1) for _ in range(100)], opened) / 100,
        lanes="inline" if is_host else "streams",
        # of processes of one machine; nothing is measured, as no other rank is there
        rank_bandwidth=PROFILES["laptop"].rank_bandwidth if is_host else 0.0,
        rank_latency_s=PROFILES["laptop"].rank_latency_s if is_host else 50e-6,
        sources=dict.fromkeys(_MEASURED, source),
    )
    return replace(profile, step_s=_issue_s(profile, device))


def _copy_rate(target: Tensor, source: Tensor, device: Device) -> float:
    return _COPY_BYTES / _fastest(lambda: target.copy_(source, non_blocking=True), device)


def _fastest(do: Callable[[], object], device: Device) -> float:
    """The fastest call, in seconds."""
    end = time.perf_counter() + _LIMIT_S
    times: list[float] = []
    do()
    while len(times) < _ROUNDS and (not times or time.perf_counter() < end):
        device.wait(device.mark())
        begun = time.perf_counter()
        do()
        device.wait(device.mark())
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)


def _products(device: Device, dtype: torch.dtype) -> float:
    """Operations a second of a product of square matrices, large enough that more does not matter."""
    for size in (256, 512, 1024, 2048, 4096, 8192):
        a, b = (torch.ones(size, size, dtype=dtype, device=device.torch_device) for _ in range(2))
        seconds = _fastest(lambda a=a, b=b: a @ b, device)  # type: ignore[misc]
        if seconds > 0.01:
            break
    return 2 * float(size) ** 3 / seconds


def _updates() -> float:
    """Parameters a second of AdamW on the host."""
    blocks = [torch.zeros(_PARAMETERS) for _ in range(4)]
    steps = torch.zeros(())

    def update() -> None:
        AdamW().update([blocks[0]], [blocks[1]], [[blocks[2]], [blocks[3]]], [steps], lr=1e-3)

    return _PARAMETERS / _fastest(update, open_device("cpu"))


def _issue_s(profile: Hardware, device: str) -> float:
    """The overhead of a visit, in seconds: measured in a relay whose layers hardly compute."""
    depth, samples = 8, 2
    layer = Candidate("c", partial(nn.Linear, 8, 8))
    pool = LayerPool([Position(f"p{index}", [layer]) for index in range(depth)], inputs=TensorSpec((8,)))
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=device)
    path = pool.architecture(["c"] * depth)
    inputs, targets = (torch.zeros(samples, 8),), torch.zeros(samples, 8)
    times = []
    for step in range(20):
        begun = time.perf_counter()
        relay.train_step(
            path, inputs, targets, objective=_SquaredError(), micro_batch=samples, lr=0.0, step=step, upcoming=path
        )
        times.append(time.perf_counter() - begun)
    relay.close()
    copies = 3 * depth * profile.copy_s if profile.lanes == "inline" else 0.0
    kernels = 12 * depth * profile.kernel_s  # of a small linear layer: forward, the same again, backward
    return max((min(times) - copies - kernels) / (2 * depth - 1), 1e-6)


class _SquaredError:
    """An objective that costs little."""

    def count(self, targets: Targets) -> float:
        return float(len(as_tuple(targets)[0]))

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        return (outputs[0] - as_tuple(targets)[0]).square().sum()
