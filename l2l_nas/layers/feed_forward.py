"""Feed-forward networks, as residual sub-layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.layers.style import ACTIVATIONS, Residual, Style
from l2l_nas.space.split import Column, Row, SplitRule, Splits


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
        """The sum that is added to the input, without norm: [batch, ..., hidden]."""
        added: Tensor = self.down(self.inner(x))
        return added

    def inner(self, x: Tensor) -> Tensor:
        """The inner layer, behind the activation: [batch, ..., width]."""
        return self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the units of a wider network that do most, or the nearest matrices of this rank.

        What a unit does for `inputs` [batch, ..., hidden] is the mean size of what it gives, times the norm of its
        weights.
        """
        assert isinstance(original, FeedForward)
        self.take_norms(original)
        if self.rank is not None:
            for name in ("gate", "up", "down"):
                if getattr(self, name) is not None:
                    _nearest(getattr(self, name), getattr(original, name))
            return
        down, other_down = self.down, original.down
        assert isinstance(down, nn.Linear)
        assert isinstance(other_down, nn.Linear)
        sizes = original.inner(original.before(inputs[0])).abs().flatten(0, -2).mean(dim=0)
        best = (sizes * other_down.weight.norm(dim=0)).topk(down.in_features).indices.sort().values
        for layer, other in ((self.up, original.up), (self.gate, original.gate)):
            if layer is not None and other is not None:
                layer.load_state_dict({name: value[best] for name, value in other.state_dict().items()})
        down.weight.copy_(other_down.weight[:, best])
        if down.bias is not None:
            down.bias.copy_(other_down.bias)

    def splits(self) -> Splits:
        """By units of the inner layer; of matrices that are products, the outer ones are whole."""
        first, last = ("", "") if self.rank is None else (".1", ".0")
        splits: dict[str, SplitRule] = {f"up{first}": Column(), f"down{last}": Row()}
        return splits if self.gate is None else {f"gate{first}": Column(), **splits}


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
