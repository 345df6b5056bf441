"""What a caller of `search` gives as objects, in place of settings that name them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from l2l_nas.cost.own import OwnCost
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.storage import Storage
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.evaluation.early_stopping import EarlyStop
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import MakeSchedule


@dataclass(frozen=True)
class Objects:
    """What a caller gives as objects; None: what the settings name.

    Args:
        schedule: of the learning rate, made of a peak and a number of steps.
        callbacks: besides those that the settings name.
    """

    problem: Problem | None = None
    sampler: Any = None
    strategy: Sequence[Phase] | None = None
    early_stop: EarlyStop | None = None
    costs: Sequence[OwnCost | str] = ()
    storage: Storage | None = None
    optimizer: Optimizer | None = None
    schedule: MakeSchedule | None = None
    callbacks: Sequence[Callback | str] = ()
    executor: Executor | None = None
