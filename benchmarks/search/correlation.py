"""How far two rankings agree, with bootstrap intervals over what is ranked.

Kendall's tau-b and Spearman's rho are scipy's. Intervals are percentile intervals (Efron & Tibshirani, An Introduction
to the Bootstrap, 1993, 13.3): the items are drawn again, with repeats, and the statistic is computed anew on each draw.
All statistics see the same draws, so that a difference of two is one statistic of the same items. What an interval does
not cover is the luck of a training: that is the spread between seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau, rankdata, spearmanr

Values = NDArray[np.float64]
_LEVEL = 95.0


def tau(a: ArrayLike, b: ArrayLike) -> float:
    """Kendall's tau-b: 1 for the same order, -1 for the reverse, ties taken out by side; 0 where one is all ties."""
    return _of_all(kendalltau, a, b)


def rho(a: ArrayLike, b: ArrayLike) -> float:
    """Spearman's rank correlation; 0 where one side is all ties."""
    return _of_all(spearmanr, a, b)


def _of_all(statistic: Callable[[Values, Values], Any], a: ArrayLike, b: ArrayLike) -> float:
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
        self._chosen = np.random.default_rng([seed, count]).integers(count, size=(resamples, count))
        rows = np.arange(resamples)[:, None]
        self._times = np.zeros((resamples, count))  # how often each draw has each item
        np.add.at(self._times, (rows, self._chosen), 1)

    def tau(self, a: ArrayLike, b: ArrayLike) -> Values:
        """Tau of all items first, then of each draw [1 + resamples].

        Sums over pairs of items, each pair as often as a draw has it: what scipy counts for one draw takes one product
        of matrices for all of them.
        """
        first, second = (np.sign(np.subtract.outer(side, side)) for side in map(np.asarray, (a, b)))
        same = self._pairs(first * second)
        ordered = self._pairs(first**2) * self._pairs(second**2)
        return np.concatenate([[tau(a, b)], _over_root(same, ordered)])

    def _pairs(self, matrix: Values) -> Values:
        return np.einsum("di,di->d", self._times @ matrix, self._times)

    def rho(self, a: ArrayLike, b: ArrayLike) -> Values:
        """Rho of all items first, then of each draw [1 + resamples]: the correlation of the ranks within the draw."""
        first, second = (rankdata(np.asarray(side)[self._chosen], axis=1) for side in (a, b))
        first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
        product = (first * second).sum(axis=1)
        return np.concatenate([[rho(a, b)], _over_root(product, (first**2).sum(axis=1) * (second**2).sum(axis=1))])


def _over_root(values: Values, squares: Values) -> Values:
    """Values over roots; 0 where the root is 0, as a side that is all ties orders nothing."""
    return np.divide(values, np.sqrt(squares), out=np.zeros_like(values), where=squares > 0)


def interval(values: Values) -> dict[str, float]:
    """The statistic of all items, and its 95 % interval.

    Args:
        values: as `Draws` gives them, or sums and differences of such.
    """
    low, high = np.percentile(values[1:], [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    return {"value": round(float(values[0]), 4), "low": round(float(low), 4), "high": round(float(high), 4)}
