"""How far two rankings agree, with bootstrap intervals over what is ranked.

Kendall's tau-b and Spearman's rho are scipy's. Intervals are percentile intervals (Efron & Tibshirani, An Introduction
to the Bootstrap, 1993, 13.3): the items are drawn again, with repeats, and everything is computed anew on each draw.
All statistics see the same draws, so that a difference of two is one statistic of the same items. What an interval does
not cover is the luck of a training: that is the spread between seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, spearmanr

Values = NDArray[np.float64]
Statistic = Callable[[Sequence[float] | Values, Sequence[float] | Values], float]
_LEVEL = 95.0


def tau(a: Sequence[float] | Values, b: Sequence[float] | Values) -> float:
    """Kendall's tau-b: 1 for the same order, -1 for the reverse, ties counted in; 0 where one side is all ties."""
    return _agreement(kendalltau, a, b)


def rho(a: Sequence[float] | Values, b: Sequence[float] | Values) -> float:
    """Spearman's rank correlation; 0 where one side is all ties."""
    return _agreement(spearmanr, a, b)


STATISTICS: dict[str, Statistic] = {"tau": tau, "rho": rho}


def _agreement(
    statistic: Callable[[Values, Values], Any], a: Sequence[float] | Values, b: Sequence[float] | Values
) -> float:
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if np.ptp(first) == 0 or np.ptp(second) == 0:  # scipy gives NaN: such a side orders nothing
        return 0.0
    return float(statistic(first, second).statistic)


class Draws:
    """The items as they are, then drawn again and again.

    Args:
        count: of items.
        resamples: how often they are drawn.
        seed: of the draws.
    """

    def __init__(self, count: int, *, resamples: int, seed: int = 0) -> None:
        generator = np.random.default_rng([seed, count])
        self._draws = [np.arange(count), *generator.integers(count, size=(resamples, count))]

    def of(
        self,
        statistic: Statistic,
        a: Sequence[float] | Values,
        b: Sequence[float] | Values,
    ) -> Values:
        """A statistic of two lists of values: of all items first, then of each draw [1 + resamples]."""
        first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
        return np.array([statistic(first[draw], second[draw]) for draw in self._draws])


def interval(values: Values) -> dict[str, float]:
    """The statistic of all items, and the 95 % interval.

    Args:
        values: as `Draws.of` gives them, or sums and differences of such.
    """
    low, high = (
        np.percentile(values[1:], [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2]) if len(values) > 1 else values[[0, 0]]
    )
    return {"value": round(float(values[0]), 4), "low": round(float(low), 4), "high": round(float(high), 4)}
