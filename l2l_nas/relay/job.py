"""Jobs: a plan to carry out, with what its steps need to know and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.interface import MiniBatch
from l2l_nas.relay.lanes import CancelToken
from l2l_nas.relay.losses import Losses
from l2l_nas.relay.path import NumberedPath
from l2l_nas.relay.plan import Plan, UpdateOrder
from l2l_nas.relay.slots import Template
from l2l_nas.relay.stash import ArenaLayout
from l2l_nas.relay.visits import StepContext


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
        self.losses = self.losses or self.context.losses.read(self.context.layers)
        if self.context.scale == 1.0:
            self.losses.require_finite(self.number)
        return self.losses
