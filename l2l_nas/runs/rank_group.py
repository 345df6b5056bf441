"""Worker processes that are groups of ranks: each trial is trained by several processes of one machine together.

[Note: groups] A worker, wherever an executor placed it, is rank 0 of its group: it starts the others, sends them what
it was sent, and they run the same segments. Together they are a world of their own (`parallel/world.py`), which other
groups and the search know nothing of. Where a rank is lost the worker ends, and is replaced as any worker that is lost;
the others of its group end with it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import cloudpickle

from l2l_nas.nas.evaluation.remote import run_message
from l2l_nas.runs.world import consensus_of

if TYPE_CHECKING:
    from l2l_nas.parallel.world import World

_LENGTH = 8  # bytes before a message, which say how long it is
_PROGRAM = "from l2l_nas.runs.rank_group import follow; follow()"


class RankGroup:
    """The ranks that this process leads, as the first of them; the others end with it.

    Args:
        size: how many ranks there are, this one included.
        recipe: pickled; the others build the same workplace of it.
        patience_s: see `WorldConfig`.

    Raises:
        RankError: another rank ended before it joined.
    """

    def __init__(self, size: int, recipe: bytes, *, patience_s: float) -> None:
        from l2l_nas.parallel.world import WorldConfig, join

        place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        ranks = [{**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
        self._others = [_started(rank) for rank in ranks[1:]]
        self._tell(recipe)
        self.consensus = consensus_of(join(WorldConfig(patience_s=patience_s), environment=ranks[0]))

    def send(self, message: dict[str, Any]) -> None:
        """Have the others run the same segment as this process is about to run."""
        self._tell(cloudpickle.dumps(message))

    def _tell(self, content: bytes) -> None:
        for other in self._others:
            assert other.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the next exchange says which rank has ended
                other.stdin.write(len(content).to_bytes(_LENGTH, "big") + content)
                other.stdin.flush()


def follow() -> NoReturn:
    """What another rank of a group does, until its leader ends; see `RankGroup`."""
    from l2l_nas.parallel.entry import run_ranked

    recipe = _message(sys.stdin.buffer)

    def program(world: World) -> int:
        place = cloudpickle.loads(recipe).on_ranks(consensus_of(world))
        while content := _message(sys.stdin.buffer):
            run_message(place, cloudpickle.loads(content))
        os._exit(0)  # the leader has ended

    run_ranked(program)


def _message(stream: BinaryIO) -> bytes:
    """The next one; empty where the leader has ended."""
    length = int.from_bytes(stream.read(_LENGTH), "big")
    return stream.read(length)


def _started(place: dict[str, str]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environment |= {**place, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=nowhere, stderr=nowhere)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
