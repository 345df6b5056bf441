"""A layer that does what a test says, and a pool of such layers, to be probed."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.space.shapes import check_shapes

W = 4


class Layer(nn.Module):
    """A linear layer, and beside it what `prepare` and `run` do."""

    def __init__(self, prepare=None, run=None):
        super().__init__()
        self.linear = nn.Linear(W, W)
        self.run = run
        if prepare:
            prepare(self)

    def forward(self, x):
        return self.run(self, x) if self.run else self.linear(x)


def layer(prepare=None, run=None):
    return partial(Layer, prepare, run)


def pool_of(*factories, inputs=None):
    positions = [Position(f"p{i}", [Candidate("c", factory)]) for i, factory in enumerate(factories)]
    return LayerPool(positions, inputs=inputs or TensorSpec((W,)))


def check(*factories, inputs=None):
    return check_shapes(pool_of(*factories, inputs=inputs))


class Nonzero(nn.Linear):
    """Runs some samples only."""

    def forward(self, x):
        chosen = (x.sum(-1) > 0).nonzero()[:, 0]
        return torch.zeros_like(x).index_add(0, chosen, super().forward(x[chosen]))
