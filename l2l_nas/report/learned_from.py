"""What a search knew from earlier runs when it began, as terminal, page and result tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2l_nas.report.text import counted


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
        """As log and result hold it."""
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
