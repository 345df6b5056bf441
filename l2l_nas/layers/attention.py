"""Residual sub-layers of transformers: self-attention and feed-forward networks, each with its own norm.

A block of a published model is two of these. [batch, length, hidden] goes in and comes out. A method `extend` runs a
sub-layer on the next tokens of a sequence, with what it must know of those before; see `SelfAttention.extend`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.errors import DataError

Cache = tuple[Tensor, ...]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "hardswish": functional.hardswish,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
}
NORMS: Mapping[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": nn.Identity}


@dataclass(frozen=True)
class Style:
    """What all sub-layers of a model have in common.

    Args:
        norm: "layer", "rms" or "none".
        eps: of the norm.
        is_post: whether the norm follows the sum (arXiv 1706.03762), in place of standing before the sub-layer
            (arXiv 2002.04745).
        bias: whether linear layers have one.
        dropout: probability, on what a sub-layer adds.
        deviation: standard deviation of first weights, beside biases of zero; None: as PyTorch draws them.
        sublayers: of the model. The first weights of the last layer in each are divided by the root of it, so that
            what a model adds up does not grow with its depth (GPT-2, section 2.3).
    """

    norm: str = "layer"
    eps: float = 1e-5
    is_post: bool = False
    bias: bool = True
    dropout: float = 0.0
    deviation: float | None = None
    sublayers: int = 1

    @torch.no_grad()
    def draw(self, *layers: nn.Module | None, last: nn.Module | None = None) -> None:
        """Draw the first weights of linear layers and embeddings.

        Args:
            layers: where these are.
            last: further ones, of which the last is scaled down.
        """
        found = [part for layer in (*layers, last) if layer is not None for part in layer.modules()]
        drawn = [part for part in found if isinstance(part, nn.Linear | nn.Embedding)]
        if self.deviation is not None:
            for part in drawn:
                part.weight.normal_(0, self.deviation)
                if isinstance(part, nn.Linear) and part.bias is not None:
                    part.bias.zero_()
        if last is not None and self.sublayers > 1:
            drawn[-1].weight.div_(self.sublayers**0.5)


@dataclass(frozen=True)
class Heads:
    """How attention is divided.

    Args:
        count: of queries.
        key_value: of keys and values, which so many groups of queries share (arXiv 2305.13245); None: as many.
        size: of a head; None: the width over `count`.
        rotary: base of rotary positions (arXiv 2104.09864); None: without.
        window: how many tokens each one sees, itself among them; None: all.
        is_causal: whether a token sees only itself and earlier ones.
        is_normed: whether queries and keys have an RMS norm for each head (arXiv 2010.04245).
        dropout: probability, on attention weights.
    """

    count: int
    key_value: int | None = None
    size: int | None = None
    rotary: float | None = None
    window: int | None = None
    is_causal: bool = True
    is_normed: bool = False
    dropout: float = 0.0


class Residual(nn.Module):
    """Adds something to its input, with a norm before it or behind the sum.

    Args:
        hidden: width.
        style: of the model.
    """

    def __init__(self, hidden: int, style: Style) -> None:
        super().__init__()
        self.is_post = style.is_post
        self.norm = NORMS[style.norm](hidden, eps=style.eps)
        self.dropout = nn.Dropout(style.dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the sub-layer works on."""
        return x if self.is_post else self.norm(x)

    def behind(self, x: Tensor, added: Tensor) -> Tensor:
        """What it gives."""
        total = x + self.dropout(added)
        return self.norm(total) if self.is_post else total


