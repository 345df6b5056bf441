"""Memory for gradients: blocks, and the views of a state's gradients in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l2l_nas.eps.layout import Layout

_REMEMBERED = 8  # layouts whose views a block remembers


class GradientViews(NamedTuple):
    """The gradients of one state in a block."""

    values: Tensor  # all of them, padding too
    gradients: tuple[Tensor, ...]  # by parameter; the version counter of each tells whether autograd wrote to it
    norms: Tensor
    layout: Layout


class GradientBlock:
    """Memory for a state's gradients, float32 and laid out as its masters, with their norms behind them."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory  # bytes, on any device
        self.read: Any = None  # a mark behind the update that read it on a device, for the stream that writes next
        self._views: dict[int, GradientViews] = {}  # by identity of a layout, which they keep alive

    def views(self, layout: Layout) -> GradientViews:
        views = self._views.get(id(layout))
        if views is None:
            if len(self._views) >= _REMEMBERED:
                self._views.clear()
            values, behind = self.memory[: layout.parameter_bytes], self.memory[layout.parameter_bytes :]
            norms = behind[: 4 * len(layout.parameters)].view(torch.float32)
            gradients = tuple(entry.view(values).data for entry in layout.parameters)
            views = GradientViews(values.view(torch.float32), gradients, norms, layout)
            self._views[id(layout)] = views
        return views


def gradient_bytes(layout: Layout) -> int:
    """Memory for a state's gradients and their norms."""
    return layout.parameter_bytes + 4 * len(layout.parameters)


def choose_block(free: Sequence[int], num_bytes: int) -> int | None:
    """The index of the free block to use: the smallest that is large enough, else the last; None if none is free.

    A new block then replaces the one that is too small, so that the number of blocks stays what a step needs.
    """
    fitting = [index for index, size in enumerate(free) if size >= num_bytes]
    if fitting:
        return min(fitting, key=free.__getitem__)
    return len(free) - 1 if free else None
