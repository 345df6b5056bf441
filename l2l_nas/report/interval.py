"""When two figures differ: the one rule of this package.

[Note: resolved] A difference is resolved where its 95 % interval leaves out 0. The interval is Student's (The probable
error of a mean, Biometrika 6, 1908): the difference, plus and minus t times its standard error, with one degree of
freedom less than there are seeds; of one run, than there are samples, or groups of samples that belong together. Where
pairs exist, such as two searches of one seed, the error is that of the paired differences.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
_MANY = 1_000_000  # stands for a number that is not known: Student's t is the normal distribution's there


def reach(error: float, count: int) -> float:
    """How far the 95 % interval reaches to each side; infinite for fewer than two.

    Args:
        error: the standard error.
        count: of the seeds, or of the groups of samples, that it is over; 0: not known, but many.
    """
    from scipy.special import stdtrit  # scipy takes half a second, and few pages need it

    return float(stdtrit((count or _MANY) - 1, (1 + LEVEL) / 2)) * error if count != 1 else math.inf


def is_resolved(difference: float, error: float, count: int) -> bool:
    """Whether a difference is shown; see [Note: resolved]. The arguments are those of `reach`."""
    return abs(difference) > reach(error, count)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    standard_error: float
    low: float  # low, high: the interval that has the true mean in 95 of 100 such experiments
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of two values at least, one of each seed; where pairs exist, of their differences."""
        mean = statistics.fmean(values)
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = reach(error, len(values))
        return cls(mean, error, mean - half, mean + half)

    @property
    def is_resolved(self) -> bool:
        """Whether the mean differs from 0. Values that are all equal have no spread that would make an interval."""
        return self.standard_error > 1e-9 * abs(self.mean) and not self.low <= 0 <= self.high

    def to_json(self) -> dict[str, float]:
        """As `result.json` has it."""
        return {"mean": self.mean, "standard_error": self.standard_error, "low": self.low, "high": self.high}
