"""All that differs between devices, in one place: memory, streams, random generators.

[Note: captures that fail] Where CUDA refuses to end a capture, `torch.cuda.graph` raises half-way through its end, and
three things stay as the capture had them: its stream is the current one; the generator waits for the capture's end, so
that the next dropout raises "Offset increment outside graph capture encountered unexpectedly" (torch before 2.13); and
the allocator does not give memory again that another stream used, as it may not ask for events in a capture. So the
stream is put back, the generator gets a copy of its state, which is in no capture, and the allocator is told the end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from l2l_nas.arguments import shown
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.layout import align
from l2l_nas.errors import SettingError
from l2l_nas.relay.pinned import PinnedBlocks


class Observer(Protocol):
    """Sees what no clock of a device shows: which thread waits for which. For checkers that look for missing waits."""

    def passed_on(self) -> Any:
        """What this thread has done until now, for `follows`."""

    def follows(self, passed: Any) -> None:
        """This thread has waited for that."""

    def runs(self, lane: str, op: str) -> AbstractContextManager[None]:
        """What this thread does inside is work of a lane."""


class Capture(Protocol):
    """Records what work launches, without running it."""

    def __call__(self, work: Callable[[], None], place: int) -> Callable[[], None]:
        """A function that runs all of it again, on the current stream and on the very same memory.

        Args:
            work: issues to the device from this thread, and from autograd's; it reads nothing back.
            place: recordings of one place share the memory that their work allocates: to run one may change what
                others of the place left there, but for what is still referred to. A backward refers to what its forward
                left, so that it must run before any other of the place.
        """


class Device(Protocol):
    """A compute device and its streams.

    A mark is a point on a stream; None where work is done when the call returns.

    Attributes:
        host_threads: for work on the host beside the device's; None: as many as torch has.
        host_allocator: makes host memory for asynchronous copies; None where any will do.
        observer: of the lanes' threads; None where nobody checks.
        capture: see `Capture`; None where there are no graphs.
        shares_memory: whether layers can compute on the host's own blocks, so that a load need not copy.
    """

    torch_device: torch.device
    shares_memory: bool
    host_threads: int | None
    host_allocator: Callable[[int], Tensor] | None
    observer: Observer | None
    capture: Capture | None

    def allocate(self, num_bytes: int) -> Tensor:
        """A block of device memory, as uint8, zeroed."""

    def allocate_host(self, num_bytes: int) -> Tensor:
        """A block of host memory that copies to and from the device may use without a detour, as uint8.

        It may hold anything. It is given back when no tensor refers to it any more.
        """

    def free_bytes(self) -> int:
        """Device memory that nobody uses."""

    def put(self, tensor: Tensor) -> Tensor:
        """A host tensor on the device; the very same one where the device is the host."""

    def seed(self, seed: int) -> None:
        """Seed the generators that layers draw from."""

    def preserved_generators(self) -> AbstractContextManager[None]:
        """Leave the caller's random numbers as they were."""

    def random_state(self) -> Tensor:
        """Of the generators that layers draw from: another one after they were drawn from."""

    def stream(self, lane: str) -> AbstractContextManager[object]:
        """What is issued inside goes to a lane's stream; that of "host" updates states that live on the device.

        "compute" is the caller's own.
        """

    def mark(self, *, timed: bool = False) -> Any:
        """A mark on the current stream."""

    def follow(self, mark: Any) -> None:
        """Have the current stream wait for a mark."""

    def wait(self, mark: Any) -> None:
        """Have this thread wait for a mark."""

    def is_over(self, mark: Any) -> bool:
        """Whether nobody would wait for a mark."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two timed marks."""

    def delay(self, seconds: float) -> None:
        """Have the current stream do nothing for about so long, for a stress test."""


