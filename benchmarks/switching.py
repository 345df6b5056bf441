"""A thousand different architectures in a row: nothing is allocated, and a step costs what a fixed architecture costs.

    python benchmarks/switching.py [--steps 1000]

Eight positions of four equally costly candidates, so that architectures differ in their layers but not in their
arithmetic. The sides take turns step by step; ratios are formed over blocks of steps.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from common import ratio, save
from torch import nn

from l2l_nas import AdamW, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec, UniformPaths
from l2l_nas.space.architecture import Architecture

WIDTH, DEPTH, BATCH, MICRO_BATCH, BLOCK = 256, 8, 256, 64, 25


class Block(nn.Module):
    """A residual perceptron; `kind` makes candidates that differ without costing more."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, width], the same shape out."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def counted(relay: Relay) -> dict[str, int]:
    """All the device side owns."""
    return {
        "templates": relay.bank.num_templates,
        "slot_bytes": relay.bank.num_bytes,
        "tensors": len(relay.bank.tensors()),
        "stash_bytes": relay.stash.arena.numel(),
        "stash_address": relay.stash.arena.data_ptr(),
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    choices = [Candidate(f"kind{kind}", partial(Block, kind)) for kind in range(4)]
    pool = LayerPool(
        [
            *(Position(f"layer_{index}", choices) for index in range(DEPTH)),
            Position("head", [Candidate("linear", partial(nn.Linear, WIDTH, 10))]),
        ],
        inputs=TensorSpec((WIDTH,)),
    )
    relays = {
        name: Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
        for name in ("switching", "fixed", "same")
    }
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    y = torch.randint(10, (BATCH,), generator=generator)
    sampler = UniformPaths(pool, seed=0)
    paths: list[Architecture] = list(dict.fromkeys(sampler.path_at(step) for step in range(2 * steps)))[:steps]
    fixed = paths[0]

    def step(name: str, number: int) -> float:
        started = time.perf_counter()
        relays[name].train_step(
            paths[number] if name == "switching" else fixed,
            (x,),
            y,
            objective=Classification(),
            micro_batch=MICRO_BATCH,
            lr=1e-4,
            step=number,
        )
        return time.perf_counter() - started

    for key in pool.states:  # all layers exist before anything is timed
        for relay in relays.values():
            relay.server.state(key)
    for number in range(20):
        for name in relays:
            step(name, number)
    before = counted(relays["switching"])
    blocks: dict[str, list[float]] = {name: [] for name in relays}
    names = list(relays)
    for start in range(0, steps, BLOCK):
        taken = dict.fromkeys(names, 0.0)
        for number in range(start, min(start + BLOCK, steps)):
            for offset in range(len(names)):
                name = names[(number + offset) % len(names)]
                taken[name] += step(name, number)
        for name, seconds in taken.items():
            blocks[name].append(seconds)
    after = counted(relays["switching"])
    assert before == after, (before, after)
    save(
        "switching",
        {
            "architectures": len(set(paths)),
            "device_side_before": before,
            "device_side_after": after,
            "switching_over_fixed": ratio(blocks["switching"], blocks["fixed"]),
            "control": ratio(blocks["same"], blocks["fixed"]),
        },
    )


if __name__ == "__main__":
    main()
