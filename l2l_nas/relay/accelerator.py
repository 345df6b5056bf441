"""Accelerators: devices that torch drives, with memory and streams of their own.

[Note: captures that fail] Where CUDA refuses to end a capture, `torch.cuda.graph` raises half-way through its end, and
three things stay as the capture had them: its stream is the current one; the generator waits for the capture's end, so
that the next dropout raises "Offset increment outside graph capture encountered unexpectedly" (torch before 2.13); and
the allocator does not give memory again that another stream used, as it may not ask for events in a capture. So the
stream is put back, the generator gets a copy of its state, which is in no capture, and the allocator is told the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from l2l_nas.eps.layout import align
from l2l_nas.relay.pinned import PinnedBlocks
from l2l_nas.space.randomness import generators_of


class Capture(Protocol):
    """Records what work launches, without running it."""

    def __call__(self, work: Callable[[], None], place: int) -> Callable[[], None]:
        """Give a function that runs all of the work again, on the current stream and on the very same memory.

        Args:
            work: issues to the device from this thread, and from autograd's; it reads nothing back.
            place: recordings of one place share the memory that their work allocates: to run one may change what
                others of the place left there, but for what is still referred to. A backward refers to what its forward
                left, so that it must run before any other of the place.
        """


class Accelerator:
    """An accelerator that torch drives: each lane issues to a stream of its own, and marks are events.

    Slots and buffers live long: the allocator learns once which streams use them (`record_stream`), which costs nothing
    until they are given back; between steps events alone order what is done with them. Pinned blocks are the process's,
    see `pinned.py`: a server that one relay loaded may go to another.
    """

    host_threads: int | None = None
    capture: Capture | None = None
    shares_memory = False

    def __init__(self, torch_device: torch.device) -> None:
        index = torch.accelerator.current_device_index() if torch_device.index is None else torch_device.index
        self.torch_device = torch.device(torch_device.type, index)
        self._streams = {lane: torch.Stream(self.torch_device) for lane in ("up", "down", "host")}
        for stream in (self._streams[lane] for lane in ("up", "down")):
            _COPYING.setdefault((index, stream.stream_id), stream)
        self._generators = generators_of(self.torch_device)
        self.host_allocator: Callable[[int], Tensor] | None = self.allocate_host

    def allocate(self, num_bytes: int) -> Tensor:
        block = torch.zeros(align(num_bytes), dtype=torch.uint8, device=self.torch_device)
        self._current_stream().synchronize()  # zeros are there before any lane writes
        for stream in self._streams.values():
            block.record_stream(stream)  # if it is ever given back, then only when the lanes are done with it
        return block

    def allocate_host(self, num_bytes: int) -> Tensor:
        return _PINNED.take(num_bytes)

    def free_bytes(self) -> int:
        """See `Device`. What torch's allocator took from the device and holds for later is free for us."""
        memory, device = torch.accelerator, self.torch_device
        return memory.get_memory_info(device)[0] + memory.memory_reserved(device) - memory.memory_allocated(device)

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
        self.stream_wait(mark)
        own.record_stream(compute)
        return own

    def seed(self, seed: int) -> None:
        for generator in self._generators:
            generator.manual_seed(seed)

    def _current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.torch_device)

    @contextlib.contextmanager
    def stream(self, lane: str) -> Iterator[None]:
        with torch.accelerator.device_index(self.torch_device.index):
            if lane not in self._streams:
                yield
                return
            with self._streams[lane]:
                yield

    def mark(self, *, timed: bool = False) -> torch.Event:
        # who waits for it leaves the core to others
        event = torch.Event(self.torch_device, enable_timing=timed, blocking=True)
        event.record(self._current_stream())
        return event

    def stream_wait(self, mark: torch.Event | None) -> None:
        if mark is not None:
            self._current_stream().wait_event(mark)

    def wait(self, mark: torch.Event | None) -> None:
        if mark is not None:
            mark.synchronize()

    def is_over(self, mark: torch.Event | None) -> bool:
        return mark is None or bool(mark.query())

    def elapsed_s(self, start: torch.Event, end: torch.Event) -> float:
        return start.elapsed_time(end) / 1000


class Cuda(Accelerator):
    """A CUDA device."""

    def __init__(self, torch_device: torch.device) -> None:
        super().__init__(torch_device)
        self._pools: dict[int, Any] = {}  # of recordings, by place
        self.capture = self._capture

    def _capture(self, work: Callable[[], None], place: int) -> Callable[[], None]:
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
            generator = self._generators[-1]
            generator.graphsafe_set_state(generator.clone_state())
            with contextlib.suppress(RuntimeError):  # torch did it, where the capture was ended
                self._end_allocations(pool)
            raise

    def _resume(self, stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    def _end_allocations(self, pool: Any) -> None:
        torch._C._cuda_endAllocateToPool(self.torch_device.index, pool)


class _Events:
    """A fence behind all copies that the lanes of this process's relays have issued; see [Note: blocks in flight]."""

    def __init__(self) -> None:
        streams = list(_COPYING.values())
        self._events = [torch.Event(stream.device, blocking=True) for stream in streams]
        for event, stream in zip(self._events, streams, strict=True):
            event.record(stream)

    def is_over(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()


def _pin(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)


# torch keeps pinned memory that was dropped; before 2.13 there may be no way to say that it need not
_trim: Callable[[], None] = getattr(torch.accelerator, "empty_host_cache", lambda: None)

# torch has few streams a device (CUDA: 32), given out one after the other: these stay few, however many the relays
_COPYING: dict[tuple[int, int], torch.Stream] = {}  # by device and number, those that lanes copy on
_PINNED = PinnedBlocks(_pin, fence=_Events, trim=_trim)
