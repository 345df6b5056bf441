"""Optimizers over flat blocks: torch's own fused kernels on views, so that results equal `torch.optim` bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from l2l_nas.errors import SettingError


class Optimizer(Protocol):
    """An update rule. Its state, apart from step counts, is a fixed number of tensors the size of the weights."""

    @property
    def name(self) -> str:
        """What checkpoints call it."""

    @property
    def num_moments(self) -> int:
        """How many tensors it keeps for each weight."""

    def update(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        steps: Sequence[Tensor],
        *,
        lr: float,
    ) -> None:
        """Change weights, moments and steps in place, each list one entry for each parameter.

        Args:
            moments: `num_moments` lists.
            steps: float32 scalars, how many updates each parameter has had; incremented here.
            lr: learning rate of this update.
        """


def _check_weight_decay(weight_decay: float) -> None:
    if not 0 <= weight_decay < math.inf:
        raise SettingError(f"weight_decay must be at least 0, got {weight_decay}")


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2): 8 bytes of moments a parameter."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise SettingError(f"betas must lie in [0, 1), got {self.betas}")
        _check_weight_decay(self.weight_decay)
        if not 0 < self.eps < math.inf:
            raise SettingError(f"eps must be above 0, got {self.eps}")

    name = "adamw"
    num_moments = 2

    def update(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        steps: Sequence[Tensor],
        *,
        lr: float,
    ) -> None:
        """One step; see `Optimizer.update`."""
        adamw(
            list(weights),
            list(gradients),
            list(moments[0]),
            list(moments[1]),
            [],
            list(steps),
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=lr,
            weight_decay=self.weight_decay,
            eps=self.eps,
            maximize=False,
        )


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum: 4 bytes of momentum a parameter, none without."""

    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise SettingError(f"momentum must lie in [0, 1), got {self.momentum}")
        _check_weight_decay(self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise SettingError("nesterov needs a momentum above 0")

    name = "sgd"

    @property
    def num_moments(self) -> int:
        """One with momentum, none without."""
        return 1 if self.momentum else 0

    def update(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        steps: Sequence[Tensor],
        *,
        lr: float,
    ) -> None:
        """One step; see `Optimizer.update`."""
        # A zero buffer gives momentum * 0 + gradient on the first step, which is what torch.optim.SGD starts with.
        buffers: list[Tensor | None] = list(moments[0]) if moments else [None] * len(weights)
        sgd(
            list(weights),
            list(gradients),
            buffers,
            has_sparse_grad=False,
            fused=True,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
        )
        for step in steps:
            step.add_(1)
