"""Memory: what a search knows of the same space from earlier runs, as plain data.

A sampler that has a model takes it for a prior mean; `Agreement` tells how far it was right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2l_nas.contents.fields import Fields

_ADVICE = "get it again, or search without memory"
_MOST = 1e100  # squares of what a file says should be numbers still


@dataclass(frozen=True)
class Remembered:
    """One network and what it scored after a part of a training.

    Args:
        params: candidate by position; positions without a choice may be missing.
        share: of a whole training, above 0 and at most 1, after which it was scored.
        values: metrics of the validation part by name, such as "accuracy", as they were measured.
    """

    params: Mapping[str, str]
    share: float
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"params": dict(self.params), "share": self.share, "values": dict(self.values)}

    @classmethod
    def from_json(cls, content: object, where: object = "memory") -> Remembered:
        """The other way round.

        Raises:
            StorageError: it is something else; the message begins with `where`.
        """
        fields = Fields(content, where, advice=_ADVICE)
        params, values = fields.table("params"), fields.table("values")
        if not all(isinstance(name, str) for name in params.values()):
            fields.refuse("params", "names of candidates by position")
        if not all(is_score(value) for value in values.values()):
            fields.refuse("values", f"numbers by metric, from {-_MOST:g} to {_MOST:g}")
        share = fields.number("share", most=1.0)
        if not share:
            fields.refuse("share", "a number above 0 and at most 1")
        return cls(dict(params), share, {name: float(value) for name, value in values.items()})


@dataclass(frozen=True)
class EarlierTask:
    """What earlier runs on the same data found.

    Args:
        name: what users call it, such as the name of its data set or of a run.
        data: the digest of its data. Runs on the same data are one task.
        networks: in any order. One network may be there several times: after several shares of a training, or trained
            several times from other first weights.
    """

    name: str
    data: str
    networks: tuple[Remembered, ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "data": self.data, "networks": [one.to_json() for one in self.networks]}

    @classmethod
    def from_json(cls, content: object, where: object = "memory") -> EarlierTask:
        """The other way round.

        Raises:
            StorageError: it is something else; the message begins with `where`.
        """
        fields = Fields(content, where, advice=_ADVICE)
        name, data = fields.text("name"), fields.text("data")
        networks = _listed(content, "networks", fields)
        found = (Remembered.from_json(one, f"{where}: network {index}") for index, one in enumerate(networks, start=1))
        return cls(name, data, tuple(found))


@dataclass(frozen=True)
class Memory:
    """What a search knows of earlier tasks: networks as its own space has them, by its names of candidates."""

    tasks: tuple[EarlierTask, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tasks": [one.to_json() for one in self.tasks]}

    @classmethod
    def from_json(cls, content: object, where: object = "memory") -> Memory:
        """The other way round.

        Args:
            where: the file, for errors.

        Raises:
            StorageError: it is something else; the message begins with `where`.
        """
        fields = Fields(content, where, advice=_ADVICE)
        tasks = _listed(content, "tasks", fields)
        found = (EarlierTask.from_json(one, f"{where}: task {index}") for index, one in enumerate(tasks, start=1))
        return cls(tuple(found))


@dataclass(frozen=True)
class TaskAgreement:
    """How far one earlier task agrees with this one, for one goal.

    Args:
        name: the earlier task's.
        networks: that its model is made of.
        weight: by how many standard deviations of this task's scores a network is believed to be better that the
            earlier task's model puts one standard deviation (of random networks) higher. 0: it is not believed at all.
        tau: Kendall's, of what the earlier task's model predicts with the scores of this search's trials, from -1 to
            1; None with fewer than three trials.
        ignored: why nothing of it was taken, such as a metric that it lacks; empty where it was.
    """

    name: str
    networks: int = 0
    weight: float = 0.0
    tau: float | None = None
    ignored: str = ""


@dataclass(frozen=True)
class Agreement:
    """How far memory agrees with the trials of this search, for one goal.

    Args:
        goal: the metric that memory predicts.
        trials: of this search, that it is compared with.
        tasks: of the memory, in its order.
        tau: Kendall's, of what all tasks predict together, each by its weight, with the trials' scores; None with fewer
            than three trials, or where no task has a weight.
    """

    goal: str
    trials: int
    tasks: tuple[TaskAgreement, ...]
    tau: float | None = None


def _listed(content: object, name: str, fields: Fields) -> list[Any]:
    """A field that is a list."""
    assert isinstance(content, Mapping)
    found = content.get(name)
    if not isinstance(found, list):
        fields.refuse(name, "a list")
    return found


def is_score(value: object) -> bool:
    """Whether a network can be remembered with it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
