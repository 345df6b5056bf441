"""How many networks a score tells from the best one: those whose difference is larger than its standard error.

[Note: shares] Trials are scored without standard errors, which would take as long as two training steps. Of a share of
samples, such as accuracy, the error follows from the score and the number of samples. That a metric is such a share is
seen by finalists, whose errors were measured: they are what they must be then. Of other metrics nothing is said.

The error of a difference is that of independent samples. Networks are scored on the same ones, so that it is rather too
large, and the trials' choice among many is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.report.network import VALIDATION, Network
from l2l_nas.report.results import Results

# times the variance that a share has, within which those measured lie in the mean: measured on groups, they scatter
_ALIKE = 0.7, 1.4


@dataclass(frozen=True)
class Resolved:
    """Networks beside the best of them, by the first goal."""

    others: int
    differ: int  # of these, by more than the standard error of the difference
    error: float  # the standard error of the best one's score
    what: str  # they are, in words

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return {"others": self.others, "differ": self.differ, "standard_error": self.error}

    def sentence(self) -> str:
        """In words: "Other trials that differ from the best one by more than ...: 20 of 26"."""
        return (
            f"Other {self.what} that differ from the best one by more than the standard error of the difference: "
            f"{self.differ:,} of {self.others:,}"
        )


def resolved(results: Results, samples: int) -> dict[str, Resolved | None]:
    """Of "trials", and of "finalists" that were trained to the end; None where errors are not known.

    Args:
        samples: of the validation part.
    """
    return {"trials": trials_resolved(results, samples), "finalists": finalists_resolved(results)}


def trials_resolved(results: Results, samples: int) -> Resolved | None:
    """Trials beside the best trial; None where the errors of their scores are not known. See [Note: shares]."""
    goal = results.goals[0]
    values = [record.values[goal.name] for record in results.scored]
    could_be = all(0 <= value <= 1 for value in values)
    if len(values) < 2 or not could_be or not _is_share(results.finalists, goal.name, samples):
        return None
    scored = [(value, math.sqrt(value * (1 - value) / samples)) for value in values]
    return _beside((max if goal.maximize else min)(scored), scored, "trials")


def finalists_resolved(results: Results) -> Resolved | None:
    """Those trained as long as the best beside it; None where errors are not known, or there are no others."""
    name = results.goals[0].name
    alike = [one for one in results.finalists if one.steps == results.finalists[0].steps]  # none without finalists
    scored = [(one.compared_values[name], one.compared_error(name)) for one in alike if name in one.compared_values]
    known = [(value, error) for value, error in scored if error is not None]
    if len(known) < 2 or len(known) < len(alike):
        return None
    return _beside(known[0], known, "finalists trained as long")


def _beside(best: tuple[float, float], scored: Sequence[tuple[float, float]], what: str) -> Resolved:
    differ = sum(abs(best[0] - value) > math.hypot(best[1], error) for value, error in scored)
    return Resolved(len(scored) - 1, differ, best[1], what)


def _is_share(finalists: Sequence[Network], metric: str, samples: int) -> bool:
    """Whether the errors of finalists are those of a share of so many samples. See [Note: shares]."""
    found = []
    for one in finalists:
        value, error = one.part(VALIDATION).get(metric), one.error(VALIDATION, metric)
        if value is not None and error is not None and 0 < value < 1:
            found.append(error**2 * samples / (value * (1 - value)))
    return bool(found) and _ALIKE[0] <= math.fsum(found) / len(found) <= _ALIKE[1]
