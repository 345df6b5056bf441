"""How many networks a score tells from the best one, by the rule of [Note: resolved].

The error of a difference is that of independent samples. Networks are scored on the same ones, so that it is rather too
large, and the trials' choice among many is no part of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.report.interval import is_resolved
from l2l_nas.report.results import Results

_FEW = 0.25  # of the others: scores that resolve no more tell little
_ADVICE = "train trials longer (search.steps_per_trial), or validate on more samples, to tell more of them apart"


@dataclass(frozen=True)
class Resolved:
    """Networks beside the best of them, by the first goal."""

    others: int
    differ: int  # of these, those whose difference is resolved
    error: float  # the standard error of the best one's score
    what: str  # they are, in words
    advice: str = ""  # what to do where few differ

    def to_json(self) -> dict[str, Any]:
        """As `result.json` holds it."""
        return {"others": self.others, "differ": self.differ, "standard_error": self.error}

    def sentence(self) -> str:
        """In words: "Other trials whose 95 % interval of the difference to the best one leaves out 0: 20 of 26"."""
        sentence = (
            f"Other {self.what} that differ from the best one (the 95 % interval of the difference leaves out 0): "
            f"{self.differ:,} of {self.others:,}"
        )
        return f"{sentence}; {self.advice}" if self.advice and self.differ < _FEW * self.others else sentence


def resolved(results: Results, count: int) -> dict[str, Resolved | None]:
    """Of "trials", and of "finalists" that were trained to the end; None where errors are not known.

    Args:
        count: of the groups of samples, or of the samples, of the validation part; 0: not known.
    """
    return {"trials": trials_resolved(results, count), "finalists": finalists_resolved(results, count)}


def trials_resolved(results: Results, count: int) -> Resolved | None:
    """Trials beside the best trial; None where the errors of their scores are not known."""
    goal = results.goals[0]
    known = [(one.values[goal.name], one.errors.get(goal.name)) for one in results.scored]
    best = (max if goal.maximize else min)(known, key=lambda pair: pair[0], default=None)
    return _beside(best, known, count, "trials", _ADVICE)


def finalists_resolved(results: Results, count: int) -> Resolved | None:
    """Those trained as long as the best beside it; None where errors are not known, or there are no others."""
    name = results.goals[0].name
    alike = [one for one in results.finalists if one.steps == results.finalists[0].steps]  # none without finalists
    known = [(one.compared_values[name], one.compared_error(name)) for one in alike if name in one.compared_values]
    return _beside(known[0] if known else None, known, count, "finalists trained as long")


def _beside(
    best: tuple[float, float | None] | None,
    scored: Sequence[tuple[float, float | None]],
    count: int,
    what: str,
    advice: str = "",
) -> Resolved | None:
    errors = [error for _, error in scored if error is not None]
    if best is None or best[1] is None or len(scored) < 2 or len(errors) < len(scored):
        return None
    found = zip((value for value, _ in scored), errors, strict=True)
    differ = sum(is_resolved(best[0] - value, math.hypot(best[1], error), count) for value, error in found)
    return Resolved(len(scored) - 1, differ, best[1], what, advice)
