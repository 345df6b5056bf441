"""One rank of several: what it exchanged and holds, beside what was predicted of it without any other rank.

    python -m tests.parallel.predicted FOLDER

The pools are those of `same_bits.py`; each trains one architecture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from l2l_nas import AdamW, Clip, Relay
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.ranks import summed_bytes
from l2l_nas.cost.split_layers import PaperSplit
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps import cut
from l2l_nas.eps.exchange import Alone, Exchange, Mesh, ObservedExchange, PaperRanks
from l2l_nas.eps.sharded import ShardedServer, server_of
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.parallel.world import World, WorldConfig
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.mini_batch import StepShare
from tests.cost.test_split_layers import pool as feedforward_pool
from tests.parallel.same_bits import CHUNKS, language
from tests.relay.stress import CHECKED
from tests.toys import BothHeads, NextToken, SquaredError, dense_pool, random_data

BATCH, MICRO_BATCH, STEPS = 8, 1, 4
CASES = {
    "language": {},
    "checked": {"update": CHECKED, "clip": Clip(0.5)},
    "bf16": {"precision": "bf16"},
    "kept": {"slots": 4, "keep": 3, "stash": "host"},
    "buffers": {},  # of BatchNorm
}


def pool_of(name):
    return dense_pool(48) if name == "buffers" else language()


def path_of(name, pool):
    if name == "buffers":
        return pool.architecture(["normed", "dense", "frozen", "partial", "mlp"])
    return pool.architecture(["embed", "wide", "thin", "wide", "head"])


def relay_on(exchange: Exchange, name: str, **options) -> Relay:
    cut.SMALL_BYTES = 0 if name == "buffers" else 64 * 1024
    server = server_of(pool_of(name), exchange, optimizer=AdamW(), seed=5)
    return Relay(server, seed=3, chunks=CHUNKS, lanes="inline", **CASES[name], **options)


def predicted(exchange: PaperRanks, name: str) -> dict[str, int]:
    """By the simulator, without other ranks."""
    relay = relay_on(exchange, name, device=PaperDevice(1 << 34))
    sizes = StepShare.of(exchange, cut_sizes(BATCH, MICRO_BATCH), CHUNKS).most_sizes
    found = StepTime(relay, sizes, PROFILES["laptop"]).predict(path_of(name, relay.pool))
    return {"exchanged": found.exchanged_bytes, "host": found.host_bytes, "device": found.owned_bytes}


def counted(exchange: Exchange, name: str) -> dict[str, int]:
    """By the program, of the last step but one; the last one is followed by no other."""
    relay = relay_on(exchange, name, device="cpu")
    server, path, sizes = relay.server, path_of(name, relay.pool), []
    assert isinstance(server, ShardedServer)
    server.exchange.observers.append(lambda done: sizes.append(done.num_bytes))
    for step in range(STEPS):
        if step == STEPS - 1:
            sizes.clear()
        if name == "buffers":
            inputs, targets = random_data(relay.pool, BATCH, seed=step)
        else:
            inputs = (torch.randint(0, 61, (BATCH, 8), generator=torch.Generator().manual_seed(step)),)
            targets = inputs[0]
        own = relay.own_rows(BATCH, MICRO_BATCH)
        relay.train_step(
            path, (inputs[0][own],), targets[own], samples=range(BATCH),
            objective=BothHeads() if name == "buffers" else NextToken(), micro_batch=MICRO_BATCH,
            lr=1e-3, step=step, upcoming=path,
        )  # fmt: skip
    exchanged = sum(sizes)
    relay.drain()
    states = 0
    for key in server.visited:
        with server.storage.reading(key) as state:
            wire = 0 if state.wire is None else state.wire.numel()
            states += wire + sum(block.nbytes for block in (*state.updated_blocks, state.buffers))
    inbox = server.gradients
    rows = sum(one._memory.numel() for one in (server._gathered, inbox._received, inbox._sent))
    blocks = sum(block.memory.numel() for block in inbox._blocks)
    host = states + rows + blocks + relay.stash._host.numel()
    return {"exchanged": exchanged, "host": host, "device": relay.device_bytes}


class Counter:
    """What ranks that share layers sum, as a ring gives it to each of them."""

    def __init__(self, reducer):
        self._reducer, self.rank, self.size = reducer, reducer.rank, reducer.size
        self.sizes = []

    def sum(self, tensor):
        self.sizes.append(summed_bytes(tensor.nbytes, self.size))
        self._reducer.sum(tensor)

    def maximum(self, tensor):
        self._reducer.maximum(tensor)


def divided(world: World) -> dict[str, dict[str, float]]:
    """The same of layers that two ranks share."""
    whole, grid = feedforward_pool(), world.mesh(tensor=2)
    counter, tensor = Counter(grid.ranks.reducer), ObservedExchange.of(grid.mesh.tensor)
    grid.ranks._reducer = counter
    mesh = Mesh(grid.mesh.world, grid.mesh.data, tensor)
    options = {"slots": 2, "resident": None, "lanes": "inline"}
    server = ShardedServer(SplitPool(whole, grid.ranks), mesh, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu", **options)
    path = whole.architecture([position.candidates[0].name for position in whole.positions])
    observed = {id(one): one for one in (tensor, server.world)}
    for one in observed.values():
        one.observers.append(lambda done: counter.sizes.append(done.num_bytes))
    for step in range(3):
        counter.sizes.clear()
        x = torch.randn(4, *whole.inputs[0].shape, generator=torch.Generator().manual_seed(step))
        relay.train_step(
            path, (x,), x, objective=SquaredError(), micro_batch=2, lr=1e-3, step=step, upcoming=path
        )  # fmt: skip
    relay.drain()
    split = PaperSplit(whole, 2)
    alone = ShardedServer(
        split.pool, Mesh(PaperRanks(2), Alone(), PaperRanks(2, world.rank)), optimizer=AdamW(), seed=0
    )
    found = StepTime(
        Relay(alone, device=PaperDevice(1 << 34), **options), (2, 2), PROFILES["laptop"], divided=split
    ).predict(path)
    return {
        "counted": {"exchanged": sum(counter.sizes), "device": relay.device_bytes},
        "predicted": {"exchanged": found.exchanged_bytes, "device": found.owned_bytes},
    }


def main(world: World) -> None:
    torch.set_num_threads(1)
    exchange = world.exchange
    alone = PaperRanks(exchange.size, exchange.rank)
    found = {name: {"counted": counted(exchange, name), "predicted": predicted(alone, name)} for name in CASES}
    found["divided"] = divided(world)
    (Path(sys.argv[1]) / f"{exchange.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    run_ranked(main, WorldConfig(patience_s=60))
