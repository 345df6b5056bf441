"""What a search has spent: steps and seconds by phase, counted where they are done and kept with the study.

[Note: a step] A step is one mini-batch of training of one whole network, whatever its size. What is less is a share of
one, by operations. A step of a block that is trained by itself counts as the block's share of the original, times its
samples' share of a mini-batch. A score of a network that was not trained for it (blocks in exchange, one-shot trials)
counts a third of a step for each mini-batch: a training step is a forward pass, and a backward pass of twice that.
Scores of networks that were trained are not counted: those of random search have them, too.

[Note: what is stored] A kill loses the steps after the last store: those of 15 seconds, and those of segments that
workers had not ended. What is done again counts again: after a kill, or where a trial's weights were not kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from l2l_nas.nas.study.storage import Store

# attribute of the study
LEDGER = "ledger"
# the phase whose steps are no steps of the search: it is held against the search, and has as many
BESIDE = "RandomSearch"
_STORE_SECONDS = 15.0


@dataclass
class Spent:
    """What a phase has spent, in all sessions."""

    steps: float = 0.0  # see [Note: a step]
    seconds: float = 0.0

    @classmethod
    def from_json(cls, content: Any) -> Spent:
        """As the study has it.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        found = cls(float(content["steps"]), float(content["seconds"]))
        if not (0 <= found.steps < math.inf and 0 <= found.seconds < math.inf):
            raise ValueError(f"{found} cannot have been spent")
        return found


class Ledger:
    """Counts steps and seconds.

    Args:
        store: of the study, which is open.
        has_trials: whether the study has trials. Without a ledger it is of a version that counted nothing.

    Attributes:
        phases: what each has spent, by the name of its class.
        is_complete: whether all is counted that the search has done.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: what is stored is no ledger.
    """

    def __init__(self, store: Store, *, has_trials: bool) -> None:
        self._store = store
        content = store.noted(LEDGER)
        self.phases = phases_of(content)
        self.is_complete = not has_trials if content is None else bool(content["complete"])
        self._phase = self._begin("search")
        self._stored_at = self._clock = time.monotonic()
        self._is_stored = True

    def begin(self, phase: str) -> None:
        """Count for this phase from now on."""
        self.store()
        self._phase = self._begin(phase)

    def _begin(self, phase: str) -> Spent:
        self._name = phase
        return self.phases.get(phase, Spent())

    def add(self, steps: float) -> None:
        """So many steps are done."""
        self._phase.steps += steps
        self.phases[self._name] = self._phase
        self._is_stored = False
        if time.monotonic() - self._stored_at >= _STORE_SECONDS:
            self.store()

    def store(self) -> None:
        """Keep what was counted since the last store, if anything was.

        Raises:
            StorageError: the study could not be written.
        """
        now = time.monotonic()
        self._phase.seconds += now - self._clock
        self._clock = now
        if not self._is_stored:
            phases = {name: asdict(spent) for name, spent in self.phases.items()}
            self._store.note(LEDGER, {"complete": self.is_complete, "phases": phases})
            self._is_stored, self._stored_at = True, time.monotonic()

    @property
    def search_steps(self) -> float:
        """Of all phases of the search, in all sessions."""
        return math.fsum(spent.steps for name, spent in self.phases.items() if name != BESIDE)

    @property
    def steps(self) -> dict[str, float]:
        """Of each phase; empty where not all is counted."""
        return steps_of(self.phases) if self.is_complete else {}

    def entry(self) -> dict[str, Any] | None:
        """For `result.json`; None where not all is counted."""
        if not self.is_complete:
            return None
        return {name: {"steps": round(s.steps, 2), "seconds": round(s.seconds, 2)} for name, s in self.phases.items()}


def phases_of(content: Any) -> dict[str, Spent]:
    """What a study's attribute tells of its phases, by name.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is no ledger.
    """
    return {} if content is None else {str(n): Spent.from_json(one) for n, one in content["phases"].items()}


def steps_of(phases: Mapping[str, Spent]) -> dict[str, float]:
    """Of each phase."""
    return {name: spent.steps for name, spent in phases.items()}
