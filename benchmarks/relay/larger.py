"""The bench of a pool larger than memory: all its states in files, another architecture at each step.

Beside it in rounds: the same work with states in memory, where only one architecture of the pool is trained, so that it
fits; that once more, as the control; and the disk alone, which writes and reads the bytes of one step. A round of the
files ends when all that was written is on the disk: what the system would write later is not given away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.relay.memory import peak_bytes, process_figures
from benchmarks.relay.peers import ExecutorRunner, repeat
from benchmarks.relay.training import agreement
from benchmarks.relay.work import StackSizes
from benchmarks.settings import BenchWatch, Settings, too_large
from benchmarks.timing import interleave, ratio
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.layout import layout_of
from l2l_nas.eps.scratch import Scratch, sequential_seconds
from l2l_nas.errors import SettingError
from l2l_nas.relay.plan import VISITS
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace
from l2l_nas.space.architecture import Architecture

Result = dict[str, Any]

_SIDES = ("file", "ram", "control", "disk")
_STEADY = 3  # steps of one architecture on both sides: equal losses, two updates through files
_SAMPLE_S = 0.05
_VISITS = tuple(op.value for op in VISITS)


def states_bytes(work: StackSizes) -> int:
    """Weights and moments of all candidates of the pool."""
    return sum(3 * layout_of(work.pool, key).parameter_bytes for key in work.pool.states)


def check(settings: Settings) -> None:
    """Refuse what does not fit, before anything runs.

    Raises:
        SettingError: the disk is too small for the pool, or the memory for one architecture.
    """
    work = settings.work
    folder = next(path for path in (settings.scratch.resolve(), *settings.scratch.resolve().parents) if path.exists())
    needed = round(1.02 * states_bytes(work)) + 12 * work.num_parameters  # what the disk alone writes, too
    free = shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise SettingError(
            f"the pool's states need {needed / 2**30:.1f} GiB in {folder}, {free / 2**30:.1f} are free; name another "
            "folder, or take smaller stack.hidden, stack.depth or stack.candidates"
        )
    reason = too_large(work)
    if reason:
        raise SettingError(f"one architecture in memory, to compare with: {reason}")


def larger_than_memory(settings: Settings, watch: BenchWatch) -> Result:
    """Step time from files, from memory and of the disk alone; memory, bytes, and what binds."""
    work = settings.work
    watch.start(work.candidates + _STEADY + 1 + (1 + settings.rounds) * len(_SIDES))
    with contextlib.ExitStack() as stack:
        before = _anonymous_bytes()
        files = _Files(work, settings.scratch)
        stack.callback(files.close)
        with _sampled_peak(_anonymous_bytes) as peak:
            losses = [files.runner.step(number) for number in range(_STEADY)]
            files.runner.finish()
            watch.advance(_STEADY, "files, first steps")
            for number in range(work.candidates):
                files.step(number)
                watch.advance(1, "files, first visits")
            files.runner.finish()
            device_bytes = peak_bytes(
                partial(files.step, work.candidates), work.torch_device, owned=files.runner.device_bytes, before=0
            )
            files.runner.finish()
            watch.advance(1, "files, memory")
        trace = Trace()
        memory = ExecutorRunner(Relay(work.server(), device=work.device, seed=work.seed, trace=trace), work)
        stack.callback(memory.close)
        agrees = agreement(losses, [memory.step(number) for number in range(_STEADY)], 0.0)
        return {
            "states_bytes": states_bytes(work),
            "states_written_bytes": sum(path.stat().st_size for path in files.storage.folder.iterdir()),
            "memory_bytes": _memory_bytes(),
            "parameters": states_bytes(work) // 12,
            "parameters_of_an_architecture": work.num_parameters,
            "anonymous_bytes": {"before": before, "peak": peak[0]},
            "device_bytes": device_bytes,
            "owned_device_bytes": files.runner.device_bytes(),
            **_compared(settings, watch, files, memory, trace, agrees),
        }


class _Files:
    """The pool in files; each step trains the next architecture, each of whose layers differs from the last one's."""

    def __init__(self, work: StackSizes, folder: Path) -> None:
        self.work = work
        self.trace = Trace()
        self.storage = FileStorage(folder)
        relay = Relay(work.server(storage=self.storage), device=work.device, seed=work.seed, trace=self.trace)
        self.runner = ExecutorRunner(relay, work)
        self._count = 0

    def architecture(self, number: int) -> Architecture:
        """Position i takes candidate (number + i); after as many as there are candidates they begin anew."""
        choices = (position.candidates for position in self.work.pool.positions)
        return self.work.pool.architecture(own[(number + i) % len(own)].name for i, own in enumerate(choices))

    def step(self, number: int) -> float:
        """A step of the architecture of that number."""
        self._count += 1
        return self.runner.train(_STEADY + self._count, self.architecture(number), self.architecture(number + 1))

    def repeat(self, first: int, steps: int) -> None:
        """Some steps, and all they began, down to the disk."""
        for number in range(first, first + steps):
            self.step(number)
        self.runner.finish()
        self.flush()

    def flush(self) -> None:
        """Have all files on the disk."""
        for path in self.storage.folder.iterdir():
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def close(self) -> None:
        self.runner.close()
        self.storage.close()


