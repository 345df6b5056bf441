"""Metrics of one part of the data, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from l2l_nas.errors import DataError
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.samples import Samples

# of the data that results tell of
PARTS = ("validation", "test")


class Scorer(Protocol):
    """A `Trainer`, as far as it measures."""

    def score(self, architecture: Architecture, split: Samples) -> Score:
        """All metrics of a split, and their standard errors."""


@dataclass(frozen=True)
class Score:
    """What was measured on one part of the data."""

    values: Mapping[str, float]  # all metrics, by name; empty if they could not be measured
    # the standard error of each, by name; of a metric that cannot be measured on a part of the samples, or on one
    # sample alone, there is none
    errors: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""  # why something is missing

    def to_json(self) -> dict[str, Any]:
        return {"values": dict(self.values), "errors": dict(self.errors), "problem": self.problem}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Score:
        return cls(dict(content["values"]), dict(content["errors"]), content["problem"])


def by_part(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Metrics and standard errors by part of the data, as results and logs hold them; null for what is not known."""
    known = {part: score for part, score in scores.items() if score.values}
    values, errors = (
        {part: dict(getattr(known[part], name)) if part in known else None for part in PARTS}
        for name in ("values", "errors")
    )
    problems = {part: score.problem for part, score in scores.items() if score.problem}
    return {**values, "standard_error": errors, **({"problems": problems} if problems else {})}


def tested(trainer: Scorer, architecture: Architecture, test: Samples) -> Score:
    """The score on a part of the data that decides nothing: what is wrong with it is reported, and refuses nothing."""
    try:
        score = trainer.score(architecture, test)
    except DataError as error:
        return Score({}, problem=f"not measured on the test data: {error}")
    bad = {name: f"{name} is {value}" for name, value in score.values.items() if not math.isfinite(value)}
    if not bad:
        return score
    # outputs without a loss are no numbers, whatever other metrics make of them
    left = {} if "loss" in bad else {name: value for name, value in score.values.items() if name not in bad}
    errors = {name: error for name, error in score.errors.items() if name in left}
    return Score(left, errors, f"on the test data, {', '.join(bad.values())}")
