"""A published model of Llama's kind, or of Gemma 3's, as plain PyTorch, whose layers may each have another size.

Nothing of the relay is in it: it is what the ways to prune work on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.compress.pool import published_pool
from l2l_nas.errors import SettingError
from l2l_nas.layers import FeedForward, SelfAttention
from l2l_nas.layers.rotary import rotated
from l2l_nas.layers.style import OffsetRMSNorm
from l2l_nas.training.export import plain_module

LONGEST = 512  # tokens of a text; a window of attention that is as long changes nothing


class PlainNorm(nn.Module):
    """An RMS norm, whose mean is over `over` numbers, whether these are all of its input or its input is a part."""

    def __init__(self, weight: Tensor, *, eps: float) -> None:
        super().__init__()
        self.weight: nn.Parameter | None = nn.Parameter(weight.clone())
        self.over, self.eps = len(weight), eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] in and out."""
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) / self.over + self.eps)).to(x.dtype)
        return normed if self.weight is None else normed * self.weight


class PlainAttention(nn.Module):
    """Causal attention; `per_group` heads of queries share keys and values, and are one group with them."""

    def __init__(self, layer: SelfAttention) -> None:
        super().__init__()
        heads = layer.heads
        assert layer.rotary is not None
        self.query, self.key, self.value, self.out = layer.query, layer.key, layer.value, layer.out
        self.size, self.rotary, self.scale = layer.size, layer.rotary, heads.scale
        normed = (layer.query_norm, layer.key_norm) if heads.is_normed else ()
        self.norms = nn.ModuleList(map(_norm, normed))  # of the heads of queries, and of keys
        self.per_group = heads.count // heads.shared

    @property
    def groups(self) -> int:
        return self.key.out_features // self.size

    @property
    def first(self) -> tuple[nn.Linear, ...]:
        return self.query, self.key, self.value

    @property
    def last(self) -> nn.Linear:
        return self.out

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] in and out."""
        if not self.groups:
            return self.out(x[..., :0])
        query, key, value = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if self.norms:
            query, key = self.norms[0](query), self.norms[1](key)
        cosine, sine = self.rotary.table(0, x.shape[1], size=self.size, like=x)
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        key, value = (part.repeat_interleave(self.per_group, dim=1) for part in (key, value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        return self.out(attended.transpose(1, 2).flatten(2))


class PlainFeedForward(nn.Module):
    """A feed-forward network with a gate."""

    def __init__(self, layer: FeedForward) -> None:
        super().__init__()
        assert isinstance(layer.gate, nn.Linear)
        assert isinstance(layer.up, nn.Linear)
        assert isinstance(layer.down, nn.Linear)
        self.gate, self.up, self.down, self.activation = layer.gate, layer.up, layer.down, layer.activation

    @property
    def first(self) -> tuple[nn.Linear, ...]:
        return self.gate, self.up

    @property
    def last(self) -> nn.Linear:
        return self.down

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] in and out."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Sublayer(nn.Module):
    """Attention or a feed-forward network, added to the residual stream.

    Args:
        norm: of what goes in.
        after: of what is added; None: none.

    `carry` turns a stream that is sliced.
    """

    def __init__(
        self, norm: PlainNorm, body: PlainAttention | PlainFeedForward, after: PlainNorm | None = None
    ) -> None:
        super().__init__()
        self.norm, self.body, self.after = norm, body, after
        self.carry: nn.Linear | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] in and out."""
        added = self.body(self.norm(x))
        return (x if self.carry is None else self.carry(x)) + (added if self.after is None else self.after(added))


