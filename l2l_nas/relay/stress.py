"""Stress: delays in the lanes and poison in free slots, so that a missing wait shows as a wrong number.

Or a pace: each piece of work takes as long as on a machine of known rates, as the benchmark `simulator` asks.
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
        longest_delay_s: the most that a piece of work is delayed; most are delayed less.
        slow: by operation ("load", "send", ...), the delay in seconds of each piece of work, in place of a random one.
        pace: gives the least time in seconds that a piece of work takes, by its operation and its layer or state.
        is_poisoning: whether free slots are poisoned; a lane does that, so it takes time too.
    """

    seed: int = 0
    longest_delay_s: float = 0.001
    slow: Mapping[str, float] = field(default_factory=dict)
    pace: Callable[[str, str], float] | None = None
    is_poisoning: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def delay_s(self, op: str) -> float:
        return self.slow.get(op, self.longest_delay_s * self._random.random() ** 3)

    def poison(self, *blocks: Tensor) -> None:
        """Fill blocks of bytes with NaNs, in every floating dtype."""
        for block in blocks:
            block.fill_(0xFF)
