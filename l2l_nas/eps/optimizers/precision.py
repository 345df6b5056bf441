"""Moments in fewer bytes: bfloat16, or 8-bit codes by block. An update computes in float32 all the same.

[Note: 8 bits] A moment is cut into blocks of 256 elements. Each block has its largest magnitude as float32, and each
element a code: the nearest of 256 numbers in [-1, 1] (of 256 in [0, 1], where none is negative) times that magnitude.
The numbers lie densely near zero: seven powers of ten, each divided evenly, with twice as many parts in each larger one
(dynamic quantisation, Dettmers et al., arXiv 2110.02861, section 2 and figure 2, as bitsandbytes and torchao build it).
Tensors below 4,096 elements stay in float32, as there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from l2l_nas.eps.optimizers.base import Optimizer, StateTensor, check_rule, rule_for
from l2l_nas.eps.optimizers.groups import Groups
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.space.parameters import Parameter

MOMENTS = ("fp32", "bf16", "8bit")

BLOCK = 256
_LEAST_NUMEL = 4096
_LEAST_SCALE = 1e-12
_HOST = torch.device("cpu")


@functools.cache
def code_values(device: torch.device = _HOST, *, signed: bool) -> Tensor:
    """The 256 numbers that codes stand for, ascending, float32."""
    if device != _HOST:
        return code_values(signed=signed).to(device)
    found = [0.0, 1.0]
    for power in range(7):
        parts = 2 ** (power if signed else power + 1)
        edges = torch.linspace(0.1, 1, parts + 1)
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (power - 6)).tolist()
        found += middles + ([-one for one in middles] if signed else [])
    return torch.tensor(sorted(found))


@functools.cache
def _tables(device: torch.device = _HOST, *, signed: bool) -> tuple[Tensor, Tensor]:
    """By the upper 16 bits of a float32, the code of the least such number; and by code, where the next one begins.

    One code at most begins between two numbers of the same upper 16 bits. Two reads find a code, in a tenth of
    the time of a binary search.
    """
    if device != _HOST:
        codes, edges = _tables(signed=signed)
        return codes.to(device), edges.to(device)
    values = code_values(signed=signed)
    edges = torch.cat((values[:-1] + (values[1:] - values[:-1]) * 0.5, torch.tensor([math.inf])))
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    least = torch.where(upper < 0, upper | 0xFFFF, upper).view(torch.float32)
    codes = torch.bucketize(least.nan_to_num(nan=0.0), edges[:-1], right=True)
    return codes.to(torch.uint8), edges


def _nearest(values: Tensor, *, signed: bool) -> Tensor:
    """The codes of numbers in [-1, 1], all of them in one dimension; uint8."""
    first, edges = _tables(values.device, signed=signed)
    codes = first.index_select(0, (values.view(torch.int32) >> 16) & 0xFFFF)
    return codes.add_(values >= edges.index_select(0, codes.int()))


def encode(values: Tensor, codes: Tensor, scales: Tensor, *, signed: bool) -> None:
    """Write float32 values as codes and scales, in place.

    Args:
        codes: uint8, as many as values.
        scales: float32, one for each block.
    """
    flat = values.reshape(-1)
    padded = flat if flat.numel() == scales.numel() * BLOCK else _padded(flat, scales.numel() * BLOCK)
    blocks = padded.view(-1, BLOCK)
    torch.amax(blocks.abs(), dim=1, out=scales)
    scales.clamp_(min=_LEAST_SCALE)
    found = _nearest((blocks / scales[:, None]).view(-1), signed=signed)
    codes.view(-1).copy_(found[: flat.numel()])


def decode(codes: Tensor, scales: Tensor, *, signed: bool) -> Tensor:
    """The float32 values of codes and scales, in the codes' shape."""
    flat = code_values(codes.device, signed=signed).index_select(0, codes.reshape(-1).int())
    padded = _padded(flat, scales.numel() * BLOCK)
    padded.view(-1, BLOCK).mul_(scales[:, None])
    return padded[: codes.numel()].view(codes.shape)


def _padded(flat: Tensor, numel: int) -> Tensor:
    return flat if flat.numel() == numel else torch.cat((flat, flat.new_zeros(numel - flat.numel())))


@dataclass(frozen=True)
class LowPrecision:
    """An optimizer whose moments lie in fewer bytes. Each parameter's are float32 while it is updated.

    Only float32 tensors of the parameter's own shape are stored so: factors, as Adafactor's, are small anyway.

    Args:
        rule: computes the updates.
        moments: "bf16", or "8bit"; see [Note: 8 bits].

    Raises:
        SettingError: another precision, or a rule of groups.
    """

    rule: Optimizer
    moments: str = "8bit"

    def __post_init__(self) -> None:
        if self.moments not in MOMENTS[1:]:
            raise SettingError(f"moments: no '{self.moments}'{did_you_mean(self.moments, MOMENTS)}")
        if isinstance(self.rule, LowPrecision | Groups):
            raise SettingError("LowPrecision takes one rule; of groups, write Groups(LowPrecision(rule), groups)")
        check_rule("LowPrecision: rule", self.rule)

    @property
    def name(self) -> str:
        """See `Optimizer`."""
        return self.rule.name

    @property
    def is_elementwise(self) -> bool:
        """Whether the rule's updates are."""
        return getattr(self.rule, "is_elementwise", True)

    def for_parameter(self, parameter: Parameter) -> Optimizer:
        """See `rule_for`."""
        return replace(self, rule=rule_for(self.rule, parameter))

    def state(self, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        """See `Optimizer.state`."""
        return tuple(stored for tensor in self.rule.state(shape) for stored in self._stored(tensor, shape))

    def _stored(self, tensor: StateTensor, shape: tuple[int, ...]) -> tuple[StateTensor, ...]:
        if tensor.dtype != torch.float32 or tensor.shape != shape:
            return (tensor,)
        if self.moments == "bf16":
            return (StateTensor(tensor.name, shape, torch.bfloat16, tensor.signed),)
        numel = math.prod(shape)
        if numel < _LEAST_NUMEL:
            return (tensor,)
        codes = StateTensor(f"{tensor.name}_codes", shape, torch.uint8, tensor.signed)
        return codes, StateTensor(f"{tensor.name}_scales", (-(-numel // BLOCK),))

    def update(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Sequence[Tensor]],
        steps: Sequence[Tensor],
        *,
        lr: float,
    ) -> None:
        """One step; see `Optimizer.update`. Parameter by parameter, so that one at a time is in float32."""
        for index, (weight, gradient, step) in enumerate(zip(weights, gradients, steps, strict=True)):
            held = iter([tensors[index] for tensors in moments])
            shape = tuple(weight.shape)
            stored, full = [], []
            for tensor in self.rule.state(shape):
                own = [next(held) for _ in self._stored(tensor, shape)]
                stored.append(own)
                full.append(_in_full(own, tensor))
            self.rule.update([weight], [gradient], [[one] for one in full], [step], lr=lr)
            for tensor, own, values in zip(self.rule.state(shape), stored, full, strict=True):
                _store(values, own, tensor)


def _in_full(stored: Sequence[Tensor], tensor: StateTensor) -> Tensor:
    if len(stored) == 2:
        return decode(stored[0], stored[1], signed=tensor.signed)
    return stored[0].to(tensor.dtype)  # itself, where it is stored in full


def _store(values: Tensor, stored: Sequence[Tensor], tensor: StateTensor) -> None:
    if len(stored) == 2:
        encode(values, stored[0], stored[1], signed=tensor.signed)
    elif values is not stored[0]:
        stored[0].copy_(values)
