"""What rankings are worth beside the truth: agreement by statistic, its intervals and its spread between seeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.search.correlation import Draws, Values, interval

# as many as a search passes to its finalists
FINALISTS = 6

# by statistic, an array [rankings, 1 + resamples]
Agreement = Mapping[str, Values]


class Truth:
    """What each architecture reached alone, and how far rankings agree with it.

    Args:
        alone: by architecture and seed [architectures][seeds], more is better.
        parameters: of each architecture.
        resamples: of the bootstrap.
    """

    def __init__(self, alone: Sequence[Sequence[float]], parameters: Sequence[int], *, resamples: int = 1000) -> None:
        self._by_seed = np.asarray(alone, dtype=float)
        self._mean = self._by_seed.mean(axis=1)
        self._parameters = np.asarray(parameters, dtype=float)
        self._draws = Draws(len(alone), resamples=resamples)
        self._of_parameters = self._agreement([(self._parameters, self._mean)])

    def spread(self) -> dict[str, float]:
        """Standard deviations: between architectures, and between trainings of one."""
        return {
            "between_architectures": round(float(self._mean.std(ddof=1)), 5),
            "between_seeds": round(float(np.sqrt(self._by_seed.var(axis=1, ddof=1).mean())), 5),
        }

    def controls(self) -> dict[str, dict[str, Any]]:
        """What the parameter count reaches, and one seed against another and against the mean of the others."""
        seeds = list(self._by_seed.T)
        others = [(one, np.delete(self._by_seed, index, axis=1).mean(axis=1)) for index, one in enumerate(seeds)]
        return {
            "parameters": {**_summary(self._of_parameters), "regret": self._regret([self._parameters])},
            "seed_against_seed": _summary(self._agreement(list(itertools.combinations(seeds, 2)))),
            "seed_against_the_others": _summary(self._agreement(others)),
        }

    def rows(self, scores: Mapping[str, Sequence[Sequence[float]]]) -> list[dict[str, Any]]:
        """How far the scores of each sampler's supernets agree with the truth, and how much further than parameters.

        Args:
            scores: by sampler [supernets][architectures], more is better.
        """
        agreements = {name: self._agreement([(run, self._mean) for run in runs]) for name, runs in scores.items()}
        return [
            {
                "sampler": name,
                **_summary(agreement),
                "over_parameters": {
                    statistic: interval(values.mean(axis=0) - self._of_parameters[statistic][0])
                    for statistic, values in agreement.items()
                },
                "over": {other: _difference(agreement, agreements[other]) for other in scores if other != name},
                "regret": self._regret(scores[name]),
            }
            for name, agreement in agreements.items()
        ]

    def _agreement(self, pairs: Sequence[tuple[Sequence[float] | Values, Sequence[float] | Values]]) -> Agreement:
        return {
            "tau": np.array([self._draws.tau(a, b) for a, b in pairs]),
            "rho": np.array([self._draws.rho(a, b) for a, b in pairs]),
        }

    def _regret(self, rankings: Sequence[Sequence[float] | Values]) -> float:
        """How far the best of the six ranked highest stays below the best of all, mean over rankings."""
        highest = (np.argsort(-np.asarray(ranking), kind="stable")[:FINALISTS] for ranking in rankings)
        return round(float(self._mean.max()) - statistics.fmean(float(self._mean[six].max()) for six in highest), 5)


def _summary(agreement: Agreement) -> dict[str, dict[str, Any]]:
    """By statistic: mean over rankings with its interval over items, and each ranking's with their deviation."""
    return {
        name: {
            **interval(values.mean(axis=0)),
            "each": [round(float(value), 4) for value in values[:, 0]],
            "sd": _deviation(values[:, 0]),
        }
        for name, values in agreement.items()
    }


def _difference(one: Agreement, other: Agreement) -> dict[str, dict[str, float]]:
    """By statistic: difference of the means with its interval over items, and its standard error over rankings."""
    return {
        name: {
            **interval(values.mean(axis=0) - other[name].mean(axis=0)),
            "se": round(
                (_deviation(values[:, 0]) ** 2 / len(values) + _deviation(other[name][:, 0]) ** 2 / len(other[name]))
                ** 0.5,
                4,
            ),
        }
        for name, values in one.items()
    }


def _deviation(values: Values) -> float:
    return round(float(values.std(ddof=1)), 4) if len(values) > 1 else 0.0
