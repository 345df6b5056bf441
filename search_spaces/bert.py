"""BERT (arXiv 1810.04805): each block chooses its attention, or none, and its feed-forward network, or none.

Tokens also see later tokens; norms follow the sums; the head is a layer and a norm, and has the embedding's weights.
Fit for tokens that are masked, and with `classes` for whole sequences (`examples/sentences.py`). Published ones are the
largest network of these arguments, with 30,522 tokens and 512 places; these have kinds of segments in addition:

| published | hidden | depth | heads | parameters |
|---|---|---|---|---|
| (the default) | 64 | 4 | 4 | 0.2 million |
| bert-base | 768 | 12 | 12 | 110 million |
| bert-large | 1,024 | 24 | 16 | 335 million |
"""

from functools import partial

import torch

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas import elastic as family
from l2l_nas.layers import ClassHead, Embedding, FeedForward, Heads, MaskedHead, SelfAttention, Style


def build(
    vocabulary: int = 257,
    length: int = 128,
    hidden: int = 64,
    depth: int = 4,
    heads: int = 4,
    documents: bool = False,
    classes: int = 0,
    elastic: bool = False,
) -> LayerPool:
    """Embedding with a norm, `depth` blocks of an attention and a feed-forward sub-layer, head.

    Args:
        vocabulary: number of tokens.
        length: of sequences.
        hidden: width.
        depth: blocks.
        heads: of the published attention; others have half as many, or one for keys and values.
        documents: whether there is a second input, the number of each token's document; see `SelfAttention.forward`.
        classes: of sequences, such as pairs of sentences; 0: tokens are guessed. With classes there are two more
            inputs, the kind of each token's segment, and its document, by which padding is told apart.
        elastic: whether a position's attentions share their weights, and its feed-forward networks theirs: a smaller
            one is the first rows and columns of the largest (see `l2l_nas.elastic`).
    """
    style = Style(eps=1e-12, is_post=True, dropout=0.1, deviation=0.02, sublayers=2 * depth)
    half, window = max(1, heads // 2), max(1, length // 8)
    attended = {
        f"heads_{heads}": Heads(heads, is_causal=False, dropout=0.1),
        f"heads_{half}": Heads(half, is_causal=False, dropout=0.1),
        "key_value_1": Heads(heads, key_value=1, is_causal=False, dropout=0.1),
        f"window_{window}": Heads(heads, window=window, is_causal=False, dropout=0.1),
    }
    widths = {f"width_{times * hidden}": times * hidden for times in (4, 2, 1)}
    attentions = {name: partial(SelfAttention, hidden, kind, style) for name, kind in attended.items()}
    networks = {name: partial(FeedForward, hidden, width, style=style) for name, width in widths.items()}
    kinds = 2 if classes else 0
    embedding = partial(Embedding, vocabulary, hidden, places=length, kinds=kinds, style=style, is_normed=True)
    tied = {} if classes else {"token.weight": "token"}
    names = ("tokens", "kinds", "documents") if classes else ("tokens", "documents") if documents else ("tokens",)
    positions = [Position("embedding", Candidate("learned", embedding, tied), reads=names[: 2 if classes else 1])]
    for index in range(depth):
        reads = (positions[-1].name, "documents") if "documents" in names else None
        name = f"attention_{index}"
        positions.append(Position(name, [*family(name, attentions, shares=elastic), skip()], reads=reads))
        name = f"feedforward_{index}"
        positions.append(Position(name, [*family(name, networks, shares=elastic), skip()]))
    if classes:
        positions.append(Position("head", Candidate("classes", partial(ClassHead, hidden, classes, style=style))))
    else:
        head = partial(MaskedHead, hidden, vocabulary, style=style)
        positions.append(Position("head", Candidate("tied", head, {"out.weight": "token"})))
    return LayerPool(positions, inputs={name: TensorSpec((length,), torch.int64) for name in names})
