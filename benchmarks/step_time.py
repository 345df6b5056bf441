"""Time of a training step: the relay over plain PyTorch with every layer resident and activation checkpointing.

    python benchmarks/step_time.py [--depth 12] [--rounds 20]

Embedding, transformer blocks (hidden 256, 4 heads, feed-forward 1024, sequence 128), head; a mini-batch of 32 in 8
micro-batches, AdamW, fp32. Both sides do the same arithmetic and their losses are checked to be equal, bit for bit. The
control is the resident side against itself.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from common import interleave, ratio, save
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, Resident, TensorSpec
from l2l_nas.layers import EncoderBlock, TokenEmbedding

VOCABULARY, HIDDEN, SEQUENCE, BATCH, MICRO_BATCH = 1000, 256, 128, 32, 4


class TokenLoss:
    """Cross entropy of every token."""

    def loss(self, outputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> torch.Tensor:
        """Summed."""
        return nn.functional.cross_entropy(outputs[0].flatten(0, 1), targets.flatten(), reduction="sum")

    def count(self, targets: torch.Tensor) -> int:
        """Tokens."""
        return targets.numel()


def build_pool(depth: int) -> LayerPool:
    """One candidate a position: the schedule is compared, not the search."""
    block = Candidate("block", partial(EncoderBlock, HIDDEN, heads=4, feedforward=1024))
    embedding = Candidate("tokens", partial(TokenEmbedding, VOCABULARY, HIDDEN, sequence=SEQUENCE))
    return LayerPool(
        [
            Position("embedding", [embedding]),
            *(Position(f"block_{index:02d}", [block]) for index in range(depth)),
            Position("head", [Candidate("linear", partial(nn.Linear, HIDDEN, VOCABULARY))]),
        ],
        inputs=TensorSpec((SEQUENCE,), torch.int64),
    )


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    pool = build_pool(arguments.depth)
    path = pool.architecture(position.candidates[0].name for position in pool.positions)

    def server() -> ParamServer:
        return ParamServer(pool, optimizer=AdamW(), seed=0)

    executors = {
        "relay": Relay(server(), device="cpu"),
        "checkpointed": Resident(server(), device="cpu", checkpointing=True),
        "checkpointed_again": Resident(server(), device="cpu", checkpointing=True),
        "plain": Resident(server(), device="cpu"),
    }
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator)
    losses: dict[str, list[float]] = {name: [] for name in executors}

    def step(name: str, number: int) -> None:
        result = executors[name].train_step(
            path, (tokens,), tokens, objective=TokenLoss(), micro_batch=MICRO_BATCH, lr=1e-4, step=number
        )
        losses[name].append(result.loss)

    seconds = interleave({name: partial(step, name) for name in executors}, rounds=arguments.rounds)
    assert losses["relay"] == losses["checkpointed"] == losses["plain"], "the sides do not compute the same"
    save(
        f"step_time_{arguments.depth}_threads_{torch.get_num_threads()}",
        {
            "depth": arguments.depth,
            "losses_equal": True,
            "median_seconds": {name: round(sorted(values)[len(values) // 2], 4) for name, values in seconds.items()},
            "relay_over_checkpointed": ratio(seconds["relay"], seconds["checkpointed"]),
            "control": ratio(seconds["checkpointed_again"], seconds["checkpointed"]),
            "plain_over_checkpointed": ratio(seconds["plain"], seconds["checkpointed"]),
        },
    )


if __name__ == "__main__":
    main()
