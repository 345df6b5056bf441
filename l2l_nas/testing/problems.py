"""A problem that trains in milliseconds, and searches on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.runs.api import SearchResult, search
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem

_WIDTH = 4


class _ToyBlock(nn.Module):
    def __init__(self, act: type[nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), act())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.body(x)
        return result


def small_pool(depth: int = 4) -> LayerPool:
    """Points of a plane in two classes; so many positions of tanh, relu and skip between two layers."""
    blocks = [Candidate("tanh", lambda: _ToyBlock(nn.Tanh)), Candidate("relu", lambda: _ToyBlock(nn.ReLU)), skip()]
    first = Position("first", Candidate("linear", lambda: nn.Linear(2, _WIDTH)))
    last = Position("last", Candidate("linear", lambda: nn.Linear(_WIDTH, 2)))
    return LayerPool([first, *(Position(f"p{i}", blocks) for i in range(depth)), last], inputs=TensorSpec((2,)))


def small_data(samples: int = 120) -> Data:
    """What it is trained on."""
    x = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return Data.from_arrays(x, (torch.sin(2 * x[:, 0]) > x[:, 1]).long())


def searched(folder: Path, problem: Problem | None = None, **said: Any) -> SearchResult:
    """A short search, into a folder."""
    short: dict[str, Any] = {
        "trials": 6, "warmup_steps": 4, "steps_per_trial": 2, "finalists": 2, "finalist_steps": 6,
        "trial_weights": "shared", "export": False, "train": {"batch_size": 16, "micro_batch": 16},
    }  # fmt: skip
    whole = Problem(small_pool(), small_data()) if problem is None else problem
    return search(whole, progress=False, **{**short, **said, "folder": str(folder)})