class Cpu:
    """The host as the device: a lane's work is done when its function returns.

    Args:
        copies: treat it as a device with memory of its own, for tests.
    """

    torch_device = torch.device("cpu")
    # the lanes share the cores with the layers, and two teams of threads on the same cores wait for each other
    host_threads: int | None = 1
    host_allocator: Callable[[int], Tensor] | None = None
    observer: Observer | None = None
    capture: Capture | None = None

    def __init__(self, *, copies: bool = False) -> None:
        self.shares_memory = not copies

    def allocate(self, num_bytes: int) -> Tensor:
        """See `Device`."""
        return torch.zeros(align(num_bytes), dtype=torch.uint8)

    allocate_host = allocate

    def free_bytes(self) -> int:
        """See `Device`."""
        return free_memory_bytes()

    def put(self, tensor: Tensor) -> Tensor:
        """See `Device`."""
        return tensor

    def seed(self, seed: int) -> None:
        """See `Device`."""
        # the generator's own method: a hundred times faster than `torch.manual_seed`, which asks every backend
        torch.default_generator.manual_seed(seed)

    @contextlib.contextmanager
    def preserved_generators(self) -> Iterator[None]:
        """See `Device`."""
        state = torch.default_generator.get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(state)

    def random_state(self) -> Tensor:
        """See `Device`."""
        return torch.default_generator.get_state()

    def stream(self, lane: str) -> AbstractContextManager[object]:
        """See `Device`."""
        del lane
        return contextlib.nullcontext()

    def mark(self, *, timed: bool = False) -> None:
        """See `Device`."""

    def follow(self, mark: None) -> None:
        """See `Device`."""

    def wait(self, mark: None) -> None:
        """See `Device`."""

    def is_over(self, mark: None) -> bool:
        """See `Device`."""
        return True

    def elapsed_s(self, start: None, end: None) -> float:
        """See `Device`."""
        raise NotImplementedError("there are no marks on a CPU")

    def delay(self, seconds: float) -> None:
        """See `Device`."""
        time.sleep(seconds)


