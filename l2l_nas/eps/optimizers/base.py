"""What an update rule is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from l2l_nas.arguments import check_kind, check_list, check_number, check_sizes, refuse_class
from l2l_nas.errors import SettingError
from l2l_nas.space.parameters import Parameter

Tensors = Sequence[Tensor]
Moments = Sequence[Tensors]


@dataclass(frozen=True)
class StateTensor:
    """A tensor that an update rule keeps for a parameter, at first zeros.

    Args:
        name: what checkpoints call it, a word; `moment0`, `moment1` by custom.

    Raises:
        SettingError: a name that is no word, or that weights and buffers have.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        check_kind("StateTensor: name", self.name, str, wanted="text")
        check_sizes("StateTensor: shape", self.shape)
        check_kind("StateTensor: dtype", self.dtype, torch.dtype, wanted="a dtype, such as torch.float32")
        if not self.name.isidentifier() or self.name in ("weights", "buffers", "steps", "visits"):
            raise SettingError(f"StateTensor: name takes a word such as moment0, got {self.name!r}")


@runtime_checkable
class Optimizer(Protocol):
    """An update rule. It holds no tensors itself: its state lies with the weights, wherever those live.

    A rule that needs a whole weight, not each of its elements alone, says `is_elementwise = False`. A rule that depends
    on what a weight is for has a method `for_parameter(parameter)`, which returns the rule to use: see `rule_for`.
    Groups of parameters may replace the `weight_decay` of a rule that is a dataclass.
    """

    @property
    def name(self) -> str:
        """The name in checkpoints."""

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        """What the rule keeps for a float32 parameter of this shape, besides the count of its updates.

        Raises:
            SettingError: the rule cannot update such a parameter.
        """

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        """Change weights, moments and steps in place, each list one entry for each parameter.

        Parameters of one call have tensors of the same names in their state.

        Args:
            weights, gradients: float32. Gradients stay as they are: they may be applied again.
            moments: a list for each tensor that `state` names, in that order.
            steps: float32 scalars, how many updates each parameter has had; incremented here.
        """


def rule_for(rule: Optimizer, parameter: Parameter) -> Optimizer:
    """What the `for_parameter` of a rule returns, or the rule itself."""
    for_parameter = getattr(rule, "for_parameter", None)
    return rule if for_parameter is None else for_parameter(parameter)


def like_weights(shape: tuple[int, ...], count: int) -> tuple[StateTensor, ...]:
    """Moments of the parameter's own shape, in float32."""
    return tuple(StateTensor(f"moment{index}", shape) for index in range(count))


def check_rule(name: str, rule: object) -> None:
    """Raises SettingError: this is no optimizer; a class has the methods of one, but no numbers."""
    refuse_class(name, rule)
    check_kind(name, rule, Optimizer, wanted="an optimizer, such as AdamW()")


def check_rates(name: str, *values: float) -> None:
    """Raises SettingError: the decay of a moving average does not lie in [0, 1)."""
    for value in values:
        if not 0 <= check_number(name, value) < 1:
            raise SettingError(f"{name} must lie in [0, 1), got {value}")


def check_pair(name: str, values: Sequence[object]) -> None:
    """Raises SettingError: this is no list of two."""
    if len(check_list(name, values, of=object, wanted="two numbers")) != 2:
        raise SettingError(f"{name} takes two numbers, got {values!r}")
