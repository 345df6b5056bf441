"""What the inner layers of sub-layers give for a calibration text, feature by feature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Features:
    """Sums over all tokens of what a linear layer takes, each [inside], in float64."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.total, self.squares, self.sizes = (torch.zeros(width, dtype=torch.float64) for _ in range(3))

    def add(self, inputs: Tensor) -> None:
        """Inputs [..., inside]."""
        rows = inputs.detach().flatten(0, -2).double()
        self.count += len(rows)
        self.total += rows.sum(dim=0)
        self.squares += rows.square().sum(dim=0)
        self.sizes += rows.abs().sum(dim=0)

    @property
    def mean(self) -> Tensor:
        """Of each feature."""
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        """Of each feature, over tokens."""
        return (self.squares / self.count - self.mean.square()).clamp(min=0)


@contextmanager
def watched(layers: Sequence[nn.Linear]) -> Iterator[list[Features]]:
    """The features of what these layers take while the context lasts."""
    found = [Features(layer.in_features) for layer in layers]

    def adding(features: Features) -> Callable[..., None]:
        def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            features.add(inputs[0])

        return add

    hooks = [layer.register_forward_pre_hook(adding(one)) for layer, one in zip(layers, found, strict=True)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
