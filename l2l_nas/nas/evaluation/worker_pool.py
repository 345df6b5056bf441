"""Worker processes: started, given what to do, replaced when they are killed.

Messages are JSON, and blocks of bytes that a message announces; nothing that could run code. A worker learns that this
process is gone when its connection ends, and then ends itself.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

Message = dict[str, Any]

_PATIENCE_S = 5.0  # with workers that were asked to end
# the same modules as here, whatever the current folder and PYTHONPATH: the user's own pool is imported there again
_START = "import sys; sys.path[:] = sys.argv[3:]; __import__(sys.argv[1], fromlist=['main']).main(int(sys.argv[2]))"


@dataclass(eq=False)
class Member:
    """One process.

    Args:
        worker: from 1; its replacement gets the same.
        process: its number among all that were ever started, from 1.
        is_ready: whether it has said so.
    """

    worker: int
    process: int
    popen: subprocess.Popen[bytes]
    connection: Connection = field(repr=False)
    is_ready: bool = False


@dataclass(frozen=True)
class Report:
    """A message of a worker, or the news that it ended.

    Args:
        message: None if it ended.
        blocks: what the message announced.
        ended: how it ended, in words.
    """

    member: Member
    message: Message | None
    blocks: tuple[bytes, ...] = ()
    ended: str = ""


class WorkerPool:
    """So many worker processes.

    Args:
        module: has a function `main`, which gets the file descriptor of a connection.
        size: how many.
        hello: what a worker is given first, by its number and process; see `Member`.
        handles: file descriptors that all inherit.
        recover: called with the number of a worker that ended, before another one gets it.
    """

    def __init__(
        self,
        module: str,
        *,
        size: int,
        hello: Callable[[int, int], Message],
        handles: Sequence[int] = (),
        recover: Callable[[int], None] = lambda worker: None,
    ) -> None:
        self.size = size
        self._module = module
        self._hello = hello
        self._handles = tuple(handles)
        self._recover = recover
        self._started = 0
        self.members: dict[int, Member] = {}

    def __enter__(self) -> WorkerPool:
        for worker in range(1, self.size + 1):
            self.start(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, worker: int) -> None:
        """Start a worker."""
        self._started += 1
        ours, theirs = Pipe()
        command = [sys.executable, "-c", _START, self._module, str(theirs.fileno()), *sys.path]
        # a group of its own: Ctrl-C is for this process, which lets the workers finish what they do
        popen = subprocess.Popen(command, pass_fds=(theirs.fileno(), *self._handles), process_group=0)
        theirs.close()
        member = self.members[worker] = Member(worker, self._started, popen, ours)
        self.send(member, self._hello(worker, self._started))

    def send(self, member: Member, message: Message, blocks: Sequence[bytes] = ()) -> None:
        """Tell a worker something, with blocks of bytes. If it has ended, `receive` will say so."""
        with contextlib.suppress(OSError):
            member.connection.send_bytes(json.dumps({**message, "blocks": len(blocks)}).encode())
            for block in blocks:
                member.connection.send_bytes(block)

    def receive(self, timeout_s: float) -> list[Report]:
        """What workers said; at most one message each. A worker that ended is recovered from, and gone."""
        by_connection = {member.connection: member for member in self.members.values()}
        ready = wait(list(by_connection), timeout=timeout_s)
        return [self._read(by_connection[connection]) for connection in ready]  # type: ignore[index]

    def _read(self, member: Member) -> Report:
        try:
            message = json.loads(member.connection.recv_bytes())
            blocks = tuple(member.connection.recv_bytes() for _ in range(message.get("blocks", 0)))
        except (EOFError, OSError):
            return Report(member, None, ended=self._reap(member))
        return Report(member, message, blocks)

    def _reap(self, member: Member) -> str:
        """It has closed its connection, so it is about to end, if it has not."""
        member.connection.close()
        try:
            code = member.popen.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            member.popen.kill()
            code = member.popen.wait()
        del self.members[member.worker]
        self._recover(member.worker)
        if code >= 0:
            return f"ended with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def close(self) -> None:
        """End all workers, whatever they do."""
        members = list(self.members.values())
        self.members.clear()
        for member in members:
            member.connection.close()
        for member in members:
            try:
                member.popen.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                member.popen.kill()
                member.popen.wait()
