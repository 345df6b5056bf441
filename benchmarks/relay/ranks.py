"""Ranks on this machine that live as long as a measurement: each builds ways to train one stack, and times their steps.

All ways compute the same step, from the stack's own first weights, with AdamW; layers but the last are computed again
in the backward. A step returns a rank's share of the loss: the sum over ranks is the loss of the mini-batch.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.relay.others import Recomputed, adamw, shard, token_loss
from benchmarks.relay.peers import ExecutorRunner
from benchmarks.relay.work import StackSizes
from benchmarks.timing import free_port
from l2l_nas.eps.agreement import wait_for_all
from l2l_nas.eps.exchange import Alone, Exchange
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.sharded import server_of
from l2l_nas.errors import L2LError
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.relay.relay import Relay

CHUNKS, WARM_UP = 4, 2
_CONTEXT = multiprocessing.get_context("forkserver")  # whose processes have torch imported already
_CONTEXT.set_forkserver_preload(["benchmarks.relay.ranks"])
Step = Callable[[int], float]  # of its number, this rank's share of the loss before its update


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a step; torch's default group is of the same ranks as the exchange."""

    exchange: Exchange
    work: StackSizes

    @property
    def tokens(self) -> Tensor:
        """Its share of the mini-batch, [batch / ranks, sequence]."""
        return self.work.tokens.chunk(self.exchange.size)[self.exchange.rank]

    def layers(self) -> list[nn.Module]:
        layers = self.work.modules()
        return [*map(Recomputed, layers[:-1]), layers[-1]]


def relay(rank: Rank, **settings: Any) -> Step:
    """The relay; of several ranks each has a part of every state."""
    server = server_of(rank.work.pool, rank.exchange, optimizer=AdamW(), seed=rank.work.seed)
    runner = ExecutorRunner(Relay(server, device="cpu", seed=rank.work.seed, **settings), rank.work)

    def step(number: int) -> float:
        loss = runner.step(number)
        runner.finish()
        return loss / rank.exchange.size

    return step


def _torch(
    rank: Rank, model: nn.Module, around: Callable[[bool], AbstractContextManager[object]], *, micro_batch: int = 0
) -> Step:
    """A plain module and AdamW; `around` makes what a micro-batch is computed within, told whether it is the last."""
    parts, count = rank.tokens.split(micro_batch or rank.work.micro_batch), rank.work.tokens.numel()
    optimizer = adamw(model.parameters(), rank.work)

    def step(number: int) -> float:
        total = 0.0
        for index, tokens in enumerate(parts):
            with around(index == len(parts) - 1):
                loss = token_loss(model(tokens), tokens, count)
                (loss * rank.exchange.size).backward()  # gradients are averaged over ranks
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def plain(rank: Rank) -> Step:
    return _torch(rank, nn.Sequential(*rank.layers()), lambda is_last: contextlib.nullcontext())


def ddp(rank: Rank) -> Step:
    """`DistributedDataParallel`: all has whole weights and moments; one sum of gradients a step."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Sequential(*rank.layers()), gradient_as_bucket_view=True)
    return _torch(rank, model, lambda is_last: contextlib.nullcontext() if is_last else model.no_sync())


def fsdp2(rank: Rank, *, is_cut: bool = True) -> Step:
    """`fully_shard` of each layer, parameters on the host; gradients are summed once a step."""
    layers = rank.layers()
    model = shard(nn.Sequential(*layers), layers, rank.work.torch_device)

    def around(is_last: bool) -> AbstractContextManager[object]:
        model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return contextlib.nullcontext()

    return _torch(rank, model, around, micro_batch=0 if is_cut else rank.work.batch)


WAYS: Mapping[str, Callable[[Rank], Step]] = {
    "relay": relay,
    "relay_chunks": partial(relay, chunks=CHUNKS),
    "plain": plain,
    "ddp": ddp,
    "fsdp2_offload": fsdp2,
    "fsdp2_offload_whole": partial(fsdp2, is_cut=False),
}


class Ranks:
    """Processes that share steps, each with one thread of torch. They do what they are asked, all at the same time."""

    def __init__(self, size: int, work: StackSizes) -> None:
        world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._processes, self._pipes = [], []
        for rank in range(size):
            own, theirs = _CONTEXT.Pipe()
            variables = world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}
            process = _CONTEXT.Process(target=_begin, args=(variables, theirs, work))
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

    def ask(self, what: str, *words: object) -> list[Any]:
        """What each of them answers."""
        try:
            for pipe in self._pipes:
                pipe.send((what, *words))
            return [pipe.recv() for pipe in self._pipes]
        except (EOFError, OSError):
            raise L2LError(f"a rank ended while it was asked to {what} {' '.join(map(str, words))}") from None


def _begin(variables: dict[str, str], pipe: Connection, work: StackSizes) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, on its own ways
    if variables:
        run_ranked(lambda world: _serve(pipe, Rank(world.exchange, work)))
    else:
        with contextlib.suppress(KeyboardInterrupt):  # ranks say that they were stopped
            _serve(pipe, Rank(Alone(), work))


def _serve(pipe: Connection, rank: Rank) -> None:
    """Ways by label, and how many steps each has done: `open` builds one, `train` times a step of all ranks."""
    ways: dict[str, Step] = {}
    done: dict[str, int] = {}
    with contextlib.suppress(EOFError):
        while True:
            what, label, *words = pipe.recv()
            if what == "open":
                ways[label], done[label] = WAYS[words[0]](rank), WARM_UP
                pipe.send({"losses": [ways[label](number) for number in range(1, WARM_UP + 1)]})
                continue
            done[label] += 1
            gc.collect()
            wait_for_all(rank.exchange)
            begun = time.perf_counter()
            losses = [ways[label](done[label])]
            pipe.send({"losses": losses, "wall": time.perf_counter() - begun})
