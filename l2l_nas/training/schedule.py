"""Learning-rate schedules: plain functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from l2l_nas.errors import SettingError


@dataclass(frozen=True)
class Cosine:
    """A linear rise over the first steps, then half a cosine down to `floor` x peak (arXiv 1608.03983, equation 5).

    Args:
        peak: highest learning rate.
        steps: total number of steps.
        rise: share of the steps that the rise takes.
        floor: last learning rate over peak.
    """

    peak: float
    steps: int
    rise: float = 0.05
    floor: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.peak < math.inf:
            raise SettingError(f"the learning rate must be above 0, got {self.peak}")

    def at(self, step: int) -> float:
        """The learning rate of a step; past the end, the last one."""
        rising = max(1, round(self.rise * self.steps))
        if step < rising:
            return self.peak * (step + 1) / rising
        done = min(1.0, (step - rising) / max(1, self.steps - rising))
        return self.peak * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)