class SelfAttention(Residual):
    """Self-attention.

    Args:
        hidden: width.
        heads: how it is divided.
        style: of the model.

    Raises:
        ValueError: heads that do not go together.
    """

    def __init__(self, hidden: int, heads: Heads, style: Style | None = None) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        self.heads = heads
        self.size = heads.size or hidden // heads.count
        shared = heads.key_value or heads.count
        if heads.count % shared:
            raise ValueError(f"{shared} heads of keys and values do not divide {heads.count} of queries")
        if heads.rotary is not None and self.size % 2:
            raise ValueError(f"rotary positions need heads of an even size, got {self.size}; change their count")
        self.query = nn.Linear(hidden, heads.count * self.size, bias=style.bias)
        self.key = nn.Linear(hidden, shared * self.size, bias=style.bias)
        self.value = nn.Linear(hidden, shared * self.size, bias=style.bias)
        self.out = nn.Linear(heads.count * self.size, hidden, bias=style.bias)
        if heads.is_normed:
            self.query_norm, self.key_norm = (nn.RMSNorm(self.size, eps=style.eps) for _ in range(2))
        style.draw(self.query, self.key, self.value, last=self.out)

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out.

        Args:
            documents: int64 [batch, length]; a token sees those of the same number. None: all are of one.
        """
        query, key, value = self._projected(self.before(x), 0)
        mask = self._mask(x.shape[1], x.shape[1], x.device, documents)
        return self.behind(x, self._attended(query, key, value, mask))

    def extend(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence.

        Args:
            x: [batch, new, hidden].
            cache: what was returned for the tokens before; None at the start.

        Returns:
            What `forward` gives at these places, [batch, new, hidden]; and keys and values [batch, heads, seen, size],
            and how many tokens there were before them, for the next call.

        Raises:
            DataError: attention that is not causal.
        """
        if not self.heads.is_causal:
            raise DataError("only causal attention can go on token by token")
        dropped = 0 if cache is None else int(cache[2])
        past = 0 if cache is None else dropped + cache[0].shape[2]
        query, key, value = self._projected(self.before(x), past)
        if cache is not None:
            key, value = torch.cat((cache[0], key), dim=2), torch.cat((cache[1], value), dim=2)
        mask = self._mask(x.shape[1], key.shape[2], x.device, None)
        given = self.behind(x, self._attended(query, key, value, mask))
        if self.heads.window is not None:  # what no later token sees
            cut = max(0, key.shape[2] - (self.heads.window - 1))
            key, value, dropped = key[:, :, cut:], value[:, :, cut:], dropped + cut
        return given, (key, value, torch.tensor(dropped))

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the weights of attention with as many queries; keys and values shared by more are means.

        Args:
            original: a `SelfAttention` of the same width, count and size of heads.
            inputs: unused.
        """
        assert isinstance(original, SelfAttention)
        state = original.state_dict()
        shared, size = self.heads.key_value or self.heads.count, self.size
        for name in ("key.weight", "value.weight", "key.bias", "value.bias"):
            if name in state:  # arXiv 2305.13245, section 2.1
                state[name] = state[name].unflatten(0, (shared, -1, size)).mean(dim=1).flatten(0, 1)
        self.load_state_dict(state)

    def _projected(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, length, size], of tokens from a place on."""
        query, key, value = (part(x).unflatten(-1, (-1, self.size)) for part in (self.query, self.key, self.value))
        if self.heads.is_normed:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if self.heads.rotary is not None:
            cosine, sine = rotary(start, x.shape[1], size=self.size, base=self.heads.rotary, like=x)
            query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        return query, key, value

    def _mask(self, new: int, seen: int, device: torch.device, documents: Tensor | None) -> Tensor | None:
        """Bool [new, seen] or [batch, 1, new, seen], where a token sees another; None where all do, or all earlier."""
        window = self.heads.window if self.heads.window is not None and self.heads.window < seen else None
        if documents is None and window is None and (new == seen or not self.heads.is_causal):
            return None
        places = torch.arange(seen - new, seen, device=device)[:, None] - torch.arange(seen, device=device)
        mask = torch.ones(new, seen, dtype=torch.bool, device=device)
        if self.heads.is_causal:
            mask = mask & (places >= 0)
        if window is not None:
            mask = mask & (places.abs() < window)
        if documents is not None:
            mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
        return mask

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            dropout_p=self.heads.dropout if self.training else 0.0,
            is_causal=self.heads.is_causal and mask is None,
        )
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(Residual):
    """A feed-forward network of two linear layers, or of three with a gate (arXiv 2002.05202).

    Args:
        hidden, width: of the outer and the inner layer.
        activation: a name in `ACTIVATIONS`.
        is_gated: whether the activation of a third layer multiplies the inner one.
        rank: where given, each matrix is a product of two, with so many numbers between them.
        style: of the model.
    """

    is_placewise = True  # see `l2l_nas.text.generate`

    def __init__(
        self,
        hidden: int,
        width: int,
        *,
        activation: str = "gelu",
        is_gated: bool = False,
        rank: int | None = None,
        style: Style | None = None,
    ) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        self.activation = ACTIVATIONS[activation]
        self.rank = rank
        self.gate = _linear(hidden, width, style.bias, rank) if is_gated else None
        self.up = _linear(hidden, width, style.bias, rank)
        self.down = _linear(width, hidden, style.bias, rank)
        style.draw(self.gate, self.up, last=self.down)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ..., hidden] in and out."""
        return self.behind(x, self.added(self.before(x)))

    def added(self, x: Tensor) -> Tensor:
        """What it adds, without norm: [batch, ..., hidden]."""
        added: Tensor = self.down(self.inner(x))
        return added

    def inner(self, x: Tensor) -> Tensor:
        """The inner layer, behind the activation: [batch, ..., width]."""
        return self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the units of a wider network that do most, or the nearest matrices of this rank.

        What a unit does is the mean size of what it gives, times the norm of its weights.

        Args:
            original: a `FeedForward` of the same kind.
            inputs: what it works on, [batch, ..., hidden].
        """
        assert isinstance(original, FeedForward)
        self.norm.load_state_dict(original.norm.state_dict())
        if self.rank is not None:
            for name in ("gate", "up", "down"):
                if getattr(self, name) is not None:
                    _nearest(getattr(self, name), getattr(original, name))
            return
        pairs = [(getattr(self, name), getattr(original, name)) for name in ("up", "gate", "down")]
        layers = [(own, other) for own, other in pairs if isinstance(own, nn.Linear) and isinstance(other, nn.Linear)]
        *inner, (down, other_down) = layers
        does = original.inner(original.before(inputs[0])).abs().flatten(0, -2).mean(dim=0)
        best = (does * other_down.weight.norm(dim=0)).topk(down.in_features).indices.sort().values
        for own, other in inner:
            own.weight.copy_(other.weight[best])
            if own.bias is not None:
                own.bias.copy_(other.bias[best])
        down.weight.copy_(other_down.weight[:, best])
        if down.bias is not None:
            down.bias.copy_(other_down.bias)


