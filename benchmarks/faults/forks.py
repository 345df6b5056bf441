"""Runs commands in processes forked from one that has imported everything: a case takes its own time, not 3 s more."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

_PRELOAD = (
    *(f"l2l_nas.cli.{name}" for name in ("search", "train", "evaluate", "export", "report", "generate", "plan")),
    *("l2l_nas.cli.sweep", "l2l_nas.nas.study.reading"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.model_selection", "torch._dynamo"),
    *("torch.export", "onnxscript", "torch.onnx", "tokenizers", "PIL.Image", "l2l_nas.compress.pool"),
)
_MEMORY_BYTES = 16 << 30
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where folders of cases are made


def preload() -> None:
    """Import what commands import, once. No thread of torch's may run when processes are forked."""
    import torch

    torch.set_num_threads(1)
    for name in _PRELOAD:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)


@dataclass
class Process:
    """A forked process that runs a command."""

    number: int
    folder: Path
    started: float
    name: str = ""  # among several that work in one folder

    def wait(self, seconds: float) -> int | None:
        """Its exit code, below 0 for a signal; None if it runs after so long. What it leaves stays: see `left_of`."""
        end = time.monotonic() + seconds
        while True:
            done, status = os.waitpid(self.number, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= end:
                return None
            time.sleep(0.002)

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        os.kill(self.number, signal.SIGKILL)
        os.waitpid(self.number, 0)

    def kill_group(self) -> None:
        kill_group(self.number)

    @property
    def output(self) -> str:
        return _read(self.folder / f"out{self.name}.txt")

    @property
    def errors(self) -> str:
        return _read(self.folder / f"err{self.name}.txt")


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder but what processes printed, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in ("out.txt", "err.txt")
    }


def kill_group(number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def left_of(numbers: Collection[int], *, seconds: float = 15.0) -> str:
    """What processes left that have ended, after so long: of their groups, and in shared memory. It is ended then."""
    end = time.monotonic() + seconds
    while (found := _left(numbers)) and time.monotonic() < end:
        time.sleep(0.1)
    for number in numbers:
        kill_group(number)
    return f"left: {', '.join(found)}" if found else ""


def _left(numbers: Collection[int]) -> list[str]:
    shared = [path for path in Path("/dev/shm").glob("*") if path.is_file()]
    found = [path.name for path in shared if {*re.findall(r"\d+", path.name)} & {*map(str, numbers)}]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # gone meanwhile
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(group) in numbers and state != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
    return found


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def start(folder: Path, work: Callable[[], int], *, name: str = "") -> Process:
    """Fork, and do something in a folder; what it prints goes to out.txt and err.txt there, its name in theirs."""
    sys.stdout.flush()
    number = os.fork()
    if number:
        return Process(number, folder, time.monotonic(), name)
    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        for handle, file in ((1, f"out{name}.txt"), (2, f"err{name}.txt")):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), handle)
        sys.stdout, sys.stderr = (open(handle, "w", closefd=False) for handle in (1, 2))  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise AssertionError


def command(folder: Path, *words: str) -> Process:
    """`python -m l2l_nas WORDS` in a folder."""
    from l2l_nas.__main__ import main

    return start(folder, lambda: main(list(words)))
