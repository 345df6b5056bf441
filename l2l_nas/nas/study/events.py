"""What a search tells of itself beside its trials: events, in the journal that has the trials.

[Note: events] The study is a run's one store. Phases, finalists, what random search came to, the result: each is an
event with a name and a time, appended and never changed, and each tells how many trials there were before it. So events
and trials have one order, whatever a clock did, and both are lost or kept together. Optuna keeps them as attributes of
its own kind, which its dashboard does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.nas.study.storage import AT_TRIAL, Store

Event = Mapping[str, Any]


class StudyLog:
    """The events of a study; one process writes them.

    Args:
        store: of the study, which is open.
        trials: gives those that are finished.

    Attributes:
        is_begun: whether this process has written one.

    Raises:
        StorageError: the study could not be read.
    """

    def __init__(self, store: Store, trials: Callable[[], Sequence[TrialRecord]]) -> None:
        self._store, self._trials = store, trials
        self._events: list[Event] = list(store.events())
        self.is_begun = False

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; its fields are JSON.

        Raises:
            StorageError: it could not be written.
        """
        content = {"event": event, "time": round(time.time(), 3), AT_TRIAL: len(self._trials()), **fields}
        self._store.append(content)
        self._events.append(content)
        self.is_begun = True

    @property
    def events(self) -> list[Event]:
        """All of them, trials among them; see `with_trials`."""
        return with_trials(self._events, self._trials())


def with_trials(events: Sequence[Event], records: Sequence[TrialRecord]) -> list[Event]:
    """Events, and trials as such, in the order in which they came; see [Note: events].

    Raises:
        KeyError, TypeError, ValueError: an event is none.
    """
    told = [{"event": "trial", "time": one.ended, **one.to_json()} if one.ended else None for one in records]
    found: list[Event] = []
    begun = 0
    for event in events:
        until = max(begun, int(event[AT_TRIAL]))
        found += filter(None, told[begun:until])
        found.append(event)
        begun = until
    return found + list(filter(None, told[begun:]))
