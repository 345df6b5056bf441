"""Feed-forward networks, as residual sub-layers."""

from __future__ import annotations

import copy
from functools import partial

from torch import Tensor, nn

from l2l_nas.layers.least_squares import Moments, fit, fit_product, kept_units, once
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

    is_placewise = True  # see `l2l_nas.relay.extend`

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
        """Take over the units of a wider network that cost most to remove, or the nearest matrices of this rank.

        The last layer is fitted by least squares to what the original adds for `inputs` [batch, ..., hidden]; see
        `l2l_nas.layers.least_squares`.
        """
        assert isinstance(original, FeedForward)
        self.take_norms(original)
        whole = original.down
        assert isinstance(whole, nn.Linear)
        if self.rank is None:
            self._take_units(original, whole, inputs[:1])
        else:
            self._take_products(original, whole, inputs[:1])

    def _take_units(self, original: FeedForward, whole: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(self.down, nn.Linear)
        adds = partial(_adds, original, original)
        moments = once("units", (original, *inputs), lambda: Moments.of(inputs, adds))
        best = kept_units(whole.weight, moments.about(self.down), self.down.in_features)
        for layer, other in ((self.up, original.up), (self.gate, original.gate)):
            if layer is not None and other is not None:
                layer.load_state_dict({name: value[best] for name, value in other.state_dict().items()})
        self.down.weight.copy_(whole.weight[:, best])
        is_alike = self.activation is original.activation and (self.gate is None) == (original.gate is None)
        fit(self.down, moments.some(best) if is_alike else Moments.of(inputs, partial(_adds, self, original)))

    def _take_products(self, original: FeedForward, whole: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        taken = partial(Moments.of, inputs, lambda x: (original.before(x), x[..., :0]))
        moments = once("inputs", (original, *inputs), taken)
        for layer, other in ((self.up, original.up), (self.gate, original.gate)):
            if layer is not None and other is not None:
                assert isinstance(other, nn.Linear)
                fit_product(layer, other, moments)
        last = copy.deepcopy(whole)
        moments = Moments.of(inputs, partial(_adds, self, original))
        fit(last, moments)
        fit_product(self.down, last, moments)

    def splits(self) -> Splits:
        """By units of the inner layer; of matrices that are products, the outer ones are whole."""
        first, last = ("", "") if self.rank is None else (".1", ".0")
        splits: dict[str, SplitRule] = {f"up{first}": Column(), f"down{last}": Row()}
        return splits if self.gate is None else {f"gate{first}": Column(), **splits}


def _linear(inside: int, outside: int, bias: bool, rank: int | None) -> nn.Module:
    if rank is None:
        return nn.Linear(inside, outside, bias=bias)
    return nn.Sequential(nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=bias))


def _adds(network: FeedForward, original: FeedForward, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the last layer of a network takes, and what the original adds."""
    normed = original.before(x)
    taken = network.inner(normed)
    return taken, original.down(taken if network is original else original.inner(normed))
