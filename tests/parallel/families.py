"""Layers of each built-in family, small, with an input of each."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from l2l_nas.layers import (
    AttentionBlock,
    CoarseBlock,
    ConvBlock,
    FeedForward,
    Heads,
    InvertedResidual,
    LinearAttention,
    LowRankMap,
    MixtureOfExperts,
    ParallelBlock,
    PoolBlock,
    ResidualMLP,
    Rotary,
    Routing,
    SelfAttention,
    SeparableBlock,
    StateHeads,
    StateSpace,
    Style,
    UpBlock,
)
from l2l_nas.space.split import Attended, Attribute, Column, Dropped, Row

WIDTH, LENGTH, BATCH = 32, 12, 3
_GPT2 = Style(deviation=0.02, sublayers=8, dropout=0.1)
_BERT = Style(eps=1e-12, is_post=True, dropout=0.1)
_LLAMA = Style(norm="rms", eps=1e-6, bias=False)
_TURNED = Rotary(10_000.0)

# by name: the layer's factory, how many all-reduces its forward makes, and its backward
TEXT = {
    "gpt2 attention": (partial(SelfAttention, WIDTH, Heads(8, dropout=0.2), _GPT2), 1, 1),
    "gpt2 feed-forward": (partial(FeedForward, WIDTH, 64, activation="gelu_tanh", style=_GPT2), 1, 1),
    "bert attention": (partial(SelfAttention, WIDTH, Heads(4, is_causal=False, dropout=0.1), _BERT), 1, 1),
    "bert feed-forward": (partial(FeedForward, WIDTH, 64, style=_BERT), 1, 1),
    "llama attention": (partial(SelfAttention, WIDTH, Heads(8, key_value=4, rotary=_TURNED), _LLAMA), 1, 1),
    "fewer heads": (partial(SelfAttention, WIDTH, Heads(8, key_value=4, size=2, rotary=_TURNED), _LLAMA), 1, 1),
    "llama window": (partial(SelfAttention, WIDTH, Heads(4, window=3, rotary=_TURNED), _LLAMA), 1, 1),
    "llama feed-forward": (partial(FeedForward, WIDTH, 48, activation="silu", is_gated=True, style=_LLAMA), 1, 1),
    # keys and values are whole, and their gradients are summed
    "one key and value": (partial(SelfAttention, WIDTH, Heads(8, key_value=1, rotary=_TURNED), _LLAMA), 1, 3),
    # so are those of the weights of both norms
    "normed heads": (partial(SelfAttention, WIDTH, Heads(8, key_value=4, is_normed=True), _LLAMA), 1, 3),
    "capped": (partial(SelfAttention, WIDTH, Heads(8, cap=5.0), _LLAMA), 1, 1),
    "parallel block": (partial(ParallelBlock, WIDTH, Heads(8, rotary=_TURNED), 64), 2, 2),
    "low rank": (partial(FeedForward, WIDTH, 64, rank=8), 1, 1),
    "linear map": (partial(LowRankMap, WIDTH, 8, style=_GPT2), 1, 1),
    "experts": (partial(MixtureOfExperts, WIDTH, 24, routing=Routing(8), style=_GPT2), 1, 1),
    "gated experts": (
        partial(MixtureOfExperts, WIDTH, 24, routing=Routing(4, is_normalised=True), is_gated=True, style=_LLAMA),
        1,
        1,
    ),
    "linear attention": (partial(LinearAttention, WIDTH, 8), 1, 1),
    "state space": (partial(StateSpace, WIDTH, StateHeads(8, size=8, state=4, groups=4, chunk=4)), 1, 1),
}
IMAGES = {
    "convolution": (partial(ConvBlock, 8, kernel=5), 1, 1),
    "separable": (partial(SeparableBlock, 8), 1, 1),
    "residual perceptron": (partial(ResidualMLP, 8, expansion=4, dropout=0.3), 1, 1),
    "coarse": (partial(CoarseBlock, 8), 1, 1),
    "inverted residual": (partial(InvertedResidual, 8, 16, 3), 1, 1),
    "squeezed": (partial(InvertedResidual, 8, 32, 5, stride=2, out=12, activation="hardswish", is_squeezed=True), 2, 2),
    "widens nothing": (partial(InvertedResidual, 8, 8, 3, activation="relu"), 1, 1),
    "up": (partial(UpBlock, 4, 8), 1, 1),
}
FAMILIES = TEXT | IMAGES
WHOLE = {
    "pooled": partial(PoolBlock, 8),
    "pixels": partial(AttentionBlock, 8),
    "one group": partial(StateSpace, WIDTH, StateHeads(4, size=8, state=4)),
    "normed whole": partial(SelfAttention, WIDTH, Heads(8, is_normed_whole=True)),
    "capped with dropout": partial(SelfAttention, WIDTH, Heads(8, cap=5.0, dropout=0.1)),
}


def inputs_of(name: str) -> tuple[torch.Tensor, ...]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(3)
    if name in TEXT:
        return (torch.randn(BATCH, LENGTH, WIDTH, generator=generator),)
    if name == "up":
        shapes = ((BATCH, 4, 3, 4), (BATCH, 8, 6, 7))
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return (torch.randn(BATCH, 8, 6, 7, generator=generator),)


class Fused(nn.Module):
    """A block as users write them: queries, keys and values in one, its heads in an attribute."""

    def __init__(self, width=16, heads=4, dropout=0.2):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.drop, self.down = nn.Linear(width, 40), nn.Dropout(dropout), nn.Linear(40, width)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(self.drop(functional.gelu(self.up(x))))


PLAN = {
    "": Attended(),
    "qkv": Column(parts=3, unit=4),
    "heads": Attribute(),
    "out": Row(unit=4),
    "up": Column(),
    "drop": Dropped(),
    "down": Row(),
}
