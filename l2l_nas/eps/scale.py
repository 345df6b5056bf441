"""Gradients before they are applied: their norm, clipping, and the scale that keeps fp16 gradients from vanishing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from l2l_nas.arguments import check_number, check_word


@dataclass(frozen=True)
class Clip:
    """Scale gradients down to a largest norm (Pascanu et al., arXiv 1211.5063, algorithm 1), as `clip_grad_norm_` does.

    Args:
        norm: the largest Euclidean norm.
        scope: "global", over the whole path, or "layer", over each state by itself.
    """

    norm: float
    scope: Literal["global", "layer"] = "global"

    def __post_init__(self) -> None:
        check_number("the largest gradient norm", self.norm, above=0)
        check_word("Clip: scope", self.scope, ("global", "layer"))

    def coefficient(self, norm: Tensor) -> float:
        """What to multiply gradients of this norm by."""
        return float(torch.clamp(self.norm / (norm + 1e-6), max=1.0))


def norms_of(gradients: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """The norm of each gradient, formed as `clip_grad_norm_` does: on an accelerator by one kernel for all of them."""
    return torch.stack(torch._foreach_norm(list(gradients)), out=out)


def are_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether no gradient has a NaN or inf."""
    if not gradients:
        return True
    device = gradients[0].device
    is_bad, factor = torch.zeros((), device=device), torch.ones((), device=device)
    # as torch's gradient scaler does, in one kernel; a product with 1 changes no bit
    torch._amp_foreach_non_finite_check_and_unscale_(list(gradients), is_bad, factor)
    return not is_bad.item()


def total_norm(norms: Sequence[Tensor] | Tensor) -> Tensor:
    """The norm of all gradients from the norms of each, as torch forms it: the order matters for the last bit."""
    if not isinstance(norms, Tensor):
        norms = torch.stack(list(norms)) if norms else torch.zeros(0)
    return torch.linalg.vector_norm(norms)


@dataclass
class LossScale:
    """The dynamic loss scale of mixed-precision training (Micikevicius et al., arXiv 1710.03740, section 3.2).

    A step whose gradients overflow is left out and the scale halved; `interval` good steps in a row double it.

    Args:
        scale: a power of two, which changes no bit of a gradient.
        good_steps: in a row, since the scale last changed.
    """

    scale: float = 65536.0
    interval: int = 2000
    good_steps: int = 0

    @property
    def is_lowest(self) -> bool:
        """Whether a smaller scale would not help against gradients that are not finite."""
        return self.scale <= 1.0

    def update(self, *, overflowed: bool) -> None:
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.scale = max(1.0, self.scale / 2)
        elif self.good_steps >= self.interval:
            self.scale, self.good_steps = self.scale * 2, 0

    def state(self) -> dict[str, float]:
        return {"scale": self.scale, "good_steps": float(self.good_steps)}

    def load(self, state: Mapping[str, float]) -> None:
        self.scale, self.good_steps = float(state["scale"]), int(state["good_steps"])
