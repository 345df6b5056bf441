"""Parts of a layer that hold a rank's piece of their weights, each a subclass of what it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from l2l_nas.parallel.collectives import Ranks, entered, forked, gathered, one_fork_each, sliced, summed
from l2l_nas.space.randomness import generators_of, preserved_generators

_ODD = 0x9E3779B97F4A7C15  # the golden ratio in 64 bits: seeds of ranks lie far apart


def turn(part: nn.Module, mixin: type[nn.Module], **attributes: object) -> None:
    """Make a module an object of its class with a mixin before it, which has these attributes."""
    base = type(part)
    if (mixin, base) not in _COMBINED:
        name = f"{mixin.__name__}{base.__name__}"
        _COMBINED[mixin, base] = type(name, (mixin, base), {"__module__": base.__module__})
    part.__class__ = _COMBINED[mixin, base]
    vars(part).update(attributes)


_COMBINED: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


class _Divided(nn.Module):
    """What all mixins have: who shares the layer."""

    ranks: Ranks


class Scoped(_Divided):
    """The whole layer, in whose forward each tensor is forked once."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """See the class that it was."""
        with one_fork_each():
            return super().forward(*inputs, **named)


class ByColumns(_Divided):
    """A linear layer or convolution that gives some of the outputs."""

    def forward(self, x: Tensor) -> Any:
        """See the class that it was."""
        return super().forward(entered(x, self.ranks))


class Gathered(_Divided):
    """A layer of scores whose pieces are put together.

    Attributes:
        place: where the piece begins, and the length of the whole.
    """

    place: tuple[int, int]

    def forward(self, x: Tensor) -> Any:
        """See the class that it was."""
        return gathered(super().forward(x), self.ranks, -1, *self.place)


class ByRows(_Divided):
    """A linear layer or convolution that takes some of the inputs.

    Attributes:
        place: where these begin and end, if the input is whole; None: it is a piece already.
    """

    place: tuple[int, int] | None
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """See the class that it was."""
        dim = -1 if isinstance(self, nn.Linear) else 1
        if self.place is not None:
            x = sliced(x, self.ranks, dim, *self.place)
        if isinstance(self, nn.Linear):
            added = functional.linear(x, self.weight)
        else:
            added = self._conv_forward(x, self.weight, None)  # type: ignore[operator]
        total = summed(added, self.ranks)
        if self.bias is None:
            return total
        return total + (self.bias if dim == -1 else self.bias.view(-1, *[1] * (self.weight.dim() - 2)))


class InGroups(_Divided):
    """A grouped convolution that has some of the groups; `place` is that of `ByRows`."""

    place: tuple[int, int] | None

    def forward(self, x: Tensor) -> Any:
        """See the class that it was."""
        return super().forward(x if self.place is None else sliced(x, self.ranks, 1, *self.place))


class Selected(_Divided):
    """A whole linear layer of keys or values, which hands on those that the rank's queries use.

    Attributes:
        place: where these begin and end.
    """

    place: tuple[int, int]

    def forward(self, x: Tensor) -> Any:
        """See the class that it was."""
        return sliced(super().forward(x), self.ranks, -1, *self.place)


class OfTokens(_Divided):
    """An embedding that has some of the tokens.

    Attributes:
        begin: the first of them.
    """

    begin: int
    weight: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class that it was."""
        assert isinstance(self, nn.Embedding)
        local = tokens - self.begin
        is_elsewhere = (local < 0) | (local >= len(self.weight))
        embedded = functional.embedding(
            local.masked_fill(is_elsewhere, 0),
            self.weight,
            self.padding_idx,
            scale_grad_by_freq=self.scale_grad_by_freq,
        )
        return summed(embedded.masked_fill(is_elsewhere[..., None], 0), self.ranks)


class OfExperts(_Divided):
    """A container that has some of the experts."""

    def forward(self, *inputs: Any) -> Any:
        """See the class that it was."""
        inputs = forked(self.ranks, *inputs)
        # without a token for its experts a rank may give what depends on none of them, and goes backward all the same
        return summed(super().forward(*inputs), self.ranks, beside=inputs)


