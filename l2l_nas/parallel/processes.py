"""Whether another process still lives, as far as this one can tell."""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_PROC = Path("/proc")


class Life(StrEnum):
    """What the kernel says of a process."""

    RUNS = "runs"
    STOPPED = "stopped"  # by SIGSTOP, or a debugger
    ENDED = "ended"
    UNKNOWN = "unknown"  # of another machine, or a system without /proc


@dataclass(frozen=True)
class Process:
    """A process, described so that others can find it.

    Args:
        host: the name of its machine, for messages.
        machine: equal for two processes that see each other's numbers: one kernel, one namespace of process numbers.
        pid: its number.
        began: when it began, in ticks of the kernel; the number alone may be given to another process later.
    """

    host: str
    machine: str
    pid: int
    began: int

    @classmethod
    def own(cls) -> Process:
        """This process."""
        pid = os.getpid()
        return cls(host=socket.gethostname(), machine=_machine(), pid=pid, began=_stat(pid)[1])

    def life(self) -> Life:
        """Whether it runs now."""
        if self.machine != _machine() or not self.began:
            return Life.UNKNOWN
        state, began = _stat(self.pid)
        if began != self.began or state in "ZX":
            return Life.ENDED
        return Life.STOPPED if state in "Tt" else Life.RUNS

    def described(self) -> str:
        """`host, pid 123`."""
        return f"{self.host}, pid {self.pid}"

    def as_content(self) -> dict[str, str | int]:
        """Plain data, of which `Process(**content)` makes it again."""
        return dataclasses.asdict(self)


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} without /proc"


def _stat(pid: int) -> tuple[str, int]:
    """The letter of a process's state, and when it began; ("X", 0) if there is none, or no /proc."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return fields[0], int(fields[19])