class Accelerator:
    """An accelerator that torch drives: each lane issues to a stream of its own, and marks are events.

    Slots and buffers live long: the allocator learns once which streams use them (`record_stream`), which costs nothing
    until they are given back; between steps events alone order what is done with them. Pinned blocks are the process's,
    see `pinned.py`: a server that one relay loaded may go to another.
    """

    host_threads: int | None = None
    observer: Observer | None = None
    capture: Capture | None = None
    shares_memory = False

    def __init__(self, torch_device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if torch_device.index is None else torch_device.index
        self.torch_device = torch.device(torch_device.type, index)
        self._streams = {lane: torch.Stream(self.torch_device) for lane in ("up", "down", "host")}
        for stream in (self._streams[lane] for lane in ("up", "down")):
            _COPYING.setdefault((index, stream.stream_id), stream)
        self.host_allocator: Callable[[int], Tensor] | None = self.allocate_host

    def allocate(self, num_bytes: int) -> Tensor:
        """See `Device`."""
        block = torch.zeros(align(num_bytes), dtype=torch.uint8, device=self.torch_device)
        self._current_stream().synchronize()  # zeros are there before any lane writes
        for stream in self._streams.values():
            block.record_stream(stream)  # if it is ever given back, then only when the lanes are done with it
        return block

    def allocate_host(self, num_bytes: int) -> Tensor:
        """See `Device`."""
        return _PINNED.take(num_bytes)

    def free_bytes(self) -> int:
        """See `Device`. What torch's allocator took from the device and holds for later is free for us."""
        held = torch.accelerator.memory_reserved(self.torch_device)
        used = torch.accelerator.memory_allocated(self.torch_device)
        return torch.accelerator.get_memory_info(self.torch_device)[0] + held - used

    def put(self, tensor: Tensor) -> Tensor:
        """See `Device`. Neither this thread nor what is computed now waits for the copy; what is computed next does."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous() or not tensor.numel():
            return tensor.to(self.torch_device)
        pinned = self.allocate_host(tensor.nbytes)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        pinned.copy_(tensor)
        compute = self._current_stream()
        with self.stream("up"):
            own = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.torch_device)
            own.copy_(pinned, non_blocking=True)
            mark = self.mark()
        self.follow(mark)
        own.record_stream(compute)
        return own

    def seed(self, seed: int) -> None:
        """See `Device`."""
        torch.default_generator.manual_seed(seed)
        self._generator().manual_seed(seed)

    @contextlib.contextmanager
    def preserved_generators(self) -> Iterator[None]:
        """See `Device`."""
        host, own = torch.default_generator.get_state(), self._generator().get_state()
        try:
            yield
        finally:
            torch.default_generator.set_state(host)
            self._generator().set_state(own)

    def random_state(self) -> Tensor:
        """See `Device`."""
        return torch.cat([torch.default_generator.get_state(), self._generator().get_state()])

    def _generator(self) -> torch.Generator:
        generators: tuple[torch.Generator, ...] = torch.get_device_module(self.torch_device).default_generators
        return generators[self.torch_device.index]

    def _current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.torch_device)

    @contextlib.contextmanager
    def stream(self, lane: str) -> Iterator[None]:
        """See `Device`."""
        with torch.accelerator.device_index(self.torch_device.index):
            if lane not in self._streams:
                yield
                return
            with self._streams[lane]:
                yield

    def mark(self, *, timed: bool = False) -> torch.Event:
        """See `Device`."""
        # who waits for it leaves the core to others
        event = torch.Event(self.torch_device, enable_timing=timed, blocking=True)
        event.record(self._current_stream())
        return event

    def follow(self, mark: torch.Event | None) -> None:
        """See `Device`."""
        if mark is not None:
            self._current_stream().wait_event(mark)

    def wait(self, mark: torch.Event | None) -> None:
        """See `Device`."""
        if mark is not None:
            mark.synchronize()

    def is_over(self, mark: torch.Event | None) -> bool:
        """See `Device`."""
        return mark is None or bool(mark.query())

    def elapsed_s(self, start: torch.Event, end: torch.Event) -> float:
        """See `Device`."""
        return start.elapsed_time(end) / 1000

    def delay(self, seconds: float) -> None:
        """See `Device`."""
        time.sleep(seconds)  # torch has no common way to have a stream sleep: what is issued late runs late


class Cuda(Accelerator):
    """A CUDA device."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._pools: dict[int, Any] = {}  # of recordings, by place
        self.capture = self._capture

    def _capture(self, work: Callable[[], None], place: int) -> Callable[[], None]:
        """See `Capture`."""
        if place not in self._pools:
            self._pools[place] = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # lanes go on beside it: what they ask of the driver in their threads is no part of the recording
        with (
            self._left_usable(self._pools[place]),
            torch.cuda.graph(graph, pool=self._pools[place], capture_error_mode="thread_local"),
        ):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    @contextlib.contextmanager
    def _left_usable(self, pool: Any) -> Iterator[None]:
        """Have a capture that fails leave the device as it was; see [Note: captures that fail].

        Args:
            pool: that the capture allocates from.
        """
        stream = self._current_stream()
        try:
            yield
        except BaseException:
            self._resume(stream)
            generator = self._generator()
            generator.graphsafe_set_state(generator.clone_state())
            with contextlib.suppress(RuntimeError):  # torch did it, where the capture was ended
                self._end_allocations(pool)
            raise

    def _resume(self, stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    def _end_allocations(self, pool: Any) -> None:
        torch._C._cuda_endAllocateToPool(self.torch_device.index, pool)

    def delay(self, seconds: float) -> None:
        """See `Device`."""
        torch.cuda._sleep(int(seconds * 1e9))  # clock cycles


class _Events:
    """A fence behind all copies that the lanes of this process's relays have issued; see [Note: blocks in flight]."""

    def __init__(self) -> None:
        streams = list(_COPYING.values())
        self._events = [torch.Event(stream.device, blocking=True) for stream in streams]
        for event, stream in zip(self._events, streams, strict=True):
            event.record(stream)

    def is_over(self) -> bool:
        """See `Fence`."""
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        """See `Fence`."""
        for event in self._events:
            event.synchronize()


def _pin(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


# torch keeps pinned memory that was dropped; before 2.13 there may be no way to say that it need not
_trim: Callable[[], None] = getattr(torch.accelerator, "empty_host_cache", lambda: None)

# torch has few streams a device (CUDA: 32), given out one after the other: these stay few, however many the relays
_COPYING: dict[tuple[int, int], torch.Stream] = {}  # by device and number, those that lanes copy on
_PINNED = PinnedBlocks(_pin, fence=_Events, trim=_trim)


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
    is_known = kind in ("cuda", "xpu") or (found is not None and found.type == kind != "mps")
    if not is_known:
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
    return _folded(_folded(_folded(_folded(0, seed), step), position), micro_batch) >> 1


def step_seeds(seed: int, step: int) -> Callable[[int, int], int]:
    """`stream_seed` of one step, by position and micro-batch."""
    state = _folded(_folded(0, seed), step)
    return lambda position, micro_batch: _folded(_folded(state, position), micro_batch) >> 1


def _folded(state: int, value: int) -> int:
    state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
    state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
    return state ^ state >> 31
