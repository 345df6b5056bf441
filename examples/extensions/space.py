"""A space of your own: layers, data, a constraint and a cost.

`python -m l2l_nas search space.pool=examples/extensions/space.py:build objectives=[accuracy,activations]`
"""

from functools import partial

import torch
from torch import nn

from l2l_nas import Architecture, Candidate, Data, LayerPool, Position, Problem, Require, TensorSpec, skip


class Residual(nn.Module):
    """x + act(linear(x)) of [batch, width]."""

    def __init__(self, width: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), act())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def activations(architecture: Architecture) -> float:
    """A cost: how many layers are not skipped. Less is better."""
    return sum(name in ("relu", "tanh") for name in architecture.choices)


def build(width: int = 16, depth: int = 4, samples: int = 600) -> Problem:
    x = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    y = (torch.sin(2 * x[:, 0]) > x[:, 1]).long()
    relu, tanh = (Candidate(act.__name__.lower(), partial(Residual, width, act)) for act in (nn.ReLU, nn.Tanh))
    first, last = Candidate("linear", lambda: nn.Linear(2, width)), Candidate("linear", lambda: nn.Linear(width, 2))
    middle = [Position(f"layer_{i}", [relu, tanh, skip()]) for i in range(depth)]
    pool = LayerPool([Position("first", first), *middle, Position("last", last)], inputs=TensorSpec((2,)))
    limit = Require("a tanh", lambda architecture: "tanh" in architecture.choices)
    return Problem(pool, Data.from_arrays(x, y), constraints=(limit,), costs={"activations": activations})
