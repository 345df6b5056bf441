"""A network as the report tells of it: what it scored as a trial, and what it is worth after a training of its own.

The two are never mixed: a trial's score comes from weights that many networks share, or that were trained a little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from l2l_nas.cost.table import UNITS
from l2l_nas.nas.objectives import Goal, TrialRecord, comparison, dominates
from l2l_nas.report.interval import is_resolved
from l2l_nas.report.text import format_value, with_error
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.score import PARTS

VALIDATION, TEST = PARTS
COMPARED = "compared_by"  # the part's name of errors of the means that networks are compared by


@dataclass(frozen=True)
class Network:
    """An architecture and what it is worth."""

    trial: int  # number of the trial that found it
    architecture: Architecture  # canonical
    # metrics on the weights that the trial had; empty where they are not known
    trial_score: Mapping[str, float] = field(default_factory=dict)
    # metrics of the validation data after training of its own; None where it was not trained
    validation: Mapping[str, float] | None = None
    test: Mapping[str, float] | None = None  # the same of the test data; None where there is no such part
    # standard errors by part ("validation", "test") and metric, where they are known
    standard_error: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)  # by name
    steps: int = 0  # of that training; 0 where they are not known, and all were trained alike
    # metrics of the validation data that it had on its way, by steps
    rungs: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # by part: why figures of it are missing
    # means over the last validations, which networks are compared by, where there are any; and how many they were
    compared_by: Mapping[str, float] = field(default_factory=dict)
    num_validations: int = 0

    @property
    def is_trained(self) -> bool:
        """Whether it was trained by itself, as a finalist."""
        return self.validation is not None

    @property
    def values(self) -> Mapping[str, float]:
        """Costs, and the metrics that its weights have: of validation, or of its trial where it was not trained."""
        return {**self.costs, **(self.trial_score if self.validation is None else self.validation)}

    @property
    def compared_values(self) -> Mapping[str, float]:
        """What it is ranked by: the same, with means over the last validations where there are any."""
        return {**self.values, **self.compared_by}

    @property
    def has_mean(self) -> bool:
        """Whether it is ranked by the mean of several validations."""
        return self.num_validations > 1

    def part(self, name: str) -> Mapping[str, float]:
        """Metrics of a part of the data; empty where it was not measured."""
        return {VALIDATION: self.validation, TEST: self.test}[name] or {}

    def error(self, part: str, metric: str) -> float | None:
        """The standard error of a metric; None where it is not known."""
        return self.standard_error.get(part, {}).get(metric)

    def scored(self, part: str, metric: str) -> str:
        """A metric of a part with its standard error, as text; empty where it was not measured."""
        found = self.part(part)
        return with_error(metric, found[metric], self.error(part, metric)) if metric in found else ""

    def compared_error(self, metric: str) -> float | None:
        """The standard error of what it is ranked by; None where it is not known."""
        return self.error(COMPARED if self.compared_by else VALIDATION, metric)

    def compared(self, metric: str) -> str:
        """The mean over its last validations with its standard error, as text; empty where it has none."""
        found = self.compared_by
        return with_error(metric, found[metric], self.compared_error(metric)) if metric in found else ""

    def scores(self, metric: str) -> list[str]:
        """The same of each part that it was measured on, with the part's name; the trial score where there is none."""
        if not self.is_trained and metric in self.values:
            return [f"{format_value(metric, self.values[metric])} trial score"]
        return [f"{self.scored(part, metric)} {part}" for part in PARTS if metric in self.part(part)]

    @classmethod
    def of_trial(cls, record: TrialRecord) -> Network:
        """A trial that was not trained further."""
        figures = {**record.metrics, **record.values}
        costs = {name: figures.pop(name) for name in UNITS if name in figures}
        return cls(record.number, record.architecture, figures, costs=costs)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Network:
        """A finalist as log and result hold it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        trial = int(content["number"] if "number" in content else content["trial"])
        architecture = Architecture.from_choices(content["architecture"])
        errors = dict(content.get("standard_error") or {})
        compared = content.get("compared_by") or {"values": {}, "steps": ()}
        if compared["values"]:
            errors[COMPARED] = compared["standard_error"]
        return cls(
            trial,
            architecture,
            _figures(content.get("trial_score") or {}),
            None if content["validation"] is None else _figures(content["validation"]),
            _figures(content["test"]) if content.get("test") else None,
            {str(part): _figures(values or {}) for part, values in errors.items()},
            _figures(content.get("costs") or {}),
            int(content.get("steps") or 0),
            read_rungs(content.get("rungs") or {}),
            {str(part): str(text) for part, text in (content.get("problems") or {}).items()},
            _figures(compared["values"]),
            len(compared["steps"]),
        )


@dataclass(frozen=True)
class RandomBaseline:
    """What random search of as many steps came to."""

    networks: int  # how many it was to train
    steps: int  # of all of them
    best: Network  # the best of them on the validation data; no trial found it
    failed: int = 0  # of the networks, how many could not be trained
    is_all: bool = False  # the space has no more networks: it had fewer steps than the search took

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RandomBaseline:
        """As log and result hold it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        best = Network.from_json({**content, "trial": -1})
        networks = int(content["networks"])
        steps = int(content.get("total_steps", networks * best.steps))  # of a version that trained all alike
        is_all = steps < int(content.get("search_steps", steps))
        return cls(networks, steps, best, len(content.get("failed") or ()), is_all)

    @property
    def heading(self) -> str:
        """What it is held against the search as."""
        return f"random search {'of all networks of the space' if self.is_all else 'with as many steps'}"


