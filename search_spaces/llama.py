"""Llama (arXiv 2302.13971): each block chooses its attention, or none, and its gated feed-forward network, or none.

RMS norms, rotary positions, no biases; the head has the embedding's weights. Published ones, each the largest network
of these arguments; all but the smallest have a head of their own, which the last column counts:

| published | hidden | depth | heads | key_value | width | vocabulary | parameters |
|---|---|---|---|---|---|---|---|
| (the default) | 64 | 4 | 4 | 4 | 176 | 257 | 0.2 million |
| Llama 3.2 1B | 2,048 | 16 | 32 | 8 | 8,192 | 128,256 | 1,236 million |
| Llama 2 7B (arXiv 2307.09288) | 4,096 | 32 | 32 | 32 | 11,008 | 32,000 | 6,738 million |
| Llama 3 8B (arXiv 2407.21783) | 4,096 | 32 | 32 | 8 | 14,336 | 128,256 | 8,030 million |
"""

from functools import partial

import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, Vocabulary, skip
from l2l_nas import elastic as family
from l2l_nas.layers import Embedding, FeedForward, Heads, SelfAttention, Style


def build(
    vocabulary: int = 257,
    length: int = 128,
    hidden: int = 64,
    depth: int = 4,
    heads: int = 4,
    key_value: int | None = None,
    width: int | None = None,
    documents: bool = False,
    elastic: bool = False,
) -> LayerPool:
    """Embedding, `depth` blocks of an attention and a feed-forward sub-layer, norm, head.

    Args:
        vocabulary: number of tokens.
        length: of sequences.
        hidden: width.
        depth: blocks.
        heads: of queries.
        key_value: heads of keys and values, at most; by default as many. Others have half as many, or one.
        width: of the feed-forward networks, at most; 8/3 of `hidden` by default, a multiple of 16. Others have half, or
            a quarter.
        documents: whether there is a second input, the number of each token's document; see `SelfAttention.forward`.
        elastic: whether a position's attentions share their weights, and its feed-forward networks theirs: a smaller
            one is the first rows and columns of the largest (see `l2l_nas.elastic`).
    """
    style = Style(norm="rms", eps=1e-6, bias=False, deviation=0.02, sublayers=2 * depth)
    most = key_value or heads
    fewer = [count for count in (most, most // 2, 1) if count and heads % count == 0]
    kinds = {f"key_value_{count}": Heads(heads, key_value=count, rotary=10_000.0) for count in fewer}
    window = max(1, length // 8)
    kinds[f"window_{window}"] = Heads(heads, key_value=most, rotary=10_000.0, window=window)
    wide = width or 16 * -(-8 * hidden // 48)
    widths = {f"width_{count}": count for count in (wide, wide // 2, wide // 4)}
    inner = partial(FeedForward, hidden, activation="silu", is_gated=True, style=style)
    attentions = {name: partial(SelfAttention, hidden, kind, style) for name, kind in kinds.items()}
    networks = {name: partial(inner, count) for name, count in widths.items()}
    embedding = partial(Embedding, vocabulary, hidden, style=style)
    positions = [Position("embedding", Candidate("plain", embedding, {"token.weight": "token"}), reads="tokens")]
    for index in range(depth):
        reads = (positions[-1].name, "documents") if documents else None
        name = f"attention_{index}"
        positions.append(Position(name, [*family(name, attentions, shares=elastic), skip()], reads=reads))
        name = f"feedforward_{index}"
        positions.append(Position(name, [*family(name, networks, shares=elastic), skip()]))
    head = partial(nn.Linear, hidden, vocabulary, bias=False)
    positions.append(Position("norm", Candidate("rms", partial(nn.RMSNorm, hidden, eps=style.eps))))
    positions.append(Position("head", Candidate("tied", head, {"weight": "token"}, split={"": Vocabulary()})))
    names = ("tokens", "documents") if documents else ("tokens",)
    return LayerPool(positions, inputs={name: TensorSpec((length,), torch.int64) for name in names})
