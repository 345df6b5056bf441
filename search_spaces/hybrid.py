"""Hybrid language models: each block chooses a mixer (attention, a window, a state ...) and a network or experts.

A token reads earlier tokens by attention, whose cost grows with the length, or by a state of fixed size. Published
mixtures are Jamba (arXiv 2403.19887, section 3.1: of each 8 layers one has attention and 7 have Mamba; every second
network has 16 experts, of which a token takes 2) and Samba (arXiv 2406.07522: Mamba, windows and gated networks take
turns). Norms, gates and rotary positions are those of the space `llama`.

| hidden | depth | heads | vocabulary | parameters of the largest network | of the smallest without skips |
|---|---|---|---|---|---|
| 64 | 4 | 4 | 257 | 0.67 million (the default) | 0.15 million |
| 512 | 8 | 8 | 32,000 | 97 million | 33 million |
| 4,096 | 32 | 32 | 32,000 | 20,581 million | 4,427 million |
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, Vocabulary, skip
from l2l_nas import elastic as family
from l2l_nas.layers import (
    Embedding,
    FeedForward,
    Heads,
    LinearAttention,
    MixtureOfExperts,
    Routing,
    SelfAttention,
    StateHeads,
    StateSpace,
    Style,
)


def build(
    vocabulary: int = 257,
    length: int = 128,
    hidden: int = 64,
    depth: int = 4,
    heads: int = 4,
    documents: bool = False,
    elastic: bool = False,
) -> LayerPool:
    """Embedding, `depth` blocks of a mixer and a feed-forward sub-layer, norm, head.

    Args:
        vocabulary: number of tokens.
        length: of sequences.
        hidden: width.
        depth: blocks.
        heads: of attention, and of states.
        documents: whether there is a second input, the number of each token's document; see `SelfAttention.forward`.
        elastic: whether a position's attentions share their weights, and its feed-forward networks theirs: a smaller
            one is the first rows and columns of the largest (see `l2l_nas.elastic`).
    """
    style = Style(norm="rms", eps=1e-6, bias=False, deviation=0.02, sublayers=2 * depth)
    window = max(1, length // 8)
    states = StateHeads(heads, size=2 * hidden // heads, state=max(16, hidden // heads))
    width = 16 * -(-8 * hidden // 48)
    gated: dict[str, Any] = {"activation": "silu", "is_gated": True, "style": style}
    attentions = {
        "attention": partial(SelfAttention, hidden, Heads(heads, rotary=10_000.0), style),
        f"window_{window}": partial(SelfAttention, hidden, Heads(heads, rotary=10_000.0, window=window), style),
    }
    others = [
        Candidate("linear", partial(LinearAttention, hidden, heads, style=style)),
        Candidate("state_space", partial(StateSpace, hidden, states, style)),
        skip(),
    ]
    experts = partial(MixtureOfExperts, hidden, width, routing=Routing(4, is_normalised=True), **gated)
    networks = {f"width_{count}": partial(FeedForward, hidden, count, **gated) for count in (width, width // 2)}
    embedding = partial(Embedding, vocabulary, hidden, style=style)
    positions = [Position("embedding", Candidate("plain", embedding, {"token.weight": "token"}), reads="tokens")]
    for index in range(depth):
        reads = (positions[-1].name, "documents") if documents else None
        name = f"attention_{index}"
        positions.append(Position(name, [*family(name, attentions, shares=elastic), *others], reads=reads))
        name = f"feedforward_{index}"
        dense = family(name, networks, shares=elastic)
        positions.append(Position(name, [Candidate("experts", experts), *dense, skip()]))
    head = partial(nn.Linear, hidden, vocabulary, bias=False)
    positions.append(Position("norm", Candidate("rms", partial(nn.RMSNorm, hidden, eps=style.eps))))
    positions.append(Position("head", Candidate("tied", head, {"weight": "token"}, split={"": Vocabulary()})))
    names = ("tokens", "documents") if documents else ("tokens",)
    return LayerPool(positions, inputs={name: TensorSpec((length,), torch.int64) for name in names})