def read_rungs(content: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Metrics by the steps done, of those by so many of so many steps: "50/200".

    Raises:
        TypeError, ValueError, AttributeError: it is something else.
    """
    return {int(name.partition("/")[0]): _figures(metrics) for name, metrics in content.items()}


# beside random search, of a search that learned from earlier runs
NOT_COUNTED = "The steps of the earlier runs that the search learned from are not counted."


def margin(found: Network, other: Network, goal: Goal, count: int) -> str:
    """How the network of a search and that of random search differ on the test part; empty where that is not known.

    It is what one run can say: it tells of two networks, with the error of the samples that they are measured on, and
    not of other seeds. The error is that of independent samples: both are measured on the same ones, so that it is
    rather too large.

    Args:
        count: of the groups of samples, or of the samples, of the test part; 0: not known.
    """
    one, two = found.part("test"), other.part("test")
    if goal.name not in one or goal.name not in two:
        return ""
    difference = one[goal.name] - two[goal.name]
    errors = found.error("test", goal.name), other.error("test", goal.name)
    error = math.hypot(*errors) if None not in errors else None  # type: ignore[arg-type]
    size = with_error(goal.name, abs(difference), error)
    more = "more" if difference >= 0 else "less"
    line = f"On the test part the search's network has {size} {more} {goal.name} than that of random search"
    if error is not None and not is_resolved(difference, error, count):
        line += ": its 95 % interval holds 0, which shows no difference"
    return f"{line}. One run says nothing of other seeds."


def in_order(networks: Iterable[Network], goals: Sequence[Goal]) -> list[Network]:
    """Networks, those trained longest first; best first by the first goal, ties by the others, then the smaller one."""

    def key(network: Network) -> tuple[float, ...]:
        values = network.compared_values
        order = comparison(values, goals, is_late=bool(network.compared_by))
        return (-network.steps, *order, values.get("parameters", 0.0), network.trial)

    return sorted(networks, key=key)


def front(networks: Iterable[Network], goals: Sequence[Goal]) -> list[Network]:
    """Of the networks trained longest, those that no other beats on all goals, best first by the first."""
    found = in_order(networks, goals)
    longest = [network for network in found if network.steps == found[0].steps]
    return [
        network
        for place, network in enumerate(longest)
        if not any(dominates(other.compared_values, network.compared_values, goals) for other in longest[:place])
    ]


def with_cost(network: Network, name: str, value: float) -> Network:
    """The network with a cost that nothing reported."""
    return network if name in network.costs else replace(network, costs={**network.costs, name: value})


def _figures(content: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): finite(value) for name, value in content.items()}


def finite(value: Any) -> float:
    """A number that was measured.

    Raises:
        TypeError, ValueError: it is none.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no measurement")
    return number
