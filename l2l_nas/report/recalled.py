"""What a search knew from earlier runs, how far that agreed with its own trials, and what it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from l2l_nas.nas.memory import Agreement, EarlierTask
from l2l_nas.report.network import finite
from l2l_nas.report.text import counted


@dataclass(frozen=True)
class RecalledTask:
    """An earlier task. Weight and tau: see `l2l_nas.nas.memory.TaskAgreement`; None before they are known."""

    name: str
    networks: int  # of which it has scores
    weight: float | None = None
    tau: float | None = None
    ignored: str = ""  # why the search took nothing of it

    @classmethod
    def of(cls, task: EarlierTask) -> RecalledTask:
        """Before the search."""
        return cls(task.name, len({tuple(sorted(one.params.items())) for one in task.networks}))

    def to_json(self) -> dict[str, Any]:
        """As log and result hold it."""
        return {name: value for name, value in vars(self).items() if value not in (None, "")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RecalledTask:
        """The other way round. Raises KeyError, TypeError, ValueError: it is something else."""
        weight, tau = (None if content.get(name) is None else finite(content[name]) for name in ("weight", "tau"))
        return cls(str(content["name"]), int(content["networks"]), weight, tau, str(content.get("ignored", "")))


@dataclass(frozen=True)
class Recalled:
    """A search's memory.

    Args:
        notes: what was left out when it was read, a line each.
        trials: of the search, that it was compared with; 0 before that.
        tau: of what all tasks together predict with the trials' scores.
        finalists: how many there were; 0 where none were chosen by a model.
        changed: how many of them would not have been chosen without memory.
    """

    tasks: tuple[RecalledTask, ...]
    notes: tuple[str, ...] = ()
    trials: int = 0
    tau: float | None = None
    finalists: int = 0
    changed: int = 0

    @classmethod
    def of(cls, tasks: Sequence[EarlierTask], notes: Sequence[str] = ()) -> Recalled:
        """Before the search."""
        return cls(tuple(map(RecalledTask.of, tasks)), tuple(notes))

    def compared(self, found: Agreement, *, finalists: int, changed: int) -> Recalled:
        """With what came of it."""
        tasks = tuple(
            replace(task, weight=None if one.ignored else one.weight, tau=one.tau, ignored=one.ignored)
            for task, one in zip(self.tasks, found.tasks, strict=True)
        )
        return replace(self, tasks=tasks, trials=found.trials, tau=found.tau, finalists=finalists, changed=changed)

    def to_json(self) -> dict[str, Any]:
        """As log and result hold it."""
        return {**vars(self), "tasks": [one.to_json() for one in self.tasks], "notes": list(self.notes)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recalled:
        """The other way round. Raises KeyError, TypeError, ValueError: it is something else."""
        tau = content.get("tau")
        return cls(
            tuple(map(RecalledTask.from_json, content["tasks"])),
            tuple(map(str, content.get("notes", ()))),
            int(content.get("trials", 0)),
            None if tau is None else finite(tau),
            int(content.get("finalists", 0)),
            int(content.get("changed", 0)),
        )

    @property
    def source(self) -> str:
        """What was taken: "54 networks of 2 earlier tasks"."""
        if not self.tasks:
            return "no earlier task, as in a search without memory"
        networks = counted(sum(one.networks for one in self.tasks), "network")
        return f"{networks} of {counted(len(self.tasks), 'earlier task')}"

    @property
    def verdict(self) -> str:
        """How far it agreed; empty before that is known."""
        if not self.trials:
            return ""
        trials = counted(self.trials, "trial")
        if all(one.ignored for one in self.tasks):
            return "nothing of it could be used"
        if not any(one.weight for one in self.tasks):
            is_against = any(one.tau is not None and one.tau < 0 for one in self.tasks)
            verb = "disagreed with" if is_against else "told nothing of"
            # it still changes choices: what it adds to a fit by disagreeing makes the model less sure
            return f"it {verb} the scores of {trials}, so it adds only doubt"
        if self.tau is None:
            return f"{trials} are too few to tell how far it agreed"
        agree = "agree" if self.tau > 0 else "do not agree"
        return f"its predictions {agree} with the scores of {trials} (tau {self.tau:.2f})"

    @property
    def effect(self) -> str:
        """What it changed; empty where that is not known."""
        if not self.finalists:
            return ""
        if not self.changed:
            return "of the same trials, the same finalists would be chosen without it"
        others = "another" if self.changed == 1 else "others"
        return (
            f"of the same trials, {self.changed} of {counted(self.finalists, 'finalist')} would be {others} without it"
        )
