"""Update rules over views of flat blocks, by the functions that `torch.optim` computes with.

AdamW, SGD, Adafactor and Muon equal `torch.optim` bit for bit, Lion equals `lion_pytorch.Lion`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.optim._adafactor import adafactor
from torch.optim._muon import muon
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from l2l_nas.arguments import check_count, check_flag, check_number, check_sizes, check_word
from l2l_nas.eps.optimizers.base import (
    Moments,
    Optimizer,
    StateTensor,
    Tensors,
    check_pair,
    check_rates,
    like_weights,
)
from l2l_nas.errors import SettingError
from l2l_nas.space.parameters import Parameter


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2): 8 bytes of moments a parameter."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        check_pair("betas", self.betas)
        check_rates("betas", *self.betas)
        check_number("weight_decay", self.weight_decay, least=0)
        check_number("eps", self.eps, above=0)

    name = "adamw"

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        return like_weights(shape, 2)  # the gradient's mean, and that of its square

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
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
        check_rates("momentum", self.momentum)
        check_number("weight_decay", self.weight_decay, least=0)
        check_flag("nesterov", self.nesterov)
        if self.nesterov and self.momentum == 0:
            raise SettingError("nesterov needs a momentum above 0")

    name = "sgd"

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        return like_weights(shape, 1 if self.momentum else 0)

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
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


@dataclass(frozen=True)
class Lion:
    """The sign of an interpolated momentum (arXiv 2302.06675, algorithm 2): 4 bytes of momentum a parameter.

    It wants a learning rate about ten times smaller than AdamW's, and a weight decay as many times larger.
    """

    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_pair("betas", self.betas)
        check_rates("betas", *self.betas)
        check_number("weight_decay", self.weight_decay, least=0)

    name = "lion"

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        return like_weights(shape, 1)

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        beta1, beta2 = self.betas
        for weight, gradient, momentum, step in zip(weights, gradients, moments[0], steps, strict=True):
            weight.mul_(1 - lr * self.weight_decay)
            weight.add_((momentum * beta1).add_(gradient, alpha=1 - beta1).sgn_(), alpha=-lr)
            momentum.mul_(beta2).add_(gradient, alpha=1 - beta2)
            step.add_(1)


@dataclass(frozen=True)
class Adafactor:
    """Second moments as an outer product of row and column means (arXiv 1804.04235, algorithm 4, as torch has it).

    It keeps 4 bytes for each row and each column of a weight's last two dimensions, and 4 for each element of a vector.
    The learning rate bounds the relative step: the step is it times the size of the weights.

    Args:
        beta2_decay: the second moment's decay at update t is 1 - t ** beta2_decay; below 0.
        eps: the least root of a second moment, None for float32's own epsilon; and the least size of weights.
        clip: the largest root mean square of an update before the learning rate.
    """

    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    clip: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_number("beta2_decay", self.beta2_decay, most=0)
        check_pair("eps", self.eps)
        for eps in self.eps if self.eps[0] is not None else self.eps[1:]:
            check_number("eps", eps, least=0)
        check_number("clip", self.clip, least=1)
        check_number("weight_decay", self.weight_decay, least=0)

    name = "adafactor"
    is_elementwise = False

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        shape = check_sizes("shape", shape)
        if len(shape) < 2:
            return (StateTensor("variance", shape),)
        rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
        return StateTensor("row_variance", rows), StateTensor("column_variance", columns)

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        for weight, gradient, step, *factors in zip(weights, gradients, steps, *moments, strict=True):
            rows, columns, variance = (*factors, None) if len(factors) == 2 else (None, None, *factors)
            adafactor(
                [weight],
                [gradient],
                [rows],
                [columns],
                [variance],
                [step],
                foreach=False,
                d=self.clip,
                lr=lr,
                beta2_decay=self.beta2_decay,
                weight_decay=self.weight_decay,
                eps1=self.eps[0],  # type: ignore[arg-type]
                eps2=self.eps[1],
                maximize=False,
            )


def updates_many(rule: Optimizer) -> bool:
    """Whether one call may update parameters of many states: each to the same bits as alone, by as few kernels."""
    return type(rule) in (AdamW, SGD, Lion)


SCALES = ("match_rms_adamw", "original")
# of the quintic iteration; steepest at zero (kellerjordan.github.io/posts/muon)
_QUINTIC = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Muon:
    """Momentum made orthogonal, for hidden matrices (kellerjordan.github.io/posts/muon): 4 bytes a parameter.

    Weights of convolutions are matrices of (outputs, all the rest), as in the author's own code. Experts that lie in
    one weight (experts, rows, columns) are a matrix each: see `Parameter.is_experts`. What is no matrix needs another
    rule: `muon_with_adamw` gives it AdamW.

    Args:
        scale: of an update by the matrix's shape. `match_rms_adamw` (arXiv 2502.16982, section 2.2) makes it as large
            as AdamW's, so that both take one learning rate; `original` is the author's.
        iterations: of Newton and Schulz, in bfloat16.
        eps: the least norm that an update is divided by.
    """

    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    scale: str = "match_rms_adamw"
    iterations: int = 5
    eps: float = 1e-7
    _of_experts: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        check_rates("momentum", self.momentum)
        check_number("weight_decay", self.weight_decay, least=0)
        check_word("scale", self.scale, SCALES)
        check_flag("nesterov", self.nesterov)
        check_flag("_of_experts", self._of_experts)
        check_count("iterations", self.iterations, least=1, most=99)
        check_number("eps", self.eps, above=0)

    name = "muon"
    is_elementwise = False

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        shape = check_sizes("shape", shape)
        if len(shape) < 2:
            raise SettingError(f"muon updates matrices, not a parameter of shape {shape}; write muon_with_adamw()")
        return like_weights(shape, 1)

    def for_parameter(self, parameter: Parameter) -> Muon:
        """Raises SettingError: it is not known which of the parameter's dimensions make a matrix."""
        if parameter.is_experts:
            return replace(self, _of_experts=True)
        if len(parameter.shape) > 2 and not parameter.is_convolution:
            raise SettingError(
                f"{parameter.path} {list(parameter.shape)} is neither a convolution nor experts, so muon cannot know "
                "which of its dimensions make a matrix; write muon_with_adamw(), or give its group another rule"
            )
        return self

    def update(self, weights: Tensors, gradients: Tensors, moments: Moments, steps: Tensors, *, lr: float) -> None:
        for weight, *others, step in zip(weights, gradients, moments[0], steps, strict=True):
            matrices = self._matrices(weight)
            muon(
                matrices,
                *map(self._matrices, others),
                lr=lr,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                nesterov=self.nesterov,
                ns_coefficients=_QUINTIC,
                ns_steps=self.iterations,
                eps=self.eps,
                adjust_lr_fn=self.scale,
                has_complex=False,
            )
            if matrices[0].data_ptr() != weight.data_ptr():  # a copy, as of a weight in channels_last
                weight.copy_(matrices[0].view_as(weight))
            step.add_(1)

    def _matrices(self, tensor: Tensor) -> list[Tensor]:
        return list(tensor.unbind()) if self._of_experts else [tensor.flatten(1)]
