"""A disk of a known rate: what the simulator is compared with."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from l2l_nas.eps import scratch
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.state import LayerState, Part


class Disk:
    """A disk of a known rate, beneath the files of one storage: one piece of work after the other.

    Attributes:
        work: when each piece was over, and how long it took.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free = 0.0
        self.work: list[tuple[float, float]] = []
        self._spent = threading.local()

    def take(self, num_bytes: int) -> float:
        """Read or write so much; how long that takes alone."""
        seconds = num_bytes / self._rate
        with self._lock:
            end = self._free = max(self._free, time.perf_counter()) + seconds
            self.work.append((end, seconds))
        time.sleep(max(0.0, end - time.perf_counter()))
        return seconds

    def spent(self) -> tuple[float, float]:
        """How long this thread opened and closed states since it was asked last, and how long of that it wrote."""
        own = self._own()
        found = (own[0], own[1])
        own[:] = [0.0, 0.0]
        return found

    def _own(self) -> list[float]:
        if not hasattr(self._spent, "seconds"):
            self._spent.seconds = [0.0, 0.0]
        return self._spent.seconds

    def timed(self, do: Callable[[], Any]) -> Any:
        """Note how long this thread is at something."""
        begun = time.perf_counter()
        result = do()
        self._own()[0] += time.perf_counter() - begun
        return result

    @contextlib.contextmanager
    def beneath(self) -> Iterator[None]:
        """Have all files of this process be on it."""
        read, write = scratch.read_into, scratch.write_from

        def read_into(path: Path, block: torch.Tensor, *others: Any, **named: Any) -> None:
            self.take(block.numel())
            read(path, block, *others, **named)

        def write_from(path: Path, block: torch.Tensor, *others: Any, **named: Any) -> None:
            self._own()[1] += self.take(block.numel())
            write(path, block, *others, **named)

        scratch.read_into, scratch.write_from = read_into, write_from
        try:
            yield
        finally:
            scratch.read_into, scratch.write_from = read, write


class SlowFiles(FileStorage):
    """Files on such a disk, whose frames are in use for as long as loads and updates take."""

    disk: Disk
    pace: Callable[[str, str], float]

    @contextlib.contextmanager
    def reading(self, key: str, part: Part = Part.WEIGHTS) -> Iterator[LayerState]:
        """See `Storage`."""
        opened = super().reading(key, part)
        state = self.disk.timed(opened.__enter__)
        with lasting(self.pace("load", key) if part is Part.WEIGHTS else 0.0):
            yield state
        opened.__exit__(None, None, None)

    @contextlib.contextmanager
    def writing(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        """See `Storage`."""
        opened = super().writing(key, part)
        state = self.disk.timed(opened.__enter__)
        yield state
        self.disk.timed(lambda: opened.__exit__(None, None, None))


@contextlib.contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """Take so long."""
    begun = time.perf_counter()
    yield
    time.sleep(max(0.0, seconds - (time.perf_counter() - begun)))
