"""Ranks of which the last one does something else: each word of the command line is one such thing.

python -m tests.parallel.differing WHAT
"""

from __future__ import annotations

import sys

import torch

from l2l_nas import AdamW, Relay
from l2l_nas.eps.sharded import server_of
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import World, WorldConfig
from tests.parallel.same_bits import BATCH, language, mini_batch
from tests.toys import NextToken


def main(world: World) -> None:
    is_other = world.rank == world.size - 1
    what = sys.argv[1] if is_other else ""
    torch.set_num_threads(1)
    pool = language()
    server = server_of(pool, world.exchange, optimizer=AdamW(), seed=5 + (what == "seed"))
    options = {"precision": {"precision": "bf16"}, "slots": {"slots": 4}, "chunks": {"chunks": 4}}.get(what, {})
    relay = Relay(server, device="cpu", seed=3, **options)
    middle = "thin" if what == "path" else "wide"
    architecture = pool.architecture(["embed", middle, "wide", "skip", "head"])
    inputs, targets = mini_batch(pool, 1 if what == "batch" else 0)
    for step in range(2):
        relay.train_step(
            architecture, inputs, targets, objective=NextToken(), micro_batch=2,
            lr=0.02 if what == "rate" else 0.01, step=step,
        )  # fmt: skip
    assert len(targets) == BATCH
    print("trained")


if __name__ == "__main__":
    run_ranked(main, WorldConfig(patience_s=20))
