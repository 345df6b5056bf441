"""Stress: random delays in the lanes and poison in what is free, so that a missing wait shows as a wrong number.

Pace: every piece of work takes as long as it would on a machine of known rates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Stress:
    """How lanes are disturbed.

    Args:
        seed: of the delays.
        longest_delay_s: each piece of work is delayed by up to so much, most of them less.
        slow: by operation ("load", "send", ...), a delay in seconds for every one of them.
        pace: by operation and layer or state, the least time in seconds that a piece of work takes.
        is_poisoning: whether what is free is poisoned; that is work of a lane, too.
    """

    seed: int = 0
    longest_delay_s: float = 0.001
    slow: Mapping[str, float] = field(default_factory=dict)
    pace: Callable[[str, str], float] | None = None
    is_poisoning: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def delay_s(self, op: str) -> float:
        """How long a piece of work of that kind is delayed."""
        return self.slow.get(op, self.longest_delay_s * self._random.random() ** 3)

    def poison(self, *blocks: Tensor) -> None:
        """Fill blocks of bytes with NaNs, in every floating dtype."""
        for block in blocks:
            block.fill_(0xFF)
