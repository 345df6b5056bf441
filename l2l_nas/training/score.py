"""Metrics of one part of the data, each with its standard error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# of the data that results tell of
PARTS = ("validation", "test")


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
