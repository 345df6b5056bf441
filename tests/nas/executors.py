"""A executor of real processes on a tiny problem, with layers that kill or fail the worker that runs them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.shared_storage import Place, SharedStorage
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator, Job
from l2l_nas.nas.evaluation.process_executor import ProcessExecutor
from l2l_nas.nas.evaluation.worker import Inbox, Worker
from l2l_nas.nas.evaluation.worker_pool import WorkerPool
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.task import Classification
from tests.nas.problems import Act, Normed, Poison, budget, data

IN_WORKER = False
FLAG = Path()
WIDTH = 4


class Deadly(nn.Linear):
    """Kills the worker that runs it; the fragile kind once only."""

    def __init__(self, *, once: bool) -> None:
        super().__init__(WIDTH, WIDTH)
        self.once = once

    def forward(self, x: Tensor) -> Tensor:
        if IN_WORKER and not x.is_meta and not (self.once and FLAG.exists()):
            FLAG.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


class Raising(nn.Linear):
    def __init__(self, error: type[Exception]) -> None:
        super().__init__(WIDTH, WIDTH)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if IN_WORKER and not x.is_meta:
            raise self.error("broken in two")
        return super().forward(x)


def pool() -> LayerPool:
    kinds = {
        "tanh": partial(Act, WIDTH, nn.Tanh),
        "relu": partial(Act, WIDTH, nn.ReLU),
        "normed": partial(Normed, WIDTH),
        "poison": partial(Poison, WIDTH, WIDTH),
        "deadly": partial(Deadly, once=False),
        "fragile": partial(Deadly, once=True),
        "refused": partial(Raising, SettingError),
        "broken": partial(Raising, RuntimeError),
    }
    middle = [Candidate(name, factory) for name, factory in kinds.items()]
    ends = partial(nn.Linear, 2, WIDTH), partial(nn.Linear, WIDTH, 2)
    return LayerPool(
        [
            Position("stem", Candidate("linear", ends[0])),
            Position("p0", middle),
            Position("p1", middle),
            Position("head", Candidate("linear", ends[1])),
        ],
        inputs=TensorSpec((2,)),
    )


def parts(server: ParamServer, spend: Budget) -> tuple[Relay, Trainer, Evaluator]:
    relay = Relay(server)
    split = data()
    trainer = Trainer(relay, Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    return relay, trainer, Evaluator(relay, trainer, validation=split.validation, test=split.test, budget=spend)


def main(handle: int) -> None:
    """What a worker runs."""
    global IN_WORKER, FLAG
    torch.set_num_threads(1)
    inbox = Inbox(handle)
    hello = inbox.next()
    IN_WORKER, FLAG = True, Path(hello["flag"])
    storage = SharedStorage(pool(), optimizer=AdamW(), place=Place(**hello["place"]))
    server = ParamServer(pool(), optimizer=AdamW(), seed=0, storage=storage)
    relay, _, evaluator = parts(server, budget(**hello["budget"]))
    inbox.answer({"event": "ready", "pool": fingerprint(server.pool)})
    Worker(inbox, evaluator, relay).serve()


class Watcher:
    """Remembers who was lost, and may stop the search at a poll."""

    def __init__(self, stop_when=lambda: False) -> None:
        self.losses: list[dict[str, Any]] = []
        self.stop_when = stop_when

    def poll(self) -> None:
        if self.stop_when():
            raise InterruptedError

    def lost(self, worker: int, **about: Any) -> None:
        self.losses.append({"worker": worker, **about})


class Hall:
    """Workers, the weights that they share, and an evaluator in this process on the same weights."""

    def __init__(self, workers: WorkerPool, server: ParamServer, spend: Budget, recovered: list[int]) -> None:
        self.workers, self.server, self.spend, self.recovered = workers, server, spend, recovered
        self.pool = server.pool
        self.identity = {"pool": fingerprint(server.pool)}
        self.relay, self.trainer, self.evaluator = parts(server, spend)

    def executor(self, watch: Watcher | None = None, **identity: str) -> ProcessExecutor:
        about = {**self.identity, **identity}
        return ProcessExecutor(self.workers, self.server, budget=self.spend, watch=watch or Watcher(), identity=about)

    def job(self, *names: str, ordinal: int = 0) -> Job:
        return Job(None, self.pool.architecture(["linear", *names, "linear"]), ordinal)  # type: ignore[arg-type]

    def visits(self, key: str) -> int:
        return self.server.state(key).visits


@contextlib.contextmanager
def hall(flag: Path, *, size: int = 2, **changes: Any) -> Iterator[Hall]:
    space = pool()
    storage = SharedStorage(space, optimizer=AdamW(), workers=size + 1)
    server = ParamServer(space, optimizer=AdamW(), seed=0, storage=storage)

    def hello(worker: int, process: int) -> dict[str, Any]:
        place = dataclasses.asdict(storage.place(worker, process))
        return {"op": "hello", "place": place, "budget": changes, "flag": str(flag)}

    recovered: list[int] = []
    handles = (storage.place(0, 0).handle,)
    with WorkerPool(
        "tests.nas.executors", size=size, hello=hello, handles=handles, recover=recovered.append
    ) as workers:
        yield Hall(workers, server, budget(**changes), recovered)
    storage.close()
