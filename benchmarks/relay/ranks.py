"""Ranks on this machine that live as long as a measurement: each builds ways to train, and times their steps."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import socket
import time
import warnings
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from benchmarks.relay.work import StackSizes
from l2l_nas.errors import L2LError, described, one_line

_CONTEXT = multiprocessing.get_context("forkserver")  # whose processes have torch imported already
_CONTEXT.set_forkserver_preload(["benchmarks.relay.ways"])
WARM_UP = 2  # steps
Answer = dict[str, Any]


class Ranks:
    """Processes that share steps, each with one thread of torch. They do what they are asked, all at the same time.

    Args:
        size: how many there are; one is a process without a world.
        work, is_recomputed: see `benchmarks.relay.ways.Rank`.
    """

    def __init__(self, size: int, work: StackSizes, *, is_recomputed: bool) -> None:
        world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        self._processes, self._pipes = [], []
        for rank in range(size):
            own, theirs = _CONTEXT.Pipe()
            variables = world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}
            process = _CONTEXT.Process(target=_begin, args=(variables, theirs, work, is_recomputed))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(own)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pipe in self._pipes:
            pipe.close()  # they end
        for process in self._processes:
            process.join(30 if error is None else 5)
            process.kill()
            process.join()

    def ask(self, what: str, *words: object) -> list[Answer]:
        """What each of them answers.

        Raises:
            L2LError: one ended; it has said why.
        """
        try:
            for pipe in self._pipes:
                pipe.send((what, *words))
            return [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError):
            raise L2LError(f"a rank ended while it was asked to {what} {' '.join(map(str, words))}") from None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _begin(variables: dict[str, str], pipe: Connection, work: StackSizes, is_recomputed: bool) -> None:
    import torch

    from l2l_nas.eps.exchange import Alone

    os.environ.update(variables)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, on its own ways
    if not variables:
        with contextlib.suppress(KeyboardInterrupt):  # ranks say that they were stopped
            _serve(pipe, Alone(), work, is_recomputed)
        return
    from l2l_nas.parallel.entry import run_ranked

    run_ranked(lambda world: _serve(pipe, world.exchange, work, is_recomputed))


def _serve(pipe: Connection, exchange: Any, work: StackSizes, is_recomputed: bool) -> None:
    from benchmarks.relay.ways import Rank

    worker = _Worker(Rank(exchange, work, is_recomputed))
    while True:
        try:
            what, *words = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(worker, what)(*words))


class _Worker:
    """Ways by label, and how many steps each has done."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank
        self._ways: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def open(self, label: str, name: str) -> Answer:
        """Build a way, and have it do its first steps. What torch does not do here is said."""
        from benchmarks.relay.ways import WAYS

        try:
            self._ways[label], self._steps[label] = WAYS[name](self._rank), 0
            return {"losses": [self._step(label) for _ in range(WARM_UP)]}
        except (NotImplementedError, RuntimeError, ValueError) as error:
            return {"left_out": one_line(described(error), most=200)}

    def train(self, label: str, steps: int) -> Answer:
        """Train with all ranks; seconds, of the processor and of the clock, and what was counted."""
        from l2l_nas.eps.exchange import wait_for_all

        self._ways[label].facts()
        gc.collect()
        gc.disable()
        wait_for_all(self._rank.exchange)
        cpu, wall = time.process_time(), time.perf_counter()
        losses = [self._step(label) for _ in range(steps)]
        found = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "losses": losses}
        gc.enable()
        return found | {"facts": self._ways[label].facts()}

    def _step(self, label: str) -> float:
        self._steps[label] += 1
        return float(self._ways[label].step(self._steps[label]))
