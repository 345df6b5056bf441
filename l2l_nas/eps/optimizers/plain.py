"""Update rules as `torch.optim` optimizers, for plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.rules import SGD, AdamW


class RuleOptimizer(torch.optim.Optimizer):
    """Any update rule as an optimizer of torch, of float32 parameters."""

    def __init__(self, rule: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.rule = rule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    for tensor in self.rule.state(tuple(parameter.shape)):
                        state[tensor.name] = torch.zeros(tensor.shape, dtype=tensor.dtype, device=parameter.device)
                moments = [[value] for name, value in state.items() if name != "step"]
                self.rule.update([parameter], [parameter.grad], moments, [state["step"]], lr=group["lr"])


def in_torch(rule: Optimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of torch that computes the same: torch's own where the rule is AdamW or SGD."""
    kinds: dict[type, Any] = {AdamW: torch.optim.AdamW, SGD: torch.optim.SGD}
    if type(rule) not in kinds:  # a subclass may compute something else
        return RuleOptimizer(rule, parameters)
    plain: torch.optim.Optimizer = kinds[type(rule)](parameters, lr=0.0, fused=True, **vars(rule))
    _start_momentum(plain, parameters)
    return plain


def add_to(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Have an optimizer of `in_torch` update further parameters."""
    optimizer.add_param_group({"params": parameters})
    _start_momentum(optimizer, parameters)


def _start_momentum(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Start from zeros, as torch does: its fused SGD raises where only some parameters have a momentum."""
    if isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["momentum"]:
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def moments_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a parameter in an optimizer of `in_torch`, by the names of `Optimizer.state`."""
    names = {"exp_avg": "moment0", "exp_avg_sq": "moment1", "momentum_buffer": "moment0"}
    return {names.get(name, name): value for name, value in state.items() if name != "step"}
