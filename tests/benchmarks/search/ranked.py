"""A space of nine tiny networks whose stand-alone training takes milliseconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.settings import Settings
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem
from tests.benchmarks.stacks import TINY


def problem(
    width: int = 4, *, act: type[nn.Module] = nn.Tanh, norm: bool = False, seed: int = 0, **given: Any
) -> Problem:
    """Which side of a line points of the plane are on; with `norm`, a candidate has BatchNorm."""
    block = partial(_normed if norm else _dense, width)
    layers = [Candidate("dense", partial(block, act)), Candidate("linear", partial(block, nn.Identity)), skip()]
    positions = [
        Position("stem", Candidate("linear", partial(nn.Linear, 2, width))),
        *(Position(f"layer{index}", layers) for index in range(2)),
        Position("head", Candidate("linear", partial(nn.Linear, width, 2))),
    ]
    x = torch.randn(96, 2, generator=torch.Generator().manual_seed(seed))
    data = Data.from_arrays(x, (x[:, 0] > x[:, 1]).long(), validation_fraction=0.25, test_fraction=0.25)
    return Problem(LayerPool(positions, inputs=TensorSpec((2,))), data, **given)


def _dense(width: int, act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), act())


def _normed(width: int, act: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), act())


def settings(scratch: Path, **given: Any) -> Settings:
    """A ranking of that space in a second."""
    small = {"samplers": ("uniform", "fair"), "runs": 2, "seeds": 2, "training_steps": 3, "warmup_steps": 12}
    return Settings(work=TINY, **{"problem": problem(), "scratch": scratch, **small, **given})
