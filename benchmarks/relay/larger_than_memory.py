"""A pool that is larger than memory: all its states in files, another architecture at each step.

    OMP_NUM_THREADS=1 python -m benchmarks larger_than_memory [--rounds 4] [--folder FOLDER] [--out FILE]

24 positions of 8 layers of BERT-Large's size. Beside it in rounds: the same work with states in memory, where only one
architecture of the pool is trained, so that it fits; and that once more, as the control. A round of the files ends when
all that was written is on the disk: what the system would write later is not given away. The first steps are of one
architecture on both sides, and their losses must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.pages.writing import format_bytes
from benchmarks.paired import shown
from benchmarks.relay.peers import ExecutorRunner, agreement, peak_bytes, repeat
from benchmarks.relay.work import StackSizes
from benchmarks.timing import interleave, machine, ratio
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SettingError
from l2l_nas.files import write_json
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture

_SIDES = ("file", "ram", "control")
_STEADY = 3  # steps of one architecture on both sides: equal losses, two updates through files
_SAMPLE_S = 0.05


def states_bytes(work: StackSizes) -> int:
    """Weights and moments of all candidates of the pool."""
    return sum(3 * layout_of(work.pool, key).parameter_bytes for key in work.pool.states)


class _Files:
    """The pool in files; each step trains the next architecture, each of whose layers differs from the last one's."""

    def __init__(self, work: StackSizes, folder: Path) -> None:
        self.work = work
        self.storage = FileStorage(folder)
        self.runner = ExecutorRunner(Relay(work.server(storage=self.storage), device="cpu", seed=work.seed), work)
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
        for path in self.storage.folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        self.runner.close()
        self.storage.close()


@contextlib.contextmanager
def _sampled_peak(measure: Callable[[], int]) -> Iterator[list[int]]:
    """The largest of what is measured many times a second meanwhile, in a list of one."""
    peak, over = [measure()], threading.Event()

    def sample() -> None:
        while not over.wait(_SAMPLE_S):
            peak[0] = max(peak[0], measure())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _anonymous_bytes() -> int:
    return 1024 * int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])


def add_options(parser: argparse.ArgumentParser) -> None:
    sizes = {"depth": 24, "hidden": 1024, "candidates": 8}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=at_least(1), default=default, help=f"of the pool ({default})")
    parser.add_argument("--rounds", type=at_least(1), default=4)
    parser.add_argument("--steps", type=at_least(1), default=2, help="of a round")
    parser.add_argument("--folder", type=Path, help="where the files are made; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=RESULTS / "larger_than_memory.json")


def main(options: argparse.Namespace) -> int:
    """Measure and write; 1 if losses differ."""
    torch.set_num_threads(1)
    work = StackSizes(
        options.depth, hidden=options.hidden, heads=options.hidden // 64, feedforward=4 * options.hidden, batch=8,
        candidates=options.candidates, device="cpu",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, contextlib.ExitStack() as stack:
        needed, free = states_bytes(work), shutil.disk_usage(folder).free
        if needed > 0.9 * free:
            raise SettingError(f"states need {format_bytes(needed)}, {folder} has {format_bytes(free)}; take --folder")
        files = _Files(work, Path(folder))
        stack.callback(files.close)
        with _sampled_peak(_anonymous_bytes) as peak:
            losses = [files.runner.step(number) for number in range(_STEADY)]
            files.repeat(0, work.candidates)  # all first visits
            last = partial(files.step, work.candidates)
            device_bytes = peak_bytes(last, work.torch_device, owned=files.runner.device_bytes, before=0)
            files.runner.finish()
        memory = ExecutorRunner(Relay(work.server(), device="cpu", seed=work.seed), work)
        stack.callback(memory.close)
        agrees = agreement(losses, [memory.step(number) for number in range(_STEADY)], 0.0)

        def go(side: str, number: int) -> None:
            first = work.candidates + 1 + number * options.steps
            if side == "file":
                files.repeat(first, options.steps)
            else:
                repeat(memory, options.steps, first)

        seconds = interleave({side: partial(go, side) for side in _SIDES}, rounds=options.rounds, warmup=1)
    rows = [
        {
            "side": side,
            "seconds_a_step": round(statistics.median(seconds[side]) / options.steps, 4),
            "over": {} if side == "ram" else {"ram": ratio(seconds[side], seconds["ram"])},
            **({"agreement": agrees} if side == "file" else {}),
        }
        for side in _SIDES
    ]
    found = {
        "states_bytes": states_bytes(work),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "anonymous_bytes": {"peak": peak[0]},
        "device_bytes": device_bytes,
        "rows": rows,
    }
    for row in rows:
        over = f", over memory {shown(row['over']['ram'])}" if row["over"] else ""  # type: ignore[index]
        print(f"{row['side']}: {row['seconds_a_step']} s a step{over}")
    print(f"{format_bytes(states_bytes(work))} of states, anonymous memory at most {format_bytes(peak[0])}")
    write_json(options.out, {"benchmark": "larger_than_memory", "machine": machine(), **found})
    return int(not agrees["agrees"])
