"""Networks without some whole blocks, as ShortGPT drops them, or by the least loss of each alone, or by draws.

Whole blocks come to no exact share: as many go as are within it, so that these keep rather more than others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.pruners.llama import PlainBlock, PlainLlama, batched

_DRAWS = 20
_SCORED = 16  # sequences that networks are scored on


def shortgpt(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """ShortGPT (arXiv 2403.03853): blocks go whose influence is least.

    That is 1 - mean cosine of what goes into a block and what comes out, over all tokens.
    """
    states, influence = batched(network.embed, tokens), []
    for block in network.blocks:
        after = batched(block, states)
        influence.append(1 - float(functional.cosine_similarity(states, after, dim=-1).mean()))
        states = after
    gone = sorted(range(len(influence)), key=influence.__getitem__)
    return _without(network, gone[: num_gone(network, share)])


def least_effect(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """The blocks go whose loss, each dropped alone, is least."""
    blocks = network.blocks
    losses = [_loss(network, [*blocks[:place], *blocks[place + 1 :]], tokens) for place in range(len(blocks))]
    return _without(network, sorted(range(len(losses)), key=losses.__getitem__)[: num_gone(network, share)])


def random_blocks(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """Of random draws, that with the least loss."""
    generator, blocks, count = random.Random(0), network.blocks, num_gone(network, share)
    draws = {tuple(sorted(generator.sample(range(len(blocks)), count))) for _ in range(_DRAWS)}
    losses = {
        draw: _loss(network, [b for i, b in enumerate(blocks) if i not in draw], tokens) for draw in sorted(draws)
    }
    _, best = min((loss, draw) for draw, loss in losses.items())
    return _without(network, best)


def num_gone(network: PlainLlama, share: float) -> int:
    """The blocks within a share; all blocks have one size."""
    return int(share * len(network.blocks) + 1e-9)


def _loss(network: PlainLlama, blocks: Sequence[PlainBlock], tokens: Tensor) -> float:
    total = 0.0
    with torch.no_grad():
        for part in tokens[:_SCORED].split(4):
            states = network.embed(part)
            for block in blocks:
                states = block(states)
            logits = network.head(states)[:, :-1].flatten(0, 1)
            total += float(functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
    return total


def _without(network: PlainLlama, gone: Sequence[int]) -> PlainLlama:
    network.layers = nn.ModuleList([block for place, block in enumerate(network.blocks) if place not in set(gone)])
    return network
