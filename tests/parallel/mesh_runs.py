"""Trainings of a pool on a mesh of ranks, or in one process, for `tests/parallel/test_mesh.py`."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch

from l2l_nas import AdamW, Clip, ParamServer, Relay
from l2l_nas.eps import cut
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.eps.state import Part
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.relay.visits import Visits
from l2l_nas.training.split_tokens import SplitTokens
from l2l_nas.training.task import Tokens
from tests.parallel.test_split_pool import space
from tests.relay.stress import AHEAD

TOKENS, LENGTH, BATCH, MICRO_BATCH = 29, 8, 8, 2
ORDERS = {"eager": "eager", "exact": "exact", "ahead": AHEAD}
# by name, what differs from the arguments of `trained`
CASES = {
    "clipped": {"steps": 50},
    "by layer": {"update": "eager", "scope": "layer"},
    "ahead": {"update": "ahead", "clip": 1.4, "lanes": "threads"},
    "kept": {"keep": 9, "gathers": False},
    "overflowing": {"precision": "fp16", "update": "ahead", "loss_scale": 2.0**20},
    "fp16": {"precision": "fp16", "loss_scale": 64.0},
    "bf16": {"precision": "bf16"},
}


class Counting:
    """Counts the sums over ranks that share a layer, by layer and phase of the step."""

    def __init__(self, reducer):
        self._reducer = reducer
        self.rank, self.size = reducer.rank, reducer.size
        self.counts, self._place, self._phase = Counter(), "", "forward"
        through, backward = Visits._through, Visits.backward

        def noted(visits, job, place, *rest):
            self._place = job.layers[place].key
            return through(visits, job, place, *rest)

        def again(visits, *rest):
            self._phase = "again"
            backward(visits, *rest)
            self._phase = "forward"

        Visits._through, Visits.backward = noted, again

    def sum(self, tensor):
        is_back = torch._C._current_graph_task_id() != -1
        self.counts[self._place, "back" if is_back else self._phase] += 1
        self._reducer.sum(tensor)

    def maximum(self, tensor):
        self._reducer.maximum(tensor)


def architectures_of(pool, steps):
    chooser = random.Random(2)
    names = [[candidate.name for candidate in position.candidates] for position in pool.positions]
    return [pool.architecture([chooser.choice(one) for one in names]) for _ in range(steps)]


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randint(0, TOKENS, (BATCH, LENGTH), generator=generator)
    return (inputs,), torch.randint(-1, TOKENS, (BATCH, LENGTH), generator=generator)


def trained(
    grid=None, *, first=0, steps=8, update="exact", clip=0.5, scope="global", precision="fp32", chunks=None, keep=1,
    gathers=True, lanes="inline", lr=1e-3, folder=None, loss_scale=None
):  # fmt: skip
    """Losses, norms, and all tensors of whole states; of a rank also those that all ranks of its layers have.

    Args:
        grid: the mesh; None: one process.
        first: step to go on from, with the weights in `folder`.
    """
    cut.SMALL_BYTES = 0
    whole, task = space("gpt2"), Tokens()
    options = {"optimizer": AdamW(weight_decay=0.1), "seed": 5}
    if grid is None:
        server = ParamServer(whole, **options)
    else:
        split = SplitPool(whole, grid.ranks, gather_logits=gathers)
        server = ShardedServer(split, grid.mesh, **options)
        task = task if gathers else SplitTokens(grid.ranks, TOKENS)
        grid.ranks.reducer.counts.clear()
    relay = Relay(
        server, device="cpu", seed=3, update=ORDERS[update], clip=Clip(clip, scope) if clip else None, keep=keep,
        precision=precision, chunks=chunks, lanes=lanes, resident=None,
    )  # fmt: skip
    if loss_scale is not None:
        server.gradients.loss_scale.scale = loss_scale
    checkpoint = None if folder is None else Checkpoint(Path(folder))
    if first:
        assert checkpoint.load(server) == {"step": first}
    architectures, results = architectures_of(whole, first + steps), []
    for step in range(first, first + steps):
        x, y = batch_of(step)
        one = relay.train_step(architectures[step], x, y, objective=task, micro_batch=MICRO_BATCH, lr=lr, step=step)
        results.append([one.loss, one.gradient_norm or 0.0, one.is_skipped])
    found = {"results": results, "put_back": relay.put_back, "bytes": relay.bank.weights_bytes}
    relay.drain()
    if checkpoint is not None:
        checkpoint.save(server, extra={"step": first + steps})
    keys = sorted(server.visited)
    if grid is not None:
        found["counts"] = {" ".join(key): count for key, count in grid.ranks.reducer.counts.items()}
        found["alike"] = {}
        for key in keys:
            with server.storage.reading(key, Part.ALL) as state:
                named = {n: t for n, t in state.tensors().items() if split.is_whole(key, n.partition(".")[2])}
            found["alike"] |= {f"{key}/{name}": tensor.clone() for name, tensor in named.items()}
    found["whole"] = {f"{key}/{n}": t.clone() for key in keys for n, t in server.state(key).tensors().items()}
    relay.close()
    return found


def on_mesh(world, folder, tensor, *names):
    """In each rank: train the cases, and write what came of them to `folder`."""
    grid = world.mesh(tensor=int(tensor))
    grid.ranks._reducer = Counting(grid.ranks.reducer)
    torch.save({name: trained(grid, **CASES[name]) for name in names}, Path(folder) / f"{world.rank}.pt")


def go_on(world, folder, tensor, first, steps):
    """In each rank: train on from a save, and save."""
    grid = world.mesh(tensor=int(tensor))
    grid.ranks._reducer = Counting(grid.ranks.reducer)
    found = trained(grid, first=int(first), steps=int(steps), folder=folder)
    torch.save(found["results"], Path(folder).parent / f"{world.rank}.pt")