class _Counters:
    """What a number of rounds took, by side: processor time, and bytes that were asked for or reached the disk."""

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage
        self._started: list[float] = []
        self.found: dict[str, list[list[float]]] = {}

    def _now(self) -> list[float]:
        times, disk = os.times(), _disk_bytes()
        asked = (self._storage.bytes_read, self._storage.bytes_written, self._storage.misses)
        return [times.user + times.system, *asked, *disk]

    @contextlib.contextmanager
    def counted(self, side: str) -> Iterator[None]:
        started = self._now()
        yield
        self.found.setdefault(side, []).append([b - a for a, b in zip(started, self._now(), strict=True)])

    def median(self, side: str, index: int, steps: int) -> float:
        return statistics.median(counts[index] for counts in self.found[side]) / steps


def _compared(
    settings: Settings, watch: BenchWatch, files: _Files, memory: ExecutorRunner, trace: Trace, agrees: Result
) -> Result:
    """Rounds of all sides."""
    work, steps = settings.work, settings.steps
    counters = _Counters(files.storage)
    disk: list[tuple[float, float]] = []

    def go(side: str, number: int) -> None:
        first = work.candidates + 1 + number * steps
        with counters.counted(side) if number else contextlib.nullcontext():
            if side == "file":
                files.repeat(first, steps)
            elif side == "disk":
                disk.append(_disk_alone(settings.scratch, steps * 12 * work.num_parameters))
            else:
                repeat(memory, steps, first)
        if number == 0:  # what is traced from here on is the middle of it
            files.trace.clear()
            trace.clear()

    seconds = interleave(
        {side: partial(go, side) for side in _SIDES},
        rounds=settings.rounds,
        warmup=1,
        tick=lambda name: watch.advance(1, name),
    )
    rows = [
        {
            "side": side,
            "seconds_a_step": round(statistics.median(seconds[side]) / steps, 4),
            "cpu_seconds_a_step": round(counters.median(side, 0, steps), 4),
            "over": {} if side == "ram" else {"ram": ratio(seconds[side], seconds["ram"])},
            **({"agreement": agrees} if side == "file" else {}),
        }
        for side in _SIDES
    ]
    busy = _busy(trace, 2 * settings.rounds * steps)
    from_files = _rounded(_busy(files.trace, settings.rounds * steps))
    figures = _disk_figures(counters, disk, busy, volume=12 * work.num_parameters, steps=steps)
    return {"rows": rows, **figures, "busy_seconds_a_step_from_files": from_files}


def _disk_figures(
    counters: _Counters, disk: Sequence[tuple[float, float]], busy: Mapping[str, float], *, volume: int, steps: int
) -> Result:
    """What a step reads and writes, what the disk alone does, and what binds."""
    written, read = (statistics.median(pair[index] for pair in disk[1:]) / steps for index in (0, 1))
    asked_read, asked_written, misses, got_read, got_written = (
        counters.median("file", index, steps) for index in range(1, 6)
    )
    # where nobody counts what reached the disk, what was asked for
    reads, writes = (got_read, got_written) if max(got_read, got_written) > 0 else (asked_read, asked_written)
    seconds_of = {**busy, "disk": (reads * read + writes * written) / volume}
    return {
        "bytes_a_step": {
            "read": round(asked_read),
            "written": round(asked_written),
            "read_from_disk": round(got_read),
            "written_to_disk": round(got_written),
        },
        "disk_alone": {
            "bytes": volume,
            "write_bytes_a_second": round(volume / written),
            "read_bytes_a_second": round(volume / read),
        },
        "openings_that_waited_a_step": round(misses, 2),
        "seconds_a_step_of": _rounded(seconds_of),
        "binds": max(seconds_of, key=lambda name: seconds_of[name]),
    }


def _disk_alone(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Seconds to write and to read so many bytes."""
    with contextlib.closing(Scratch(folder)) as scratch:  # what a kill leaves of it is removed by the next
        return sequential_seconds(scratch.new_path("disk-alone"), num_bytes)


def _busy(trace: Trace, steps: int) -> dict[str, float]:
    """Seconds a step of what was traced: layers, copies between host and device, updates on the host."""
    found = dict.fromkeys(("compute", "copies", "host update"), 0.0)
    for span in trace.spans:
        name = "compute" if span.op in _VISITS else "host update" if span.op in ("update", "check") else "copies"
        found[name] += (span.end_s - span.start_s) / steps
    return found


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


@contextlib.contextmanager
def _sampled_peak(measure: Callable[[], int | None]) -> Iterator[list[int | None]]:
    """The largest of what is measured many times a second meanwhile, in a list of one."""
    peak: list[int | None] = [measure()]
    over = threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            now = measure()
            if now is not None:
                peak[0] = max(peak[0] or 0, now)

    thread = threading.Thread(target=sample, name="l2l_nas bench memory", daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _anonymous_bytes() -> int | None:
    """Of this process; None where the system does not say."""
    values = process_figures("status", "RssAnon")
    return values[0] * 1024 if values else None


def _memory_bytes() -> int:
    """Of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _disk_bytes() -> tuple[int, int]:
    """What this process had a disk read and write so far; zeros where nobody counts."""
    values = process_figures("io", "read_bytes", "write_bytes")
    return (values[0], values[1]) if len(values) == 2 else (0, 0)
