"""Rotary positions (arXiv 2104.09864), and how their rates are stretched to texts longer than those of the training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """How a head's numbers turn with the place of a token.

    Raises:
        ValueError: a number that makes no sense.
    """

    base: float  # number i of a head of n turns by `base ** (-2 * i / n)` a place
    share: float = 1.0  # of the head's numbers that turn, from its begin; the others stay
    kind: str = "default"  # how rates are stretched, a name in `STRETCHES`
    factor: float = 1.0  # by how much
    original: int = 1  # the longest text before
    # turns within that text, between which the stretch begins and ends: `low_freq_factor` and `high_freq_factor` of
    # llama3, `beta_slow` and `beta_fast` of yarn (arXiv 2309.00071, section 3.2)
    low: float = 1.0
    high: float = 4.0
    is_whole: bool = True  # yarn: whether these are rounded to whole numbers of the head
    scale: float = 1.0  # of cosines and sines

    def __post_init__(self) -> None:
        if self.kind not in STRETCHES:
            raise ValueError(f"rotary positions of kind '{self.kind}'; known are {', '.join(STRETCHES)}")
        least = int(self.kind == "yarn")  # which divides by the base's logarithm
        if not least < self.base < math.inf:
            raise ValueError(f"the base of rotary positions is a finite number above {least}, got {self.base}")
        if not (0 <= self.share <= 1 and 0 < self.low < self.high < math.inf and 0 <= self.scale < math.inf):
            raise ValueError("a share is at most 1, turns are above 0 and in order, a scale is finite")
        if not (0 < self.factor < math.inf and self.original >= 1):
            raise ValueError("rotary positions are stretched by a finite factor above 0, from at least 1 place")

    def turning(self, size: int) -> int:
        """How many of a head's numbers turn."""
        return int(size * self.share)

    def table(self, start: int, length: int, *, size: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of places from `start` on, [length, turning]; computed in float32.

        The halves of what turns belong together, as in published llama weights.
        """
        turning = self.turning(size)
        rates = self.base ** -(torch.arange(0, turning, 2, device=like.device, dtype=torch.int64).float() / turning)
        rates = STRETCHES[self.kind](self, rates)
        angles = torch.arange(start, start + length, device=like.device).float()[:, None] * rates
        angles = torch.cat((angles, angles), dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        if self.scale != 1:
            cosine, sine = cosine * self.scale, sine * self.scale
        return cosine.to(like.dtype), sine.to(like.dtype)


def _llama3(rotary: Rotary, rates: Tensor) -> Tensor:
    """Slow rates are divided, fast ones stay, those between are mixed."""
    turns = rotary.original * rates / (2 * math.pi)
    share = ((turns - rotary.low) / (rotary.high - rotary.low)).clamp(0, 1)
    return (1 - share) * rates / rotary.factor + share * rates


def _yarn(rotary: Rotary, rates: Tensor) -> Tensor:
    """Mix rates as `_llama3` does, but between numbers of the head, not between rates."""
    turning = 2 * len(rates)

    def number(turns: float) -> float:
        return turning * math.log(rotary.original / (turns * 2 * math.pi)) / (2 * math.log(rotary.base))

    first, last = number(rotary.high), number(rotary.low)
    if rotary.is_whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, turning - 1)
    last = last + 0.001 if first == last else last
    divided = ((torch.arange(len(rates), device=rates.device).float() - first) / (last - first)).clamp(0, 1)
    return rates / rotary.factor * divided + rates * (1 - divided)


STRETCHES: Mapping[str, Callable[[Rotary, Tensor], Tensor]] = {
    "default": lambda rotary, rates: rates,
    "linear": lambda rotary, rates: rates / rotary.factor,
    "llama3": _llama3,
    "yarn": _yarn,
}


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads [..., length, size], of which as many numbers as there are angles turn by those of their place."""
    turning = cosine.shape[-1]
    if turning < x.shape[-1]:
        return torch.cat((rotated(x[..., :turning], cosine, sine), x[..., turning:]), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine
