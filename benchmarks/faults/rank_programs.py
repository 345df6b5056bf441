"""What two ranks do in one process each, again and again, while they count what they hold; see `ranks.py`.

All layers of the pool cost the same, so that another architecture at every step is as much work as one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from l2l_nas import AdamW, Candidate, Classification, Clip, LayerPool, Position, Relay, TensorSpec
from l2l_nas.eps.exchange import Exchanged
from l2l_nas.eps.sharded import server_of
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import World, WorldConfig
from tests.relay.exchanges import ExchangeChecker
from tests.relay.stress import ORDERS, Stress, StressedRelay

WIDTH, DEPTH, BATCH, MICRO_BATCH = 160, 7, 8, 2
_ACTS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "identity": nn.Identity}
_ROUND = 20  # steps of one side, before those of the other
_WARM_UP = 200  # steps that build every template and state


def pool() -> LayerPool:
    """Of 3 ** DEPTH architectures; its states are large enough to be cut."""

    def layer(act: type[nn.Module]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), act())

    middle = [Candidate(name, layer(act)) for name, act in _ACTS.items()]
    head = Position("head", Candidate("head", lambda: nn.Linear(WIDTH, 2)))
    return LayerPool([*(Position(f"layer{n}", middle) for n in range(DEPTH)), head], inputs=TensorSpec((WIDTH,)))


def _batch(step: int) -> tuple[tuple[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(BATCH, WIDTH, generator=generator),), torch.randint(0, 2, (BATCH,), generator=generator)


class Steps:
    """Training steps of a relay, each of the architecture that is asked for."""

    def __init__(self, relay: Relay, layers: LayerPool) -> None:
        self.relay, self._pool, self._step = relay, layers, 0

    def train(self, choices: list[str]) -> None:
        """One step."""
        inputs, targets = _batch(self._step)
        self.relay.train_step(
            self._pool.architecture(choices), inputs, targets, objective=Classification(), micro_batch=MICRO_BATCH,
            lr=0.001, step=self._step,
        )  # fmt: skip
        self._step += 1


def _draw(generator: random.Random) -> list[str]:
    return [*(generator.choice(list(_ACTS)) for _ in range(DEPTH)), "head"]


def held(relay: Relay) -> dict[str, int]:
    """What this process holds."""
    status = Path("/proc/self/status").read_text()
    return {
        "device_bytes": relay.device_bytes,
        "host_bytes": relay.server.num_bytes,
        "rss_bytes": 1024 * int(status.partition("VmRSS:")[2].split()[0]),
        "groups": len(distributed.distributed_c10d._world.pg_map),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def architectures(world: World, out: Path, count: int, seed: int) -> None:
    """So many architectures, another one at each step; in turns with steps of one."""
    layers, generator = pool(), random.Random(seed)
    relay = Relay(server_of(layers, world.exchange, optimizer=AdamW(), seed=0), device="cpu", chunks=world.size)
    steps = Steps(relay, layers)
    fixed = _draw(generator)
    for number in range(_WARM_UP):
        steps.train(_draw(generator) if number % 2 else fixed)
    relay.drain()
    seen: set[tuple[str, ...]] = set()
    rows, seconds = [held(relay)], []
    while len(seen) < count:
        pair = {}
        for side in random.Random(len(seen)).sample(["changing", "fixed"], 2):
            chosen: list[list[str]] = []
            while side == "changing" and len(chosen) < _ROUND:
                one = _draw(generator)
                if tuple(one) not in seen:
                    seen.add(tuple(one))
                    chosen.append(one)
            begun = time.perf_counter(), time.process_time()
            for one in chosen or [fixed] * _ROUND:
                steps.train(one)
            relay.drain()
            pair[side] = time.perf_counter() - begun[0], time.process_time() - begun[1]
        seconds.append(pair)
        if len(seen) % 100 == 0:
            rows.append(held(relay))
    relay.close()
    content = {"architectures": len(seen), "held": rows, "seconds": seconds}
    (out / f"architectures{world.rank}.json").write_text(json.dumps(content))


def orders(world: World, out: Path, count: int, seed: int) -> None:
    """Random paths under random delays, with other free memory on each rank; what was exchanged, in which order."""
    layers, alike, own = pool(), random.Random(seed), random.Random(f"{seed} {world.rank}")
    digests: dict[str, Any] = {}
    done = exchanges = 0
    keeps: list[int] = []
    while done < count:
        update = alike.choice(ORDERS)
        relay = StressedRelay(
            server_of(layers, world.exchange, optimizer=AdamW(), seed=0), device="cpu", chunks=world.size,
            update=update, clip=None if update == "eager" else Clip(0.5), slots=alike.randint(2, 4),
            stash=alike.choice(["device", "host"]), device_budget="auto", lanes="threads",
            stress=Stress(own.randrange(1 << 30), longest_delay_s=0.002),
        )  # fmt: skip
        free = int((1 << 18) * 2 ** own.uniform(0, 6))  # bytes: from the least that is possible to more than all
        relay.device.free_bytes = lambda free=free: free  # type: ignore[method-assign, misc]
        steps = Steps(relay, layers)

        def note(one: Exchanged) -> None:
            digest = digests.setdefault(one.channel.value, hashlib.sha256())
            digest.update(f"{one.of} {one.num_bytes};".encode())

        steps.train(_draw(alike))  # ranks agree on what stays on the device, which is of no plan
        relay.drain()
        relay.server.exchange.observers.append(note)  # type: ignore[attr-defined]
        with ExchangeChecker(relay) as checker:
            for _ in range(min(20, count - done)):
                steps.train(_draw(alike))
                done += 1
        checker.check()
        exchanges += len(checker._seen)
        keeps.append(relay.memory_plan((MICRO_BATCH,)).keep)
        relay.close()
    content = {
        "paths": done,
        "exchanges": exchanges,
        "keeps": keeps,
        "digests": {name: digest.hexdigest() for name, digest in sorted(digests.items())},
    }
    (out / f"orders{world.rank}.json").write_text(json.dumps(content))


PROGRAMS = {one.__name__: one for one in (architectures, orders)}


def run(name: str, out: Path, count: int, seed: int) -> None:
    """As a rank, by the environment."""
    torch.set_num_threads(1)
    config = WorldConfig(has_checks=name == "orders", patience_s=60)
    run_ranked(lambda world: PROGRAMS[name](world, out, count, seed), config)
