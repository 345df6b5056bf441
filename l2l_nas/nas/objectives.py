"""What a search knows of its trials: plain data, for the study, the result file and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.space.architecture import Architecture


class State(StrEnum):
    """How a trial ended. The one table of it: what counts and tables say of a state stands here.

    Attributes:
        label: in a few words, behind a number of trials.
        meaning: why there is no score, or that there is one.
        has_score: whether such a trial has values.
        is_evaluated: whether it is one of the trials asked for.
    """

    label: str
    meaning: str
    has_score: bool
    is_evaluated: bool

    COMPLETE = "complete", "complete", "has a score", True, True
    PRUNED = "pruned", "refused", "refused by a constraint before training", False, False
    STOPPED = "stopped", "stopped early", "stopped early", False, True
    FAILED = "failed", "failed", "failed", False, True

    def __new__(cls, name: str, label: str, meaning: str, has_score: bool, is_evaluated: bool) -> State:
        """A state; it equals its name as text, as study and log hold it."""
        state = str.__new__(cls, name)
        state._value_ = name
        state.label, state.meaning = label, meaning
        state.has_score, state.is_evaluated = has_score, is_evaluated
        return state


@dataclass(frozen=True)
class Goal:
    """One objective.

    Args:
        name: a metric of the task, such as "accuracy", or a cost, such as "parameters".
        maximize: whether more is better.
    """

    name: str
    maximize: bool

    def better(self, a: float, b: float) -> bool:
        """Whether a is strictly better than b."""
        return a > b if self.maximize else a < b


@dataclass(frozen=True)
class TrialRecord:
    """A finished trial.

    Args:
        number: from 0.
        architecture: canonical.
        state: how it ended: "complete", "pruned", "stopped" or "failed".
        values: by goal name; empty for a state that has no score.
        cached: whether its values are those of an earlier trial of the same architecture.
        reason: why it was pruned, stopped or failed.
        seconds: what it took.
        weights: which version of each layer state it was scored with, as `WeightProvenance.entry` tells.
        worker: the process that evaluated it, from 1; 0 where there is only one.
        metrics: all metrics and costs that are known, by name.
        errors: standard errors of metrics, by name, where figures of each sample give them.
        rungs: metrics that it had on its way, by so many of so many steps: "50/200".
        ended: when, in seconds since 1970; 0 where it is not known.
        in_space: whether all its candidates are in the pool.
    """

    number: int
    architecture: Architecture
    state: State
    values: Mapping[str, float] = field(default_factory=dict)
    cached: bool = False
    reason: str = ""
    seconds: float = 0.0
    weights: Mapping[str, Any] = field(default_factory=dict)
    worker: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    rungs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ended: float = field(default=0.0, compare=False)
    in_space: bool = True

    def to_json(self) -> dict[str, Any]:
        """As an event tells it; weights and metrics are in the trial alone."""
        return {
            "number": self.number,
            "architecture": list(self.architecture.choices),
            "state": self.state.value,
            "values": dict(self.values),
            "cached": self.cached,
            "reason": self.reason,
            "seconds": round(self.seconds, 4),
            **({"worker": self.worker} if self.worker else {}),
        }


def minimised(values: Mapping[str, float], goals: Sequence[Goal]) -> tuple[float, ...]:
    """Values of the goals, in their order, of which less is better."""
    return tuple(-values[goal.name] if goal.maximize else values[goal.name] for goal in goals)


def comparison(values: Mapping[str, float], goals: Sequence[Goal], *, is_late: bool) -> tuple[float, ...]:
    """What networks that were trained alike are ordered by, the least first; ties of the goals by the loss.

    Args:
        is_late: whether these are scores of the later part of a training: in the beginning, the loss decides nothing.
    """
    return (*minimised(values, goals), values.get("loss", 0.0) if is_late else 0.0)


def distinct(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The complete trials, without those served from the cache."""
    return [record for record in records if record.state.has_score and not record.cached]


def ranked(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> list[TrialRecord]:
    """Complete distinct trials, best first by the first goal, ties by the others, then the earlier one."""
    return sorted(distinct(records), key=lambda record: (*minimised(record.values, goals), record.number))


def pareto_front(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> list[TrialRecord]:
    """The trials that no other beats on all goals, best first by the first goal; of equals, the first."""
    front: list[TrialRecord] = []
    for record in ranked(records, goals):
        if not any(dominates(other.values, record.values, goals) for other in front):
            front.append(record)
    return front


def dominates(a: Mapping[str, float], b: Mapping[str, float], goals: Sequence[Goal]) -> bool:
    """Whether values are at least as good as others on every goal."""
    return not any(goal.better(b[goal.name], a[goal.name]) for goal in goals)


def counts(records: Sequence[TrialRecord]) -> dict[str, int]:
    """How many trials ended how; those served from the cache are counted apart."""
    found = Counter("cached" if record.cached else record.state.value for record in records)
    return {name: found[name] for name in (*(state.value for state in State), "cached")}


def is_evaluated(record: TrialRecord) -> bool:
    """Whether it is one of the trials asked for: repeats and refused ones are not.

    One that was stopped early is: it was trained.
    """
    return record.state.is_evaluated and not record.cached


def num_evaluated(records: Sequence[TrialRecord]) -> int:
    """How many of the trials asked for are done."""
    return sum(map(is_evaluated, records))


def parse_goals(
    names: Sequence[str],
    metrics: Mapping[str, bool],
    costs: Iterable[str] = ("parameters",),
    *,
    setting: str = "objectives",
) -> tuple[Goal, ...]:
    """Goals by name.

    Args:
        names: one to three.
        metrics: the task's metrics, and whether more is better.
        costs: names of which less is better.
        setting: where the names are from, for errors.

    Raises:
        SettingError: none or more than three, one twice, a name that does not exist, or one that is both.
    """
    known = {**metrics, **dict.fromkeys(costs, False)}
    for name in set(costs) & set(metrics):
        raise SettingError(f"'{name}' is a metric of the task and a cost; rename the metric")
    if not 1 <= len(names) <= 3 or len(set(names)) != len(names):
        raise SettingError(f"{setting} takes one to three different names, got {list(names)}")
    for name in names:
        if name not in known:
            raise SettingError(f"{setting}: no objective '{name}'{did_you_mean(name, known)}")
    if names[0] not in metrics:
        raise SettingError(f"{setting} begins with a metric of the task, such as accuracy, then {names[0]}")
    return tuple(Goal(name, known[name]) for name in names)
