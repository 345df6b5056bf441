"""Layers that read several values: the nodes of a cell, the way up of a U-Net."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Sum(nn.Module):
    """Adds what it reads, in that order."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Tensors of one shape, the same shape out."""
        for other in others:
            first = first + other
        return first


class Zero(nn.Module):
    """Zeros, whatever it reads: an edge of a cell that is not there."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, the same shape out."""
        return torch.zeros_like(x)


class UpBlock(nn.Module):
    """A small image made as large as another, beside it, and a convolution over both (arXiv 1505.04597, figure 1).

    Args:
        small: channels of the small image.
        large: channels of the large image, and out.
        kernel: odd, so that height and width stay.
    """

    def __init__(self, small: int, large: int, *, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(small + large, large, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(1, large)
        self.act = nn.ReLU()

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        """[batch, small, height, width] and [batch, large, height, width]; the second shape out."""
        enlarged = functional.interpolate(x, size=skipped.shape[2:], mode="nearest")
        return self.act(self.norm(self.conv(torch.cat((enlarged, skipped), dim=1))))
