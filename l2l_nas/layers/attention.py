"""Self-attention, as a residual sub-layer with its own norm, alone or beside a feed-forward network.

A block of a published model is this and a feed-forward network. [batch, length, hidden] goes in and comes out. A method
`extend` runs a sub-layer on the next tokens of a sequence, with what it must know of those before; see
`SelfAttention.extend`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.errors import DataError
from l2l_nas.layers.feed_forward import FeedForward
from l2l_nas.layers.least_squares import Moments, fit, kept_units, once, places
from l2l_nas.layers.merged_heads import key_maps, value_maps
from l2l_nas.layers.rotary import Rotary, rotated
from l2l_nas.layers.style import NORMS, Cache, Residual, Style
from l2l_nas.space.split import Attended, Column, KeyValue, Row, SplitRule, Splits, Within, under


@dataclass(frozen=True)
class Heads:
    """How attention is divided.

    Raises:
        ValueError: a number that makes no sense.
    """

    count: int  # of heads of queries
    key_value: int | None = None  # heads of keys and values, which groups of queries share (arXiv 2305.13245)
    size: int | None = None  # of a head; None: the width over `count`
    rotary: Rotary | float | None = None  # rotary positions, or their base; None: without
    window: int | None = None  # how many tokens each one sees, itself among them; None: all
    is_causal: bool = True  # whether a token sees only itself and earlier ones
    is_normed: bool = False  # whether queries and keys have an RMS norm for each head (arXiv 2010.04245)
    is_normed_whole: bool = False  # whether that is one norm over all heads, before they are parted (OLMo 2)
    dropout: float = 0.0  # probability, on attention weights
    scale: float | None = None  # factor of products of queries and keys; None: 1 over the root of a head's size
    cap: float | None = None  # of these products: `cap * tanh(product / cap)` (arXiv 2408.00118, section 2)
    bias: bool | None = None  # whether queries, keys and values have one; None: as the model's other layers
    out_bias: bool | None = None  # whether the last layer has one; None: as those

    def __post_init__(self) -> None:
        for number in (self.count, self.key_value, self.size, self.window):
            if number is not None and number < 1:
                raise ValueError(f"numbers of heads, of theirs and of a window's tokens are at least 1, got {number}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout is a probability, got {self.dropout}")
        if self.cap is not None and not 0 < self.cap < math.inf:
            raise ValueError(f"a cap is a finite number above 0, got {self.cap}")

    @property
    def shared(self) -> int:
        """Heads of keys and values."""
        return self.key_value or self.count


class SelfAttention(Residual):
    """Self-attention.

    Raises:
        ValueError: heads that do not go together.
    """

    def __init__(self, hidden: int, heads: Heads, style: Style | None = None) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        self.heads = heads
        self.size = heads.size or hidden // heads.count
        shared = heads.shared
        if not self.size:
            raise ValueError(f"{heads.count} heads for a width of {hidden}")
        if heads.count % shared:
            raise ValueError(f"{shared} heads of keys and values do not divide {heads.count} of queries")
        self.rotary = heads.rotary if isinstance(heads.rotary, Rotary | None) else Rotary(heads.rotary)
        if self.rotary is not None and self.rotary.turning(self.size) % 2:
            raise ValueError(f"rotary positions need heads of an even size, got {self.size}; change their count")
        bias = style.bias if heads.bias is None else heads.bias
        self.query = nn.Linear(hidden, heads.count * self.size, bias=bias)
        self.key = nn.Linear(hidden, shared * self.size, bias=bias)
        self.value = nn.Linear(hidden, shared * self.size, bias=bias)
        out_bias = bias if heads.out_bias is None else heads.out_bias
        self.out = nn.Linear(heads.count * self.size, hidden, bias=out_bias)
        if heads.is_normed or heads.is_normed_whole:
            norm = NORMS["offset_rms" if style.norm == "offset_rms" else "rms"]
            counts = (heads.count, shared) if heads.is_normed_whole else (1, 1)
            self.query_norm, self.key_norm = (norm(count * self.size, eps=style.eps) for count in counts)
        style.draw(self.query, self.key, self.value, last=self.out)

    @property
    def takes_any_length(self) -> bool | str:
        """See `l2l_nas.relay.extend`: what sees later places must be told where a text ends."""
        return self.heads.is_causal or "documents"

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out.

        Args:
            documents: int64 [batch, length]; a token sees those of the same number. None: all are of one.
        """
        return self.behind(x, self.added(self.before(x), documents))

    def added(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """The sum that is added to the input, of input that is normed: [batch, length, hidden]."""
        added: Tensor = self.out(self.attended(x, documents))
        return added

    def attended(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """What the last layer takes, [batch, length, heads * size], of input that is normed."""
        mask = self._mask(x.shape[1], x.shape[1], x.device, documents)
        return self._attended(*self._projected(x, 0), mask)

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
        outputs = self.behind(x, self.out(self._attended(query, key, value, mask)))
        if self.heads.window is not None:  # what no later token sees
            cut = max(0, key.shape[2] - (self.heads.window - 1))
            key, value, dropped = key[:, :, cut:], value[:, :, cut:], dropped + cut
        return outputs, (key, value, torch.tensor(dropped))

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over attention of the same size of heads, of which there may be fewer here.

        With fewer heads of queries, those of keys and values that cost most to remove stay, and of their queries those
        that do. With fewer of keys and values alone, these are merged: see `l2l_nas.layers.merged_heads`. The last
        layer is fitted by least squares to what the original adds for `inputs`, as `forward` takes them: see
        `l2l_nas.layers.least_squares`.
        """
        assert isinstance(original, SelfAttention)
        if self.heads.count < original.heads.count:
            state = self._fewer_heads(original, inputs)
        elif self.heads.shared < original.heads.shared:
            state = self._merged_heads(original, inputs)
        else:
            state = original.state_dict()
        self.load_state_dict(state)
        fit(self.out, Moments.of(inputs, partial(_adds, self, original)))

    def _merged_heads(self, original: SelfAttention, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The original's weights, with fewer keys and values; keys that have a norm are means (arXiv 2305.13245)."""
        heads, size, shared = original.heads, self.size, self.heads.shared
        query, key, value = (
            sums.unflatten(1, (-1, size)).unflatten(0, (-1, size))
            for sums in once("projections", (original, inputs[0]), lambda: original._products(inputs[0]))
        )
        last = original.out.weight.double().t().unflatten(0, (-1, size))
        maps, state = value_maps(value, last, shared), original.state_dict()
        state["out.weight"] = maps.taken_on(state["out.weight"].t()).t()
        merged = {"value": maps}
        if heads.is_normed or heads.is_normed_whole:
            for name in ("key.weight", "key.bias", *(["key_norm.weight"] if heads.is_normed_whole else [])):
                if name in state:
                    state[name] = state[name].unflatten(0, (shared, -1, size)).mean(dim=1).flatten(0, 1)
        else:
            query = query.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            turning = 0 if self.rotary is None else self.rotary.turning(size)
            merged["key"] = key_maps(key, query.unflatten(0, (heads.shared, -1)).sum(1), shared, turning)
        for part, maps in merged.items():
            for leaf in ("weight", "bias"):
                if f"{part}.{leaf}" in state:
                    state[f"{part}.{leaf}"] = maps.merged(state[f"{part}.{leaf}"])
                if part == "key" and f"query.{leaf}" in state:
                    state[f"query.{leaf}"] = maps.taken_on(state[f"query.{leaf}"])
        return state

    def _products(self, x: Tensor) -> list[Tensor]:
        """Sums over tokens of products of queries, of keys and of values, before norms and places; float64.

        They follow from those of the input, which is narrower than all three side by side.
        """
        moments = Moments.of((x,), lambda some: (self.before(some), some[..., :0]))
        return [moments.products(layer) for layer in (self.query, self.key, self.value)]

    def _fewer_heads(self, original: SelfAttention, inputs: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The original's weights of the heads that stay."""
        count, shared, size = self.heads.count, self.heads.shared, self.size
        each = original.heads.count // original.heads.shared
        adds = partial(_adds, original, original)
        weight = original.out.weight
        moments = once("heads", (original, *inputs), lambda: Moments.of(inputs, adds)).about(self.out)
        groups = kept_units(weight, moments, shared, size=each * size)
        left = places(groups, each * size)
        some = kept_units(weight[:, left], moments.some(left), count, size=size, parts=shared)
        queries, keys = left[places(some, size)], places(groups, size)
        rows = {"query": queries, "key": keys, "value": keys}
        if self.heads.is_normed_whole:
            rows |= {"query_norm": queries, "key_norm": keys}
        state = original.state_dict()
        for name, value in state.items():
            part = name.partition(".")[0]
            if name == "out.weight":
                state[name] = value[:, queries]
            elif part in rows:
                state[name] = value[rows[part]]
        return state

    def splits(self) -> Splits:
        """By heads; what mixes all heads, as a norm over them does, is whole."""
        heads, size = self.heads, self.size
        if heads.is_normed_whole or (heads.cap is not None and heads.dropout):
            return {}
        by_heads = Column(unit=size)
        shared = by_heads if heads.shared == heads.count else KeyValue(heads.shared, size)
        splits: dict[str, SplitRule] = {"query": by_heads, "key": shared, "value": shared, "out": Row(unit=size)}
        if heads.is_normed:
            splits |= {"query_norm": Within(), "key_norm": Within()}
        if heads.dropout:
            splits[""] = Attended()
        return splits

    def _projected(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, length, size], of tokens from a place on."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.heads.is_normed_whole:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (part.unflatten(-1, (-1, self.size)) for part in (query, key, value))
        if self.heads.is_normed:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if self.rotary is not None:
            cosine, sine = self.rotary.table(start, x.shape[1], size=self.size, like=x)
            query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        return query, key, value

    def _mask(self, new: int, seen: int, device: torch.device, documents: Tensor | None) -> Tensor | None:
        """Bool [new, seen] or [batch, 1, new, seen], where a token sees another; None where all do, or all earlier."""
        window = self.heads.window if self.heads.window is not None and self.heads.window < seen else None
        if documents is None and window is None and (new == seen or new == 1 or not self.heads.is_causal):
            return None
        distances = torch.arange(seen - new, seen, device=device)[:, None] - torch.arange(seen, device=device)
        mask = torch.ones(new, seen, dtype=torch.bool, device=device)
        if self.heads.is_causal:
            mask = mask & (distances >= 0)
        if window is not None:
            mask = mask & (distances.abs() < window)
        if documents is not None:
            mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
        return mask

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        is_next = query.shape[2] == 1 and mask is None and self.heads.cap is None  # one token, which sees all
        if groups > 1 and not is_next:
            key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        dropout = self.heads.dropout if self.training else 0.0
        if self.heads.cap is not None:
            attended = self._capped(query, key, value, mask, dropout)
        else:
            attended = functional.scaled_dot_product_attention(
                query,
                key,
                value,
                mask,
                dropout_p=dropout,
                is_causal=self.heads.is_causal and mask is None and not is_next,
                scale=self.heads.scale,
                enable_gqa=is_next and groups > 1,
            )
        return attended.transpose(1, 2).flatten(2)

    def _capped(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
        """Attention whose products are capped before any is masked, which torch has no kernel for."""
        cap = self.heads.cap
        assert cap is not None
        products = query @ key.transpose(-2, -1) * (self.size**-0.5 if self.heads.scale is None else self.heads.scale)
        products = cap * torch.tanh(products / cap)
        if mask is None and self.heads.is_causal and query.shape[2] > 1:
            mask = torch.ones(products.shape[-2:], dtype=torch.bool, device=products.device).tril()
        if mask is not None:
            products = products.masked_fill(~mask, -torch.inf)
        weights = functional.softmax(products, dim=-1, dtype=torch.float32).to(value.dtype)
        return functional.dropout(weights, dropout) @ value


def _adds(attention: SelfAttention, original: SelfAttention, x: Tensor, *documents: Tensor) -> tuple[Tensor, Tensor]:
    """What the last layer of attention takes, and what the original adds."""
    normed = original.before(x)
    taken = attention.attended(normed, *documents)
    return taken, original.out(taken if attention is original else original.attended(normed, *documents))


class ParallelBlock(nn.Module):
    """Attention and a feed-forward network that both work on the block's input; their sum is added (GPT-NeoX)."""

    def __init__(
        self,
        hidden: int,
        heads: Heads,
        width: int,
        *,
        activation: str = "gelu",
        rank: int | None = None,
        style: Style | None = None,
    ) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads, style)
        self.feed_forward = FeedForward(hidden, width, activation=activation, rank=rank, style=style)

    @property
    def takes_any_length(self) -> bool | str:
        """See `SelfAttention.takes_any_length`."""
        return self.attention.takes_any_length

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out; see `SelfAttention.forward`."""
        return self.attention(x, documents) + self._beside(x)

    def adds(self, x: Tensor, *documents: Tensor) -> Tensor:
        """What both add to their input, before norms and dropout of it: [batch, length, hidden]."""
        return self.attention.adds(x, *documents) + self.feed_forward.adds(x)

    def extend(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`."""
        outputs, cache = self.attention.extend(x, cache)
        return outputs + self._beside(x), cache

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the attention, and of the network what a narrower one or one of this rank does."""
        assert isinstance(original, ParallelBlock)
        self.attention.begin_as(original.attention, inputs)
        self.feed_forward.begin_as(original.feed_forward, inputs)

    def splits(self) -> Splits:
        """As both of its parts are."""
        return under("attention", self.attention.splits()) | under("feed_forward", self.feed_forward.splits())

    def _beside(self, x: Tensor) -> Tensor:
        network = self.feed_forward
        return network.changes(network.added(network.before(x)))
