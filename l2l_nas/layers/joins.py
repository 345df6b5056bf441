"""Layers that read several values: the nodes of a cell, the way up of a U-Net, a module whose inputs have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.space.split import Row, Splits


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

    Channels are `small` and `large`, and `large` out; the kernel is odd, so that height and width stay.
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

    def splits(self) -> Splits:
        """By channels in."""
        return {"conv": Row(is_input_whole=True)}


class ByName(nn.Module):
    """Calls a module with keyword arguments, and takes a part of what it returns.

    Args:
        module: what is called.
        names: of its arguments, in the order of the values that the position reads.
        output: index, key or attribute of what it returns; None for all of it.
        constants: further arguments, the same in every call, such as `use_cache=False`.
    """

    def __init__(
        self, module: nn.Module, names: Sequence[str], output: int | str | None = None, **constants: Any
    ) -> None:
        super().__init__()
        self.module, self.names, self.output, self.constants = module, tuple(names), output, constants

    def forward(self, *inputs: Tensor) -> Any:
        """One tensor for each name in; the module's output, or the part of it."""
        outputs = self.module(**dict(zip(self.names, inputs, strict=True)), **self.constants)
        if self.output is None:
            return outputs
        if isinstance(self.output, str) and not isinstance(outputs, dict):
            return getattr(outputs, self.output)
        return outputs[self.output]
