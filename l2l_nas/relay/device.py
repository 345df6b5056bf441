"""All that differs between devices, in one place: memory, streams, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from l2l_nas.arguments import shown
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.layout import align
from l2l_nas.errors import SettingError
from l2l_nas.relay.accelerator import Accelerator, Capture, Cuda


class Device(Protocol):
    """A compute device and its streams.

    A mark is a point on a stream; None where work is done when the call returns, as the methods here have it.

    Attributes:
        host_threads: for work on the host beside the device's; None: as many as torch has.
        host_allocator: makes host memory for asynchronous copies; None where any will do.
        capture: see `Capture`; None where there are no graphs.
        shares_memory: whether layers can compute on the host's own blocks, so that a load need not copy.
    """

    torch_device: torch.device
    shares_memory: bool
    host_threads: int | None
    host_allocator: Callable[[int], Tensor] | None
    capture: Capture | None

    def allocate(self, num_bytes: int) -> Tensor:
        """A block of device memory, as uint8, zeroed."""

    def allocate_host(self, num_bytes: int) -> Tensor:
        """A block of host memory that copies to and from the device may use without a detour, as uint8.

        It may hold anything. It is given back when no tensor refers to it any more.
        """

    def free_bytes(self) -> int:
        """Count the device memory that nobody uses."""

    def put(self, tensor: Tensor) -> Tensor:
        """Copy a host tensor to the device; where the device is the host, it is the very same one."""

    def seed(self, seed: int) -> None:
        """Seed the generators that layers draw from."""

    def stream(self, lane: str) -> AbstractContextManager[object]:
        """Have what is issued inside go to a lane's stream.

        That of "compute" is the caller's own; that of "host" updates states that live on the device.
        """
        del lane
        return contextlib.nullcontext()

    def mark(self, *, timed: bool = False) -> Any:
        """Put a mark on the current stream."""
        return None

    def stream_wait(self, mark: Any) -> None:
        """Have the current stream wait for a mark."""
        return

    def wait(self, mark: Any) -> None:
        """Have this thread wait for a mark."""
        return

    def is_over(self, mark: Any) -> bool:
        """Ask whether the work before a mark is done."""
        return True

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Tell the seconds between two timed marks."""


class Cpu(Device):
    """The host as the device: a lane's work is done when its function returns.

    Args:
        copies: treat it as a device with memory of its own, for tests.
    """

    torch_device = torch.device("cpu")
    # the lanes share the cores with the layers, and two teams of threads on the same cores wait for each other
    host_threads: int | None = 1
    host_allocator: Callable[[int], Tensor] | None = None
    capture: Capture | None = None

    def __init__(self, *, copies: bool = False) -> None:
        self.shares_memory = not copies

    def allocate(self, num_bytes: int) -> Tensor:
        return torch.zeros(align(num_bytes), dtype=torch.uint8)

    allocate_host = allocate

    def free_bytes(self) -> int:
        return free_memory_bytes()

    def put(self, tensor: Tensor) -> Tensor:
        return tensor

    def seed(self, seed: int) -> None:
        # the generator's own method: a hundred times faster than `torch.manual_seed`, which asks every backend
        torch.default_generator.manual_seed(seed)

    def elapsed_s(self, start: None, end: None) -> float:
        raise NotImplementedError("there are no marks on a CPU")


def open_device(name: str | torch.device | Device = "auto") -> Device:
    """A compute device.

    Args:
        name: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:N", "xpu", "xpu:N", or the name of a backend that
            was registered with torch from outside; or a device, torch's or one that this gave.

    Raises:
        SettingError: torch cannot use that device.
    """
    if isinstance(name, torch.device):
        name = str(name)
    if not isinstance(name, str):
        if not isinstance(getattr(name, "torch_device", None), torch.device):
            raise SettingError(f"device takes a name such as cpu or cuda:0, or a torch.device, got {shown(name)}")
        return name
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch_device = torch.device(name)
    except RuntimeError:
        torch_device = torch.device("meta")
    kind = torch_device.type
    if kind == "cpu":
        return Cpu()
    found = torch.accelerator.current_accelerator(check_available=True)
    if kind not in ("cuda", "xpu") and (found is None or not found.type == kind != "mps"):
        raise SettingError(f"device must be auto, cpu, cuda or cuda:N (or xpu), got {name!r}")
    if found is None or found.type != kind:
        raise SettingError(f"device={name}, but torch sees no {kind.upper()} device; use device=cpu")
    if (torch_device.index or 0) >= torch.accelerator.device_count():
        raise SettingError(f"device={name}, but there are {torch.accelerator.device_count()} {kind.upper()} devices")
    return Cuda(torch_device) if kind == "cuda" else Accelerator(torch_device)


def name_of(torch_device: torch.device) -> str:
    """What an accelerator is called by its maker."""
    return str(torch.get_device_module(torch_device).get_device_name(torch_device))


_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int, position: int, micro_batch: int) -> int:
    """The seed of the random numbers of one layer on one micro-batch.

    It depends on nothing else, so a recompute replays them and results do not depend on the schedule. Each value is
    folded in by splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    return step_seeds(seed, step)(position, micro_batch)


def step_seeds(seed: int, step: int) -> Callable[[int, int], int]:
    """`stream_seed` of one step, by position and micro-batch."""
    state = _folded(_folded(0, seed), step)
    return lambda position, micro_batch: _folded(_folded(state, position), micro_batch) >> 1


def _folded(state: int, value: int) -> int:
    state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return state ^ state >> 31