def _linear(inside: int, outside: int, bias: bool, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(inside, outside, bias=bias)
    return nn.Sequential(nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=bias))


def _nearest(product: nn.Sequential, whole: nn.Linear) -> None:
    """The product of this rank with the least squared distance, by singular values; both parts get their roots."""
    left, values, right = torch.linalg.svd(whole.weight, full_matrices=False)
    first, second = product
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    roots = values[: first.out_features].sqrt()
    first.weight.copy_(roots[:, None] * right[: first.out_features])
    second.weight.copy_(left[:, : first.out_features] * roots)
    if whole.bias is not None:
        second.bias.copy_(whole.bias)


class Embedding(nn.Module):
    """Token embeddings, with learned places and kinds of segments where asked for.

    Args:
        vocabulary: number of tokens.
        hidden: width.
        places: longest sequence, of learned places; 0: none.
        kinds: of segments, such as the two sentences of a pair; 0: none.
        style: whose dropout it has, and whose norm where `is_normed`.
        is_normed: whether a norm follows (BERT).
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        *,
        places: int = 0,
        kinds: int = 0,
        style: Style | None = None,
        is_normed: bool = False,
    ) -> None:
        super().__init__()
        style = style or Style()
        self.token = nn.Embedding(vocabulary, hidden)
        self.kind = nn.Embedding(kinds, hidden) if kinds else None
        self.place = nn.Embedding(places, hidden) if places else None
        self.norm = NORMS[style.norm](hidden, eps=style.eps) if is_normed else nn.Identity()
        self.dropout = nn.Dropout(style.dropout)
        style.draw(self.token, self.kind, self.place)

    def forward(self, tokens: Tensor, kinds: Tensor | None = None) -> Tensor:
        """int64 [batch, length] in, [batch, length, hidden] out; all tokens are of the first kind by default."""
        return self._embedded(tokens, 0, kinds)

    def extend(self, tokens: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`. The cache counts tokens."""
        start = 0 if cache is None else int(cache[0])
        return self._embedded(tokens, start, None), (torch.tensor(start + tokens.shape[1]),)

    def _embedded(self, tokens: Tensor, start: int, kinds: Tensor | None) -> Tensor:
        x = self.token(tokens)
        if self.kind is not None:
            x = x + self.kind(torch.zeros_like(tokens) if kinds is None else kinds)
        if self.place is not None:
            x = x + self.place(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        return self.dropout(self.norm(x))


class MaskedHead(nn.Module):
    """BERT's head: a layer with a norm, then a score for each token of the vocabulary.

    Args:
        hidden: width.
        vocabulary: number of tokens.
        activation: a name in `ACTIVATIONS`.
        style: whose norm it has.
    """

    is_placewise = True

    def __init__(self, hidden: int, vocabulary: int, *, activation: str = "gelu", style: Style | None = None) -> None:
        super().__init__()
        style = style or Style()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(hidden, hidden)
        self.norm = NORMS[style.norm](hidden, eps=style.eps)
        self.out = nn.Linear(hidden, vocabulary)
        style.draw(self.dense, self.out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] in, [batch, length, vocabulary] out."""
        return self.out(self.norm(self.activation(self.dense(x))))


class ClassHead(nn.Module):
    """BERT's head for whole sequences: what the first token has come to, then a score for each class.

    Args:
        hidden: width.
        classes: number of classes.
        style: whose dropout it has.
    """

    def __init__(self, hidden: int, classes: int, *, style: Style | None = None) -> None:
        super().__init__()
        style = style or Style()
        self.dense = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(style.dropout)
        self.out = nn.Linear(hidden, classes)
        style.draw(self.dense, self.out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] in, [batch, classes] out."""
        return self.out(self.dropout(torch.tanh(self.dense(x[:, 0]))))


def rotary(start: int, length: int, *, size: int, base: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, [length, size], of places from `start` on.

    The halves of a head belong together, as in published llama weights. Computed in float32.
    """
    rates = base ** -(torch.arange(0, size, 2, device=like.device, dtype=torch.int64).float() / size)
    angles = torch.arange(start, start + length, device=like.device).float()[:, None] * rates
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads [..., length, size], each rotated by the angles of its place."""
    one, other = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-other, one), dim=-1) * sine
