"""Processes that are ranks, ended whatever happens: forked from one that has imported torch, or started by torchrun."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.parallel.programs"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([PROGRAM])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def begin(folder: Path, rank: int | str, variables: dict[str, str], words: list[str]) -> None:
    """In a process of its own: what a launcher would start."""
    os.setsid()
    for number, name in ((1, f"out{rank}"), (2, f"err{rank}")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(variables)
    from tests.parallel.programs import run

    run(words)


class Ended:
    """What a process left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    def __repr__(self) -> str:
        return f"Ended({self.code}, out={self.out!r}, err={self.err!r})"


class Ranks:
    """Processes of one world on this machine; rank 0 holds the store.

    Args:
        folder: for what they print.
        size: how many.
        words: for `tests/parallel/programs.py`.
        variables: of their environment.
    """

    def __init__(self, folder: Path, size: int, *words: object, **variables: object) -> None:
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **variables}
        self.folder = folder
        self.processes = []
        for rank in range(size):
            own = {name: str(value) for name, value in {"RANK": rank, "WORLD_SIZE": size, **common}.items()}
            one = SERVER.Process(target=begin, args=(folder, rank, own, [str(word) for word in words]), daemon=True)
            one.start()
            self.processes.append(one)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes:
            one.kill()
        for one in self.processes:
            one.join(10)

    def send(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def text(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def until(self, rank: int, text: str, most_s: float = 40) -> None:
        """Wait until a rank has printed something."""
        end = time.monotonic() + most_s
        while text not in self.text(f"out{rank}"):
            assert time.monotonic() < end, (text, self.text(f"out{rank}"), self.text(f"err{rank}"))
            assert self.processes[rank].exitcode is None, self.text(f"err{rank}")
            time.sleep(0.005)

    def ended(self, most_s: float = 60, without: tuple[int, ...] = ()) -> list[Ended]:
        """What all have left but those named, once they have ended."""
        end = time.monotonic() + most_s
        results = []
        for rank, one in enumerate(self.processes):
            if rank not in without:
                one.join(max(0.01, end - time.monotonic()))
                left = Ended(one.exitcode, self.text(f"out{rank}"), self.text(f"err{rank}"))
                assert one.exitcode is not None, f"rank {rank} has not ended after {most_s} s: {left}"
                results.append(left)
        return results


def errors_of(results: list[Ended]) -> list[str]:
    return [line for one in results for line in one.errors()]


def start_torchrun(folder: Path, *words: object, name: str = "", **variables: object) -> subprocess.Popen:
    """A launcher; what it and its workers print goes to files."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHELASTIC", "MASTER_"))}
    own |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **{key: str(value) for key, value in variables.items()}}
    with (folder / f"out{name}").open("w") as out, (folder / f"err{name}").open("w") as err:
        command = [sys.executable, "-m", "torch.distributed.run", *map(str, words)]
        return subprocess.Popen(command, env=own, cwd=ROOT, stdout=out, stderr=err, start_new_session=True)


def torchrun(folder: Path, *words: object, most_s: float = 120, **variables: object) -> Ended:
    """Have torchrun run these words to the end."""
    one = start_torchrun(folder, *words, **variables)
    try:
        code = one.wait(most_s)
    finally:
        end_torchrun(one)
    return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())


def end_torchrun(one: subprocess.Popen) -> None:
    """End a launcher, which ends its workers."""
    if one.poll() is None:
        one.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(40)
        one.kill()
    one.wait(10)


def kill_tree(pid: int) -> None:
    """`kill -9` a process and its children, as when their machine is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts no other child
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
        for child in map(int, listed):
            kill_tree(child)
        os.kill(pid, signal.SIGKILL)
