"""Whether tensors that were computed in two ways are equal, or differ by no more than rounding does."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# of the largest number of a tensor, and of all gradients: what rounding may come to after sums in another order
_ROUNDING = 1e-2
_NOISE = 1e-6


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two outputs are equal; NaN is equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool((one.eq(other) | (one.isnan() & other.isnan())).all())


def is_near(got: Tensor, expected: Tensor, noise: float = 0.0) -> bool:
    """Whether numbers that were computed in another way differ by no more than rounding does, and this noise."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if torch.equal(got, expected):
        return True
    if not (expected.is_floating_point() or expected.is_complex()):
        return False
    finite = expected.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return False
    return _largest((got - expected)[finite]) <= _ROUNDING * _largest(expected) + noise


def noise_of(gradients: Iterable[Tensor]) -> float:
    """The most that rounding may leave in a gradient that should be zero, beside others of the same backward."""
    return _NOISE * max(map(_largest, gradients), default=0.0)


def some_gradient(output: Tensor) -> Tensor:
    """A gradient of an output to try a backward with: random, as the sum of what a normalisation gives has none."""
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
