"""Jobs: a plan to carry out, with what its steps need to know and what came of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip
from l2l_nas.errors import NonFiniteError
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.interface import MiniBatch
from l2l_nas.relay.lanes import CancelToken
from l2l_nas.relay.path import NumberedPath
from l2l_nas.relay.plan import Plan, UpdateOrder
from l2l_nas.relay.slots import Template
from l2l_nas.relay.stash import ArenaLayout
from l2l_nas.relay.visits import StepContext


@dataclass(frozen=True)
class Losses:
    """What came from the device of a step's losses.

    Args:
        task: the task's own.
        auxiliary: the sum of all others.
        bad: the layer whose auxiliary loss is not finite; None where the task's own is not, or all are.
    """

    task: float
    auxiliary: float
    is_finite: bool
    bad: str | None

    @classmethod
    def of(cls, context: StepContext) -> Losses:
        """All in one copy."""
        named: list[tuple[str | None, torch.Tensor]] = [(None, context.loss)] if context.loss is not None else []
        named += [(context.layers[place].key, loss) for place, loss in context.auxiliary.items()]
        found = torch.stack([loss.detach().reshape(()) for _, loss in named]).tolist() if named else []
        bad = [key for (key, _), value in zip(named, found, strict=True) if not math.isfinite(value)]
        return cls(found[0] if found else 0.0, sum(found[1:]), not bad, bad[0] if bad else None)


@dataclass(kw_only=True)
class PlanJob:
    """A plan to carry out, and what its steps need to know.

    Attributes:
        states: where layers come from.
        path: says what the plan's numbers are.
        number: of the training step, for messages; -1 where nothing is trained.
    """

    plan: Plan
    context: StepContext
    states: StateAccess
    path: NumberedPath
    number: int = -1
    cancel: CancelToken = field(default_factory=CancelToken)


@dataclass(kw_only=True)
class ForwardJob(PlanJob):
    """Forward visits alone.

    Args:
        visit: what is done with the template of each place.
    """

    visit: Callable[[int, Template], None]


@dataclass(kw_only=True)
class TrainJob(PlanJob):
    """A training step.

    Attributes:
        batch: what is learned from, its targets on the device.
        arena: where values lie.
        losses: once they came from the device.
        check: of all gradients, once CHECK is done.
        updated: states that were updated.
    """

    batch: MiniBatch
    arena: ArenaLayout
    lr: float
    update: UpdateOrder
    clip: Clip | None = None
    losses: Losses | None = None
    check: GradientCheck | None = None
    updated: list[str] = field(default_factory=list)

    def require_finite_loss(self) -> Losses:
        """Raise NonFiniteError unless the loss and auxiliary losses are finite, or may become so with a lower scale.

        Asked before any gradient is used.
        """
        self.losses = self.losses or Losses.of(self.context)
        if not self.losses.is_finite and self.context.scale == 1.0:
            what = "auxiliary loss" if self.losses.bad else "loss"
            raise NonFiniteError(what, layer=self.losses.bad, step=self.number)
        return self.losses
