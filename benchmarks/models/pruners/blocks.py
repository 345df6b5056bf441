"""Networks without some whole blocks, as ShortGPT drops them.

Whole blocks come to no exact share: as many go as are within it, so that these keep rather more than others.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.pruners.llama import PlainLlama, batched


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


def num_gone(network: PlainLlama, share: float) -> int:
    """The blocks within a share; all blocks have one size."""
    return int(share * len(network.blocks) + 1e-9)


def _without(network: PlainLlama, gone: Sequence[int]) -> PlainLlama:
    network.layers = nn.ModuleList([block for place, block in enumerate(network.blocks) if place not in set(gone)])
    return network
