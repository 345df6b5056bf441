"""A small pool and trials of it, as a search would leave them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool

ACCURACY = Goal("accuracy", maximize=True)
LOSS = Goal("loss", maximize=False)
PARAMETERS = Goal("parameters", maximize=False)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def small_pool(depth: int = 3, *, shared: bool = False, prefix: str = "") -> LayerPool:
    """A stem, `depth` positions of linear, wide and skip, a head: 20, 20 and 76, 10 parameters."""
    candidates = [
        Candidate(f"{prefix}linear", partial(nn.Linear, 4, 4)),
        Candidate(f"{prefix}wide", wide),
        skip(f"{prefix}skip"),
    ]
    return LayerPool(
        [
            Position("stem", [Candidate("stem", partial(nn.Linear, 4, 4, bias=True))]),
            *(Position(f"{prefix}layer_{index:02d}", candidates) for index in range(depth)),
            Position("head", [Candidate("head", partial(nn.Linear, 4, 2))]),
        ],
        inputs=TensorSpec((4,)),
        shared=shared,
    )


def trial(number: int, values: Mapping[str, float] | None = None, *middle: str, cached: bool = False) -> TrialRecord:
    """A complete trial, or a failed one where there are no values."""
    architecture = Architecture(("stem", *(middle or ("linear", "wide", "skip")), "head"))
    return TrialRecord(number, architecture, State.COMPLETE if values else State.FAILED, values or {}, cached=cached)


def some_trials() -> list[TrialRecord]:
    """Seven trials: 0, 2, 5, 6 complete, 3 cached, 1 failed, 4 pruned; 2 is the best, 2, 5 and 6 are the front."""
    pruned = TrialRecord(4, Architecture(("stem", "wide", "wide", "wide", "head")), State.PRUNED, reason="too big")
    return [
        trial(0, {"accuracy": 0.5, "loss": 2.0, "parameters": 126}),
        trial(1),
        trial(2, {"accuracy": 0.9, "loss": 0.5, "parameters": 12345}, "wide", "wide", "skip"),
        trial(3, {"accuracy": 0.5, "loss": 2.0, "parameters": 126}, cached=True),
        pruned,
        trial(5, {"accuracy": 0.7, "loss": 1.0, "parameters": 126}, "wide", "linear", "skip"),
        trial(6, {"accuracy": 0.6, "loss": 1.5, "parameters": 70}, "linear", "linear", "skip"),
    ]
