"""Stress: random delays in the lanes and poison in what is free, so that a missing wait shows as a wrong number."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Stress:
    """How lanes are disturbed.

    Args:
        seed: of the delays.
        longest_delay_s: each piece of work is delayed by up to so much, most of them less.
        slow: by operation ("load", "send", ...), a delay in seconds for every one of them.
    """

    seed: int = 0
    longest_delay_s: float = 0.001
    slow: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def delay_s(self, op: str) -> float:
        """How long a piece of work of that kind is delayed."""
        return self.slow.get(op, self.longest_delay_s * self._random.random() ** 3)

    def poison(self, *blocks: Tensor) -> None:
        """Fill blocks of bytes with NaNs, in every floating dtype."""
        for block in blocks:
            block.fill_(0xFF)
