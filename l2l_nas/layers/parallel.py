"""A block of attention and a feed-forward network beside each other."""

from __future__ import annotations

from torch import Tensor, nn

from l2l_nas.layers.attention import Heads, SelfAttention
from l2l_nas.layers.feed_forward import FeedForward
from l2l_nas.layers.style import Cache, Style


class ParallelBlock(nn.Module):
    """Attention and a feed-forward network that both work on the block's input; their sum is added (GPT-NeoX).

    Args:
        hidden: width.
        heads: of attention.
        width: of the feed-forward network's inner layer.
        activation: a name in `ACTIVATIONS`.
        rank: of the feed-forward network's matrices; see `FeedForward`.
        style: of the model.
    """

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

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out; see `SelfAttention.forward`."""
        return self.attention(x, documents) + self._beside(x)

    def extend(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`."""
        outputs, cache = self.attention.extend(x, cache)
        return outputs + self._beside(x), cache

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the attention, and of the feed-forward network what a narrower one or one of this rank does."""
        assert isinstance(original, ParallelBlock)
        self.attention.begin_as(original.attention, inputs)
        self.feed_forward.begin_as(original.feed_forward, inputs)

    def _beside(self, x: Tensor) -> Tensor:
        network = self.feed_forward
        return network.changes(network.added(network.before(x)))