class OnParts(_Divided):
    """A module of whole weights that works on a part, so that their gradients are sums over ranks."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """See the class that it was."""
        with _parameters_forked(self, self.ranks):
            return super().forward(*inputs, **named)


@contextmanager
def _parameters_forked(module: nn.Module, ranks: Ranks) -> Iterator[None]:
    places = [(part, name) for part in module.modules() for name, p in part._parameters.items() if p is not None]
    before = [part._parameters[name] for part, name in places]
    results = forked(ranks, *(p for p in before if p is not None))
    tables: list[dict[str, Any]] = [part._parameters for part, _ in places]
    for table, (_, name), tensor in zip(tables, places, results, strict=True):
        table[name] = tensor  # past the module's own check that it is a parameter
    try:
        yield
    finally:
        for table, (_, name), parameter in zip(tables, places, before, strict=True):
            table[name] = parameter


class DroppedOut(_Divided):
    """Dropout of a part.

    Attributes:
        along: the dimension of which that is a part.
        is_exact: whether the numbers of all ranks are drawn, so that the part drops what it would in the whole. Else
            each rank draws its own.
    """

    along: int
    is_exact: bool
    p: float

    def forward(self, x: Tensor) -> Any:
        """See the class that it was."""
        if not self.training or not self.p or self.ranks.is_idle(x):
            return super().forward(x)
        if self.is_exact:
            return x * noise(x.shape, self.along, self.p, self.ranks, like=x)
        with own_numbers(self.ranks, x.device):
            return super().forward(x)


class OnHeads(_Divided):
    """A module whose attention, with dropout, is on some of the heads; `is_exact` is that of `DroppedOut`."""

    is_exact: bool

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """See the class that it was."""
        with _Attention(self.ranks, is_exact=self.is_exact):
            return super().forward(*inputs, **named)


class _Attention(TorchFunctionMode):
    """Runs `scaled_dot_product_attention` with dropout on a rank's heads."""

    def __init__(self, ranks: Ranks, *, is_exact: bool) -> None:
        super().__init__()
        self._ranks, self._is_exact = ranks, is_exact

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if not dropout or self._ranks.is_idle(args[0] if args else kwargs["query"]):
            return func(*args, **kwargs)
        if self._is_exact:
            return _attended(self._ranks, *args, **kwargs)
        with own_numbers(self._ranks, (args[0] if args else kwargs["query"]).device):
            return func(*args, **kwargs)


def _attended(
    ranks: Ranks,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As torch's kernel for the host computes it, on [batch, heads, length, size], with the whole's dropout."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (part.repeat_interleave(groups, dim=-3) for part in (key, value))
    root = math.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    products = (query * root) @ (key.transpose(-2, -1) * root)
    if is_causal:
        attn_mask = torch.ones(products.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        products = products.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        products = products + attn_mask
    weights = functional.softmax(products, dim=-1)
    return (weights * noise(weights.shape, -3, dropout_p, ranks, like=weights)) @ value


def noise(shape: Sequence[int], dim: int, p: float, ranks: Ranks, *, like: Tensor) -> Tensor:
    """A rank's part of what dropout multiplies the whole with, drawn as torch draws it for the whole.

    Args:
        shape: of the part.
        dim: along which the whole is divided in equal parts.
    """
    whole = list(shape)
    whole[dim] *= ranks.size
    return functional.dropout(like.new_ones(whole), p).narrow(dim, ranks.rank * shape[dim], shape[dim])


@contextmanager
def own_numbers(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Have each rank draw other numbers in this block; behind it all draw alike, as before.

    What the rank draws follows from the generator's state, so that a recompute draws the same.
    """
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    with preserved_generators(device):
        for generator in generators_of(device):
            generator.manual_seed((seed ^ (ranks.rank + 1) * _ODD) & (1 << 63) - 1)
        yield
