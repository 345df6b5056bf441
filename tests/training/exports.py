"""Networks to export, in milliseconds."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Problem, Regression, TensorSpec
from l2l_nas.training.data import Data, Split


def made(pool, choices):
    architecture = pool.architecture(choices)
    return ParamServer(pool, optimizer=AdamW(), seed=0), architecture


def linear_problem(kind: type[nn.Module], samples=5):
    pool = LayerPool([Position("a", Candidate("x", partial(kind, 2, 2)))], inputs=TensorSpec((2,)))
    x = torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))
    return Problem(pool, Data(Split((x,), x), Split((x,), x)), Regression())
