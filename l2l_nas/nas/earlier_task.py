"""What earlier runs of the same space found, as plain data: a sampler that has a model takes it for a prior mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2l_nas.contents.fields import Fields
from l2l_nas.errors import counted

_ADVICE = "restore it"
_MOST = 1e100  # squares of what a file says should be numbers still


@dataclass(frozen=True)
class NetworkScore:
    """One network and what it scored after a part of a training.

    Args:
        params: candidate by position; positions without a choice may be missing.
        steps: of its training, at least 1, after which it was scored.
        values: metrics of the validation part by name, such as "accuracy", as they were measured.
    """

    params: Mapping[str, str]
    steps: int
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {"params": dict(self.params), "steps": self.steps, "values": dict(self.values)}

    @classmethod
    def from_json(cls, content: object, where: object) -> NetworkScore:
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
        found = {name: float(value) for name, value in values.items()}
        return cls(dict(params), fields.whole("steps", least=1), found)


@dataclass(frozen=True)
class EarlierTask:
    """What earlier runs on the same data found.

    Args:
        name: of the runs.
        data: the digest of their data.
        whole_steps: of a training to the end, the longest of these runs.
        scores: in any order. One network may be there several times: after several parts of a training, or trained
            several times from other first weights.
    """

    name: str
    data: str
    whole_steps: int
    scores: tuple[NetworkScore, ...]

    @property
    def num_networks(self) -> int:
        """Different ones."""
        return len({frozenset(one.params.items()) for one in self.scores})

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "scores": [one.to_json() for one in self.scores]}

    @classmethod
    def from_json(cls, content: object, where: object) -> EarlierTask:
        """The other way round.

        Raises:
            StorageError: it is something else; the message begins with `where`.
        """
        fields = Fields(content, where, advice=_ADVICE)
        name, data, whole = fields.text("name"), fields.text("data"), fields.whole("whole_steps", least=1)
        scores = content.get("scores") if isinstance(content, Mapping) else None
        if not isinstance(scores, list):
            fields.refuse("scores", "a list")
        found = tuple(NetworkScore.from_json(one, f"{where}: score {n}") for n, one in enumerate(scores, start=1))
        if any(one.steps > whole for one in found):
            fields.refuse("whole_steps", "at least the steps of each score")
        return cls(name, data, whole, found)


def is_score(value: object) -> bool:
    """Whether a network can be remembered with it."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST


@dataclass(frozen=True)
class LearnedFrom:
    """What a search learned from.

    Args:
        tasks: names of the earlier tasks.
        networks: of all of them.
        notes: what was left out when they were read, a line each.
        is_default: whether nobody asked for it: these tasks come with the space.
    """

    tasks: tuple[str, ...]
    networks: int
    notes: tuple[str, ...] = ()
    is_default: bool = False

    def to_json(self) -> dict[str, Any]:
        """As an event and the result have it."""
        return {**vars(self), "tasks": list(self.tasks), "notes": list(self.notes)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LearnedFrom:
        """The other way round. Raises KeyError, TypeError, ValueError: it is something else."""
        names, notes = (tuple(map(str, content[name])) for name in ("tasks", "notes"))
        return cls(names, int(content["networks"]), notes, bool(content["is_default"]))

    @property
    def line(self) -> str:
        """One line: "learns from 54 networks of 2 earlier tasks: digits, letters"."""
        if not self.tasks:
            return "learns from no earlier task, as with search.learn_from=[]"
        tasks = counted(len(self.tasks), "earlier task")
        hint = " that come with the space (search.learn_from=[] leaves them out)" if self.is_default else ""
        return f"learns from {counted(self.networks, 'network')} of {tasks}{hint}: {', '.join(self.tasks)}"
