"""Executors of real processes on a tiny problem, with layers that kill or fail the worker that runs them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.identity import fingerprint
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.engines import Processes
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.futures import FuturesExecutor
from l2l_nas.nas.evaluation.remote import Message, Workplace
from l2l_nas.nas.evaluation.segment import Segment, SegmentResult
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


def evaluator_on(server: ParamServer, spend: Budget) -> Evaluator:
    relay = Relay(server)
    split = data()
    trainer = Trainer(relay, Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    return Evaluator(relay, trainer, validation=split.validation, test=split.test, budget=spend)


@dataclass(frozen=True)
class TinyRecipe:
    """The tiny problem in a worker."""

    flag: Path
    spend: Budget

    def build(self) -> Workplace:
        global IN_WORKER, FLAG
        torch.set_num_threads(1)
        IN_WORKER, FLAG = True, self.flag
        server = ParamServer(pool(), optimizer=AdamW(), seed=0)
        return Workplace(evaluator_on(server, self.spend), server, {"pool": fingerprint(server.pool)})


@dataclass
class Watcher:
    """Remembers what was lost, and may stop the search at a poll."""

    stop_when: Callable[[], bool] = lambda: False
    losses: list[dict[str, Any]] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)

    def poll(self) -> None:
        if self.stop_when():
            raise InterruptedError

    def waiting(self, text: str) -> None:
        self.waited.append(text)

    def lost(self, **about: Any) -> None:
        self.losses.append(about)


@dataclass
class Place:
    """Workers, the weights that trials begin with, and an evaluator in this process on the same weights."""

    executor: FuturesExecutor
    server: ParamServer
    spend: Budget
    watch: Watcher

    def __post_init__(self) -> None:
        self.pool = self.server.pool
        self.evaluator = evaluator_on(self.server, self.spend)

    def trial(self, *names: str, ordinal: int = 0) -> Segment:
        architecture = self.pool.architecture(["linear", *names, "linear"])
        return self.spend.trial_segment(architecture, ordinal)

    def finalist(self, index: int, *names: str) -> Segment:
        architecture = self.pool.architecture(["linear", *names, "linear"])
        return self.spend.finalist_segment(architecture, index, spend=self.spend.rounds[0])


def all_done(executor: FuturesExecutor) -> list[tuple[Segment, SegmentResult]]:
    found: list[tuple[Segment, SegmentResult]] = []
    while done := executor.finished():
        found += done
    return found


@contextlib.contextmanager
def place_of(
    flag: Path, *, workers: int = 2, identity: Message | None = None, engine: Any = Processes, **changes: Any
) -> Iterator[Place]:
    spend = budget(**{"trial_weights": "fork", **changes})
    server = ParamServer(pool(), optimizer=AdamW(), seed=0)
    recipe = cloudpickle.dumps(TinyRecipe(flag, spend))
    watch = Watcher()
    executor = FuturesExecutor(
        partial(engine, recipe, workers),
        server,
        workers=workers,
        size=workers,
        identity=identity or {"pool": fingerprint(server.pool)},
    )
    executor.poll, executor.waiting, executor.lost = watch.poll, watch.waiting, watch.lost
    try:
        yield Place(executor, server, spend, watch)
    finally:
        executor.close()
