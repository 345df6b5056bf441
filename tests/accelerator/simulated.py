"""Registers the simulated accelerator with torch, as device "simulated", and has relays run on it.

Import it only in a process that runs on it: torch knows one accelerator a process, and pins memory for that one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from l2l_nas.eps.gradients import GradientBlock
from l2l_nas.eps.inbox import GradientInbox
from l2l_nas.relay import accelerator, lanes, reference
from l2l_nas.relay import device as devices
from l2l_nas.relay import relay as relay_module
from l2l_nas.relay.pinned import PinnedBlocks
from tests.accelerator.build import NAME, build

DEVICE = "simulated"
LATENESS_US = 200


def _load() -> Any:
    torch.utils.rename_privateuse1_backend(DEVICE)  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location(NAME, build())
    assert spec is not None
    assert spec.loader is not None
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library


def _register() -> None:
    """What torch's Python asks of a backend's module."""
    generator = library.default_generator()
    module = types.ModuleType(f"torch.{DEVICE}")
    module.__dict__.update(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False, _lazy_init=lambda: None,
        device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None,
        get_device_name=lambda device: DEVICE,
        default_generators=(generator,), manual_seed=generator.manual_seed, manual_seed_all=generator.manual_seed,
        get_rng_state=lambda device=DEVICE: generator.get_state(),
        set_rng_state=lambda state, device=DEVICE: generator.set_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
    )  # fmt: skip
    torch._register_device_module(DEVICE, module)


library = _load()
_register()
library.set_lateness_us(LATENESS_US)
# as on CUDA, a parameter that moves to the device is the object that it was, and so shared ones stay shared
torch.__future__.set_swap_module_params_on_conversion(True)
# on a CPU these kernels are chosen where they apply, on other devices torch composes others
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)


class _HostAccesses(TorchDispatchMode):
    """Has the checker see what operators of this thread do with pinned memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for one in tree_leaves(value):
                if isinstance(one, Tensor) and one.device.type == "cpu" and one.layout == torch.strided:
                    library.host_access(one, writes, f"{func} of the host")
        return func(*args, **kwargs)


class _WatchedFuture(lanes.Future):
    """The checker learns which thread waits for which."""

    _passed: bytes | None = None

    def finish(self, **outcome: Any) -> None:
        self._passed = library.passed_on()
        super().finish(**outcome)

    def wait(self) -> None:
        super().wait()
        if self._passed is not None:
            library.follows(self._passed)


@dataclass(frozen=True)
class _WatchedWork(lanes.LaneWork):
    """Remembers what the thread that submitted it had done."""

    passed: bytes = field(default_factory=library.passed_on)


_run = lanes.Lanes._run


def _watched_run(owner: lanes.Lanes, work: lanes.LaneWork) -> None:
    """The checker learns which work a thread does."""
    assert isinstance(work, _WatchedWork)
    if threading.current_thread().name.startswith("l2l_nas "):
        library.enter_thread()
    before = library.name_work(f"{work.lane}: {work.label.op}")
    library.follows(work.passed)
    try:
        _run(owner, work)
    finally:
        library.name_work(before)


class _Meeting:
    """A lock of the program, for the checker: who was inside before comes before who is inside now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed: bytes | None = None

    def __call__(self) -> None:
        with self._lock:
            if self._passed is not None:
                library.follows(self._passed)
            self._passed = library.passed_on()


class SimulatedAccelerator(accelerator.Accelerator):
    """Torch's simulated device, watched."""

    blocks = PinnedBlocks(accelerator._pin, fence=accelerator._Events, trim=accelerator._trim, slab_bytes=1 << 20)
    _taking = threading.RLock()
    _taken = _Meeting()  # `PinnedBlocks` has a lock

    def __init__(self) -> None:
        super().__init__(torch.device(DEVICE, 0))

    def allocate_host(self, num_bytes: int) -> Tensor:
        with self._taking:
            self._taken()
            block = self.blocks.take(num_bytes)
            library.renew(block)
            self._taken()
        return block

    @contextlib.contextmanager
    def stream(self, lane: str) -> Iterator[None]:
        with super().stream(lane), _HostAccesses() if lane == "host" else contextlib.nullcontext():
            yield

    def delay(self, seconds: float) -> None:
        library.delay(seconds)


def use() -> None:
    """Relays made from now on for the CPU run on it."""

    def open_device(name: str = "auto") -> devices.Device:
        return SimulatedAccelerator() if name in ("auto", "cpu", DEVICE) else devices.open_device(name)

    for module in (relay_module, reference):
        module.open_device = open_device  # type: ignore[attr-defined]
    lanes.Future, lanes.LaneWork = _WatchedFuture, _WatchedWork  # type: ignore[misc]
    lanes.Lanes._run = _watched_run  # type: ignore[assignment, method-assign]
    give, allocate = GradientInbox.give_back, GradientInbox.allocate
    met = _Meeting()  # blocks for gradients go from thread to thread under the inbox's lock

    def given(inbox: GradientInbox, blocks: Sequence[GradientBlock]) -> None:
        met()
        give(inbox, blocks)

    def allocated(inbox: GradientInbox, *about: Any) -> GradientBlock:
        block = allocate(inbox, *about)
        met()
        return block

    GradientInbox.give_back, GradientInbox.allocate = given, allocated  # type: ignore[assignment, method-assign]
