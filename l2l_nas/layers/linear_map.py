"""A linear map in place of a whole sub-layer."""

from __future__ import annotations

from torch import Tensor, nn

from l2l_nas.layers.attention import ParallelBlock
from l2l_nas.layers.least_squares import Moments, fit, fit_product, once
from l2l_nas.layers.style import Residual, Style
from l2l_nas.space.split import Column, Row, Splits


class LowRankMap(Residual):
    """A linear map as a residual sub-layer: the product of two matrices, of each token alone.

    Many sub-layers of trained models are nearly linear (arXiv 2405.12250), and a map fitted by least squares stands in
    for one (arXiv 2505.02819, which has it between whole blocks).

    Args:
        hidden: width of the outer layers.
        rank: numbers between the two matrices.
        style: of the model.

    Raises:
        ValueError: a rank below 1.
    """

    is_placewise = True  # see `l2l_nas.relay.extend`

    def __init__(self, hidden: int, rank: int, *, style: Style | None = None) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        if rank < 1:
            raise ValueError(f"a rank is at least 1, got {rank}")
        self.map = nn.Sequential(nn.Linear(hidden, rank, bias=False), nn.Linear(rank, hidden, bias=style.bias))
        style.draw(last=self.map)

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, ..., hidden] in and out; numbers of documents, which attention reads, change nothing."""
        return self.behind(x, self.added(self.before(x)))

    def added(self, x: Tensor) -> Tensor:
        """The sum that is added to the input, without norm: [batch, ..., hidden]."""
        added: Tensor = self.map(x)
        return added

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Be the map of this rank that gives most nearly what a sub-layer adds to `inputs`, as `forward` takes them.

        That is least squares, projected on the largest principal components of what they give: reduced-rank regression
        (Izenman, Journal of Multivariate Analysis 5, 1975). A block of two sub-layers that work on the same input is
        one sub-layer here.
        """
        part = original.attention if isinstance(original, ParallelBlock) else original
        assert isinstance(part, Residual)
        self.take_norms(part)
        has_bias = self.map[1].bias is not None
        whole, moments = once(f"map {has_bias}", (original, *inputs), lambda: _whole(part, original, inputs, has_bias))
        fit_product(self.map, whole, moments)

    def splits(self) -> Splits:
        """By numbers between the two matrices."""
        return {"map.0": Column(), "map.1": Row()}


def _whole(
    part: Residual, original: nn.Module, inputs: tuple[Tensor, ...], has_bias: bool
) -> tuple[nn.Linear, Moments]:
    """The map of full rank, and the sums that it is fitted to."""
    assert isinstance(original, ParallelBlock | Residual)
    moments = Moments.of(inputs, lambda x, *others: (part.before(x), original.adds(x, *others)))
    whole = nn.Linear(len(moments.taken), len(moments.given), bias=has_bias)
    nn.init.zeros_(whole.weight)
    if isinstance(original, LowRankMap):  # few rows change little
        whole.weight.copy_(original.map.get_parameter("1.weight") @ original.map.get_parameter("0.weight"))
    fit(whole, moments)
    return whole, moments
