"""How processes find each other: the launcher's environment, the store, and who is there.

[Note: restarts] torchrun keeps one store over all its restarts, so it holds keys of processes that are dead. It starts
ranks anew when it has ended all that were there. So rank 0 deletes what they answered, and counts the ranks that answer
from then on; each tells its own nonce, and is told under it that it was counted. All other keys bear rank 0's nonce.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from l2l_nas.errors import RankError, SettingError, one_line
from l2l_nas.parallel.beats import Beat
from l2l_nas.parallel.waiting import in_thread
from l2l_nas.version import __version__

_ADVICE = "start with torchrun --nproc-per-node 2 PROGRAM, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
_POLL_S = 0.02
# one of another Python has other code of the same function
VERSIONS = {"l2l_nas": __version__, "torch": torch.__version__, "Python": platform.python_version().rpartition(".")[0]}
_ANSWER_S = 6.0  # for a store that takes connections; what is none may take them and say nothing


@dataclass(frozen=True)
class Place:
    """What a launcher says in the environment.

    Args:
        rank: of this process, from 0.
        size: how many ranks there are, a power of two.
        local_rank: of this process among those of its machine.
        host: where the store is.
        port: of the store.
        has_launcher_store: whether the launcher holds the store; else rank 0 does.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    has_launcher_store: bool

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read it.

        Raises:
            SettingError: a variable is missing or makes no sense.
        """
        rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
        if size < 1 or size & (size - 1):
            below = 1 << (max(size, 1).bit_length() - 1)
            raise SettingError(
                f"WORLD_SIZE={size}: the number of ranks must be a power of two, as results shall not depend on it; "
                f"start {below}, or {2 * below}"
            )
        if not 0 <= rank < size:
            raise SettingError(f"RANK={rank}: with WORLD_SIZE={size}, ranks are 0 to {size - 1}")
        if not environment.get("MASTER_ADDR"):
            raise SettingError(f"MASTER_ADDR is not set; {_ADVICE}")
        port = _number(environment, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise SettingError(f"MASTER_PORT={port}: a port is a number from 1 to 65535")
        return cls(
            rank=rank,
            size=size,
            local_rank=_number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank,
            host=environment["MASTER_ADDR"],
            port=port,
            has_launcher_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    @property
    def holds_store(self) -> bool:
        """Whether this process holds the store."""
        return self.rank == 0 and not self.has_launcher_store


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text:
        raise SettingError(f"{name} is not set; {_ADVICE}")
    if not text.isdecimal():
        raise SettingError(f"{name}={text}: must be a whole number; {_ADVICE}")
    return int(text)


def open_store(place: Place, wait_s: float, *, again: bool = False) -> Store:
    """Connect to the store; rank 0 makes it where the launcher does not hold it.

    Args:
        place: where it is.
        wait_s: how long to try.
        again: whether this is one more connection of a process that has one.

    Raises:
        SettingError: the port is in use.
        RankError: nothing answers there, or something else listens.
    """
    accepted_s: list[float] = [] if place.holds_store or not again else [time.monotonic()]
    said = "no answer"

    def connect() -> Store:
        nonlocal said
        while not accepted_s and not place.holds_store and time.monotonic() < end:
            try:
                socket.create_connection((place.host, place.port), timeout=wait_s).close()
                accepted_s.append(time.monotonic())
            except OSError as error:  # rank 0 may be late
                said = str(error)
                time.sleep(_POLL_S)
        return TCPStore(
            place.host,
            place.port,
            is_master=place.holds_store and not again,
            timeout=timedelta(seconds=2 * wait_s),  # it would try again, and print every try
            wait_for_workers=False,
        )

    where = f"{place.host}:{place.port}"
    end = time.monotonic() + wait_s

    def check() -> None:
        if time.monotonic() > end:
            raise _unreached(place, wait_s, said)
        if accepted_s and time.monotonic() > accepted_s[0] + _ANSWER_S:
            raise RankError(
                f"rank {place.rank}: what listens at {where} is no store of ranks, or does not answer: see the output "
                "of rank 0, or choose another port: torchrun --master-port, or MASTER_PORT",
                rank=0,
            )

    try:
        return in_thread(connect, check)
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise SettingError(
                f"port {place.port} of this machine is in use; choose another: torchrun --master-port, or MASTER_PORT"
            ) from error
        if place.holds_store:
            raise SettingError(f"cannot listen at MASTER_ADDR {where}: {one_line(str(error), most=200)}") from error
        raise _unreached(place, wait_s, one_line(str(error), most=200)) from error


def _unreached(place: Place, wait_s: float, said: str) -> RankError:
    return RankError(
        f"rank {place.rank} did not reach the store at {place.host}:{place.port} within {wait_s:g} s ({said}): check "
        " that rank 0 was started, and MASTER_ADDR and MASTER_PORT",
        rank=0,
    )


def meet(place: Place, store: Store, wait_s: float) -> tuple[str, tuple[str, ...]]:
    """Wait until all ranks are there. See [Note: restarts].

    Returns:
        A prefix for keys of these ranks alone; their names, as errors say them.

    Raises:
        RankError: some did not come in time.
        SettingError: they have different versions.
    """
    nonce = uuid.uuid4().hex
    own = {"nonce": nonce, "host": socket.gethostname(), "pid": os.getpid(), "versions": VERSIONS}
    try:
        all_ranks = (_call if place.rank == 0 else _answer)(place, store, own, wait_s)
    except RuntimeError as error:
        raise RankError(f"the store ended while ranks met; see the output of rank 0 ({error})", rank=0) from error
    refuse_other_versions(all_ranks)
    names = [f"rank {rank} ({one['host']}, pid {one['pid']})" for rank, one in enumerate(all_ranks)]
    return f"l2l_nas/{all_ranks[0]['nonce']}", tuple(names)


def refuse_other_versions(all_ranks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks of which one has another version of a package. Raises SettingError."""
    for rank, one in enumerate(all_ranks):
        for package, version in all_ranks[0]["versions"].items():
            if (other := one["versions"].get(package)) != version:
                raise SettingError(
                    f"rank {rank} ({one['host']}) has {package} {other}, and rank 0 {version}: install the same "
                    "everywhere"
                )


