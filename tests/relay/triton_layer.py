"""A layer whose kernel runs on a GPU alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _double(source, target, numel, SIZE: tl.constexpr):
    places = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    is_inside = places < numel
    tl.store(target + places, 2 * tl.load(source + places, mask=is_inside), mask=is_inside)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), 256),)](x, result, x.numel(), SIZE=256)
    return result


class _Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _doubled(x.contiguous())

    @staticmethod
    def backward(ctx, gradient):
        return _doubled(gradient.contiguous())


class TritonDouble(nn.Module):
    """Its input, times two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Doubling.apply(x)
