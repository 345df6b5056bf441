"""Moments in fewer bytes: bfloat16. An update computes in float32 all the same."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from l2l_nas.arguments import check_word
from l2l_nas.eps.optimizers.base import Moments, Optimizer, StateTensor, Tensors, check_rule, rule_for
from l2l_nas.eps.optimizers.groups import Groups
from l2l_nas.errors import SettingError
from l2l_nas.space.parameters import Parameter

MOMENTS = ("fp32", "bf16")


@dataclass(frozen=True)
class LowPrecision:
    """An optimizer whose moments lie in fewer bytes. Those of a parameter are float32 while it is updated.

    Only float32 tensors of the parameter's shape are stored so: factors, such as Adafactor's, are small anyway.

    Args:
        rule: computes the updates.
        moments: "bf16".

    Raises:
        SettingError: another precision, or a rule of groups.
    """

    rule: Optimizer
    moments: str

    def __post_init__(self) -> None:
        check_word("moments", self.moments, MOMENTS[1:])
        if isinstance(self.rule, LowPrecision | Groups):
            raise SettingError("LowPrecision takes one rule; of groups, write Groups(LowPrecision(rule), groups)")
        check_rule("LowPrecision: rule", self.rule)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def is_elementwise(self) -> bool:
        return getattr(self.rule, "is_elementwise", True)

    def for_parameter(self, parameter: Parameter) -> Optimizer:
        return replace(self, rule=rule_for(self.rule, parameter))

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        return tuple(
            replace(tensor, dtype=torch.bfloat16)
            if tensor.dtype == torch.float32 and tuple(tensor.shape) == tuple(shape)
            else tensor
            for tensor in self.rule.state(shape)
        )

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        # parameter by parameter, so that one at a time is in float32
        for weight, gradient, step, *stored in zip(weights, gradients, steps, *moments, strict=True):
            dtypes = [tensor.dtype for tensor in self.rule.state(tuple(weight.shape))]
            full = [moment.to(dtype) for moment, dtype in zip(stored, dtypes, strict=True)]
            self.rule.update([weight], [gradient], [[moment] for moment in full], [step], lr=lr)
            for moment, updated in zip(stored, full, strict=True):
                if updated is not moment:  # which is stored in full
                    moment.copy_(updated)