class PlainBlock(nn.Module):
    """Attention, then a feed-forward network."""

    def __init__(self, attention: Sublayer, feed_forward: Sublayer) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] in and out."""
        return self.feed_forward(self.attention(x))


class PlainLlama(nn.Module):
    """The model. The table of tokens is that of the head; `into` and `back` lead to a sliced stream and from it.

    Args:
        scale: what the embedding of a token is multiplied by.
    """

    def __init__(self, token: nn.Embedding, blocks: list[PlainBlock], norm: PlainNorm, scale: float = 1.0) -> None:
        super().__init__()
        self.token, self.layers, self.norm, self.scale = token, nn.ModuleList(blocks), norm, scale
        self.into: nn.Linear | None = None
        self.back: nn.Linear | None = None

    @property
    def blocks(self) -> list[PlainBlock]:
        return [block for block in self.layers if isinstance(block, PlainBlock)]

    def embed(self, tokens: Tensor) -> Tensor:
        """Int64 [batch, length] to [batch, length, width]."""
        states = self.token(tokens) * self.scale
        return states if self.into is None else self.into(states)

    def head(self, states: Tensor) -> Tensor:
        """[..., width] to logits [..., vocabulary]."""
        states = self.norm(states)
        return functional.linear(states if self.back is None else self.back(states), self.token.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Int64 [batch, length] to logits [batch, length, vocabulary]."""
        states = self.embed(tokens)
        for block in self.blocks:
            states = block(states)
        return self.head(states)


def plain_llama(model: str) -> PlainLlama:
    """`hf:FOLDER` or `gguf:FILE` with its weights."""
    pool = published_pool(model, skips=False)
    modules = dict(plain_module(pool, pool.original).named_children())
    blocks = []
    for index in range(sum(name.startswith("attention_") for name in modules)):
        attention, network = modules[f"attention_{index}"], modules.get(f"feedforward_{index}")
        if not (_is_plain(attention) and isinstance(network, FeedForward) and network.gate is not None):
            raise SettingError(f"{model}: the ways to prune are written for models of Llama's kind; this is another")
        assert isinstance(attention, SelfAttention)
        parts = (PlainAttention(attention), attention), (PlainFeedForward(network), network)
        blocks.append(PlainBlock(*(Sublayer(_norm(one.norm), body, _after(one)) for body, one in parts)))
    token, norm = getattr(modules["embedding"], "token", None), modules.get("norm")
    tied = getattr(modules["head"], "weight", None)
    if not blocks or not isinstance(token, nn.Embedding) or norm is None or tied is not token.weight:
        raise SettingError(f"{model}: the ways to prune are written for models with one table of tokens")
    return PlainLlama(token, blocks, _norm(norm), scale=getattr(modules["embedding"], "scale", 1.0)).eval()


def _is_plain(layer: nn.Module) -> bool:
    if not isinstance(layer, SelfAttention) or not isinstance(layer.norm, nn.RMSNorm | OffsetRMSNorm):
        return False
    heads = layer.heads
    odd = (heads.window is not None and heads.window < LONGEST, heads.cap, heads.is_normed_whole)
    return layer.rotary is not None and heads.is_causal and not any(odd)


def _norm(norm: nn.Module) -> PlainNorm:
    assert isinstance(norm, nn.RMSNorm | OffsetRMSNorm)
    assert norm.eps is not None
    weight = norm.weight.detach()
    return PlainNorm(weight + 1 if isinstance(norm, OffsetRMSNorm) else weight, eps=norm.eps)


def _after(layer: SelfAttention | FeedForward) -> PlainNorm | None:
    return None if isinstance(layer.added_norm, nn.Identity) else _norm(layer.added_norm)


def sublayers(network: PlainLlama) -> list[Sublayer]:
    return [part for block in network.blocks for part in (block.attention, block.feed_forward)]


def num_layer_parameters(network: nn.Module) -> int:
    """All parameters but those of the table of tokens, its largest one."""
    sizes = [parameter.numel() for parameter in network.parameters()]
    return sum(sizes) - max(sizes)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with these weights [outside, inside]; nothing is drawn."""
    layer = nn.Linear(1, 1, bias=bias is not None)
    layer.out_features, layer.in_features = weight.shape
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


def batched(function: Callable[[Tensor], Tensor], rows: Tensor, size: int = 4) -> Tensor:
    """What a function gives for so many rows at a time; no gradients."""
    with torch.no_grad():
        return torch.cat([function(part) for part in rows.split(size)])