def _call(place: Place, store: Store, own: dict[str, Any], wait_s: float) -> list[dict[str, Any]]:
    """As rank 0: wait for the answers of all others, and tell each of them that it was counted."""
    others = [f"l2l_nas/here/{rank}" for rank in range(1, place.size)]
    for key in others:
        store.delete_key(key)  # of a process before a restart
    if not _within(wait_s, lambda: not others or store.check(others)):
        missing = [rank for rank, key in enumerate(others, 1) if not store.check([key])]
        raise RankError(
            f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {place.size} did not come within "
            f"{wait_s:g} s: see their output",
            rank=missing[0],
        )
    all_ranks = [own, *(json.loads(store.get(key)) for key in others)]
    for rank in range(place.size):
        store.set(f"l2l_nas/{own['nonce']}/beat/{rank}", Beat().written())
    for one in all_ranks[1:]:
        store.set(f"l2l_nas/counted/{one['nonce']}", json.dumps(all_ranks))
    return all_ranks


def _answer(place: Place, store: Store, own: dict[str, Any], wait_s: float) -> list[dict[str, Any]]:
    """As any other rank: answer until rank 0 has counted this process."""
    counted = f"l2l_nas/counted/{own['nonce']}"

    def is_counted() -> bool:
        store.set(f"l2l_nas/here/{place.rank}", json.dumps(own))
        return store.check([counted])

    if not _within(wait_s, is_counted):
        raise RankError(f"rank 0 of {place.size} did not begin within {wait_s:g} s: see its output", rank=0)
    all_ranks: list[dict[str, Any]] = json.loads(store.get(counted))
    return all_ranks


def _within(wait_s: float, is_done: Callable[[], bool]) -> bool:
    end = time.monotonic() + wait_s
    while not is_done():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True
