"""The losses of a training step: added up on the device, read once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.errors import NonFiniteError
from l2l_nas.space.pool import Layer


@dataclass(frozen=True)
class Losses:
    """The losses of a step, on the host."""

    task: float
    auxiliary: float  # the sum of all others
    bad: tuple[str | None, ...]  # of those that are not finite, the layer that added it; None for the task's

    def require_finite(self, step: int) -> None:
        """Refuse a step whose losses are not finite; of an auxiliary loss the error names the layer."""
        if self.bad:
            raise NonFiniteError("auxiliary loss" if self.bad[0] else "loss", layer=self.bad[0], step=step)


@dataclass
class LossSums:
    """The losses of a step so far, on the device."""

    task: Tensor | None = None  # of micro-batches, each divided by the count of all targets
    auxiliary: dict[int, Tensor] = field(default_factory=dict)  # by layer, each times the share of its micro-batch

    def add_task(self, loss: Tensor) -> None:
        self.task = loss.detach() if self.task is None else self.task + loss.detach()

    def add_auxiliary(self, place: int, losses: Sequence[Tensor], share: float) -> None:
        for loss in losses:
            part = loss.detach() * share
            self.auxiliary[place] = self.auxiliary[place] + part if place in self.auxiliary else part

    def read(self, layers: Sequence[Layer]) -> Losses:
        """Copy all of them to the host at once."""
        if self.task is None:
            return Losses(0.0, 0.0, ())
        keys = (None, *(layers[place].key for place in self.auxiliary))
        if self.auxiliary:
            values = torch.stack([loss.reshape(()) for loss in (self.task, *self.auxiliary.values())]).tolist()
        else:
            values = [self.task.item()]
        bad = tuple(key for key, value in zip(keys, values, strict=True) if not math.isfinite(value))
        return Losses(values[0], sum(values[1:]), bad)
