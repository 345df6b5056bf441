"""Residual blocks for images [batch, channels, height, width].

All begin with a norm and add to their input, so that any sequence of them trains. GroupNorm keeps no running
statistics, which shared weights would spoil: every path through a supernet has statistics of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.layers.style import ACTIVATIONS
from l2l_nas.space.split import Channels, Column, Dropped, Grouped, Row, SplitRule, Splits


class _ImageBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width], the same shape out."""
        return x + self._added(self.norm(x))

    def _added(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class ConvBlock(_ImageBlock):
    """x + conv(relu(norm(x))); the kernel is odd, so that height and width stay."""

    def __init__(self, channels: int, *, kernel: int = 3) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)

    def _added(self, x: Tensor) -> Tensor:
        return self.conv(self.act(x))

    def splits(self) -> Splits:
        """By channels in."""
        return {"conv": Row(is_input_whole=True)}


class SeparableBlock(_ImageBlock):
    """x + pointwise(depthwise(relu(norm(x)))): a convolution of a channel each, then one across channels.

    The kernel is odd, so that height and width stay.
    """

    def __init__(self, channels: int, *, kernel: int = 3) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)

    def _added(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(self.act(x)))

    def splits(self) -> Splits:
        """By channels in."""
        return {"depthwise": Grouped(is_input_whole=True), "pointwise": Row()}


class ResidualMLP(_ImageBlock):
    """x + a two-layer perceptron on the channels of every pixel.

    Args:
        expansion: hidden channels over channels.
        dropout: probability on the hidden channels.
    """

    def __init__(self, channels: int, *, expansion: int = 2, dropout: float = 0.0) -> None:
        super().__init__(channels)
        self.up = nn.Conv2d(channels, expansion * channels, 1)
        self.act = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Conv2d(expansion * channels, channels, 1)

    def _added(self, x: Tensor) -> Tensor:
        return self.down(self.dropout(self.act(self.up(x))))

    def splits(self) -> Splits:
        """By hidden channels."""
        return {"up": Column(), "dropout": Dropped(along=1), "down": Row()}


class CoarseBlock(_ImageBlock):
    """x + enlarged(conv(relu(halved(norm(x))))): a convolution of 3x3 at half the height and width.

    A last odd row or column is halved by itself.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.halve = nn.AvgPool2d(2, ceil_mode=True)
        self.act = nn.ReLU()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def _added(self, x: Tensor) -> Tensor:
        coarse = self.conv(self.act(self.halve(x)))
        return nn.functional.interpolate(coarse, size=x.shape[2:], mode="nearest")

    def splits(self) -> Splits:
        """By channels in."""
        return {"conv": Row(is_input_whole=True)}


class PoolBlock(_ImageBlock):
    """x + average_pool(norm(x)), over 3x3 pixels, at the borders over those that there are."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def _added(self, x: Tensor) -> Tensor:
        return self.pool(x)


class AttentionBlock(_ImageBlock):
    """x + projection(attention(norm(x))): every pixel attends to all of them (arXiv 1706.03762, equation 1), one head.

    Queries, keys and values are as wide as there are channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def _added(self, x: Tensor) -> Tensor:
        # written out: for so narrow a head torch's fused attention takes three times as long on a CPU
        query, key, value = self.qkv(x).flatten(2).chunk(3, dim=1)
        weights = torch.softmax(query.transpose(1, 2) @ key * x.shape[1] ** -0.5, dim=-1)
        return self.out((value @ weights.transpose(1, 2)).reshape(x.shape))


class InvertedResidual(nn.Module):
    """narrow(depthwise(widen(x))), added to x where it has its shape, with BatchNorm after each convolution.

    MobileNetV2's block (arXiv 1801.04381, section 3.3); with squeeze-and-excitation MobileNetV3's (arXiv 1905.02244,
    section 5.3). As BatchNorm's running statistics are of one path, paths of shared weights are measured anew.

    Args:
        width: channels between; where it is `channels`, nothing widens.
        kernel: of the depthwise convolution, odd.
        out: channels; None: as many as in.
        stride: of the depthwise convolution; sizes are rounded up.
        activation: a name in `ACTIVATIONS`.
        is_squeezed: whether channels are weighed by what a network of a quarter of their width makes of their means.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        kernel: int,
        *,
        out: int | None = None,
        stride: int = 1,
        activation: str = "relu6",
        is_squeezed: bool = False,
    ) -> None:
        super().__init__()
        out = out or channels
        self.activation, self.is_added = ACTIVATIONS[activation], stride == 1 and out == channels
        self.widen = nn.Conv2d(channels, width, 1, bias=False) if width != channels else None
        self.norm = nn.BatchNorm2d(width) if width != channels else None
        self.depthwise = nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False)
        self.after = nn.BatchNorm2d(width)
        quarter = max(1, width // 4)
        self.squeeze = nn.Conv2d(width, quarter, 1) if is_squeezed else None
        self.excite = nn.Conv2d(quarter, width, 1) if is_squeezed else None
        self.narrow, self.last = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] in, [batch, out, height / stride, width / stride] out."""
        wide = x
        if self.widen is not None and self.norm is not None:
            wide = self.activation(self.norm(self.widen(x)))
        wide = self.activation(self.after(self.depthwise(wide)))
        if self.squeeze is not None and self.excite is not None:
            inner = nn.functional.relu(self.squeeze(wide.mean(dim=(2, 3), keepdim=True)))
            wide = wide * nn.functional.hardsigmoid(self.excite(inner))
        added: Tensor = self.last(self.narrow(wide))
        return x + added if self.is_added else added

    def splits(self) -> Splits:
        """By channels between; the norm of what is added is whole."""
        is_input_whole = self.widen is None
        splits: dict[str, SplitRule] = {} if is_input_whole else {"widen": Column(), "norm": Channels()}
        splits |= {"depthwise": Grouped(is_input_whole=is_input_whole), "after": Channels(), "narrow": Row()}
        return splits | {"squeeze": Row(), "excite": Column()} if self.squeeze is not None else splits
