"""GPT-2 (Radford et al. 2019): each block chooses its attention, or none, and its feed-forward network, or none.

Embeddings of places are learned, and the head has the embedding's weights. The first weights of what sub-layers add are
divided by the root of their number. With 50,257 tokens and 1,024 places the largest network is the published one:

| published | hidden | depth | heads | parameters |
|---|---|---|---|---|
| (the default) | 64 | 4 | 4 | 0.2 million |
| gpt2 | 768 | 12 | 12 | 124 million |
| gpt2-medium | 1,024 | 24 | 16 | 355 million |
| gpt2-large | 1,280 | 36 | 20 | 774 million |
| gpt2-xl | 1,600 | 48 | 25 | 1,558 million |
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
    documents: bool = False,
    elastic: bool = False,
) -> LayerPool:
    """Embedding, `depth` blocks of an attention and a feed-forward sub-layer, norm, head.

    Args:
        vocabulary: number of tokens.
        length: of sequences.
        hidden: width.
        depth: blocks.
        heads: of the published attention; others have half as many, or one for keys and values.
        documents: whether there is a second input, the number of each token's document; see `SelfAttention.forward`.
        elastic: whether a position's attentions share their weights, and its feed-forward networks theirs: a smaller
            one is the first rows and columns of the largest (see `l2l_nas.elastic`).
    """
    style = Style(deviation=0.02, sublayers=2 * depth)
    kinds = {
        f"heads_{heads}": Heads(heads),
        f"heads_{max(1, heads // 2)}": Heads(max(1, heads // 2)),
        "key_value_1": Heads(heads, key_value=1),
        f"window_{max(1, length // 8)}": Heads(heads, window=max(1, length // 8)),
    }
    widths = {f"width_{times * hidden}": times * hidden for times in (4, 2, 1)}
    inner = partial(FeedForward, hidden, activation="gelu_tanh", style=style)
    attentions = {name: partial(SelfAttention, hidden, kind, style) for name, kind in kinds.items()}
    networks = {name: partial(inner, width) for name, width in widths.items()}
    embedding = partial(Embedding, vocabulary, hidden, places=length, style=style)
    positions = [Position("embedding", Candidate("learned", embedding, {"token.weight": "token"}), reads="tokens")]
    for index in range(depth):
        reads = (positions[-1].name, "documents") if documents else None
        name = f"attention_{index}"
        positions.append(Position(name, [*family(name, attentions, shares=elastic), skip()], reads=reads))
        name = f"feedforward_{index}"
        positions.append(Position(name, [*family(name, networks, shares=elastic), skip()]))
    head = partial(nn.Linear, hidden, vocabulary, bias=False)
    positions.append(Position("norm", Candidate("layer", partial(nn.LayerNorm, hidden))))
    positions.append(Position("head", Candidate("tied", head, {"weight": "token"}, split={"": Vocabulary()})))
    names = ("tokens", "documents") if documents else ("tokens",)
    return LayerPool(positions, inputs={name: TensorSpec((length,), torch.int64) for name in names})
