"""Metrics of one part of the data, each with its standard error.

[Note: error bars] A standard error says by how much a metric would vary had other samples been drawn, for the network
as it is: not by how much another training of it would. It is found by leaving out one group of samples after the other
(the jackknife: Efron and Stein, The Annals of Statistics 9(3), 1981), which needs nothing of a metric but that it can
be measured on a part of the samples. For accuracy it comes to sqrt(p (1 - p) / n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Split

# left out one after the other; more give a steadier estimate and take longer
_GROUPS = 50

# of the data that results tell of
PARTS = ("validation", "test")

Measure = Callable[[Batch, Tensor], dict[str, float]]


class Scorer(Protocol):
    """A `Trainer`, as far as it measures."""

    def score(self, architecture: Architecture, split: Split) -> Score:
        """All metrics of a split, and their standard errors."""


@dataclass(frozen=True)
class Score:
    """What was measured on one part of the data.

    Args:
        values: all metrics, by name; empty if they could not be measured.
        errors: the standard error of each, by name; of a metric that cannot be measured on a part of the samples, or on
            one sample alone, there is none.
        problem: why something is missing.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a message to another process holds it."""
        return {"values": dict(self.values), "errors": dict(self.errors), "problem": self.problem}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Score:
        """The other way round."""
        return cls(dict(content["values"]), dict(content["errors"]), content["problem"])


def by_part(scores: Mapping[str, Score]) -> dict[str, Any]:
    """Metrics and standard errors by part of the data, as results and logs hold them; null for what is not known."""
    found: dict[str, Any] = {}
    errors: dict[str, Any] = {}
    for part in PARTS:
        score = scores.get(part)
        known = score is not None and bool(score.values)
        found[part] = dict(score.values) if score is not None and known else None
        errors[part] = dict(score.errors) if score is not None and known else None
    problems = {part: score.problem for part, score in scores.items() if score.problem}
    return {**found, "standard_error": errors, **({"problems": problems} if problems else {})}


def tested(trainer: Scorer, architecture: Architecture, test: Split) -> Score:
    """The score on a part of the data that decides nothing: whatever is wrong with it is told, and refuses nothing."""
    try:
        score = trainer.score(architecture, test)
    except DataError as error:
        return Score({}, problem=f"not measured on the test data: {error}")
    bad = [f"{name} is {value}" for name, value in score.values.items() if not math.isfinite(value)]
    return Score({}, problem=f"on the test data, {', '.join(bad)}") if bad else score


def score_of(measure: Measure, outputs: Batch, targets: Tensor) -> Score:
    """All metrics of these outputs, and their standard errors.

    Raises:
        DataError: as `measure`, on all samples.
    """
    values = measure(outputs, targets)
    try:
        return Score(values, standard_errors(measure, outputs, targets))
    except DataError as error:  # a metric of the user's own: it costs the error bar, not the result
        return Score(values, problem=f"no error bars: on a part of the samples, {error}")


def standard_errors(measure: Measure, outputs: Batch, targets: Tensor) -> dict[str, float]:
    """The standard error of each metric, by a delete-a-group jackknife. See [Note: error bars].

    Samples are dealt out to min(samples, 50) groups at random, the same way every time: in the order of the data, where
    samples of a class may come one after the other, groups would be more alike than chance makes them, and the error
    too small.

    Args:
        measure: all metrics of outputs and targets.
        outputs: tensors whose first dimension is the sample.
        targets: likewise.

    Returns:
        By name; without those that are not finite on every part, and empty for fewer than two samples.
    """
    samples = len(targets)
    groups = min(samples, _GROUPS)
    if groups < 2:
        return {}
    group_of = torch.randperm(samples, generator=torch.Generator().manual_seed(0)) % groups
    without = []
    for group in range(groups):
        rest = (group_of != group).nonzero().flatten()
        without.append(measure(tuple(tensor[rest] for tensor in outputs), targets[rest]))
    found = {}
    for name in without[0]:
        values = [one[name] for one in without]
        mean = math.fsum(values) / groups
        error = math.sqrt((groups - 1) / groups * math.fsum((value - mean) ** 2 for value in values))
        if math.isfinite(error):
            found[name] = error
    return found
