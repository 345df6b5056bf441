"""How often each candidate was trained on the shared weights: a candidate that hardly was gets no score worth having.

Counted are steps by position and candidate, skips too, not updates of layer states: a skip has no state, and a state in
a shared pool belongs to several positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

Phase = Literal["warmup", "trials"]

# a candidate is under-trained below this share of its position's mean: in 1,000 uniform steps over 6 candidates, that
# is more than ten standard deviations away
SHARE = 1 / 3


@dataclass(frozen=True)
class Scarce:
    """A candidate that warm-up trained far less than the mean of its position; `position` is the name of the row."""

    position: str
    candidate: str
    steps: int
    mean: float

    def __str__(self) -> str:
        return f"{self.position}/{self.candidate} ({self.steps} of mean {self.mean:.1f})"


class Coverage:
    """Counts of steps by phase, row and candidate.

    A row is a position. In a shared pool it is a run of positions that offer the same candidates, each place of a path
    counted: the canonical form moves skips behind the layers, so that its positions by themselves say nothing.
    """

    def __init__(self, pool: LayerPool) -> None:
        self.rows: dict[str, tuple[str, ...]] = {}  # candidates by row
        self._row_of: list[str] = []  # by position
        offered = [tuple(candidate.name for candidate in position.candidates) for position in pool.positions]
        places = range(len(offered))
        for _, alike in itertools.groupby(places, lambda place: frozenset(offered[place]) if pool.shared else place):
            start, *more = alike
            first = pool.positions[start].name
            label = f"{first} to {pool.positions[more[-1]].name}" if more else first
            self.rows[label] = offered[start]
            self._row_of += [label] * (1 + len(more))
        self._counts: dict[str, dict[str, dict[str, int]]] = {
            phase: {row: dict.fromkeys(names, 0) for row, names in self.rows.items()} for phase in ("warmup", "trials")
        }
        self._before: Mapping[str, Any] = {}  # what was loaded: candidates that are gone may come back

    def add(self, phase: Phase, architecture: Architecture) -> None:
        counts = self._counts[phase]
        for row, name in zip(self._row_of, architecture.choices, strict=True):
            counts[row][name] += 1

    def steps(self, phase: Phase, row: str) -> dict[str, int]:
        return dict(self._counts[phase][row])

    def under_trained(self, share: float = SHARE) -> tuple[Scarce, ...]:
        """Candidates that warm-up trained in fewer steps than this share of their row's mean."""
        found = []
        for row, counts in self._counts["warmup"].items():
            mean = sum(counts.values()) / len(counts)
            found += [Scarce(row, name, steps, mean) for name, steps in counts.items() if steps < share * mean]
        return tuple(found)

    def new_candidates(self) -> dict[str, dict[str, int]]:
        """Candidates that were not there when the counts that were loaded began, in rows that warm-up has trained.

        Returns:
            By row and candidate, the steps they should get: the mean of the others of the row.
        """
        before = self._before.get("warmup", {})
        found: dict[str, dict[str, int]] = {}
        for row, counts in self._counts["warmup"].items():
            old = [steps for name, steps in counts.items() if name in before.get(row, {})]
            new = [name for name in counts if name not in before.get(row, {})]
            target = round(sum(old) / len(old)) if old else 0
            if new and target > 0:
                found[row] = dict.fromkeys(new, target)
        return found

    def row_of(self, index: int) -> str:
        return self._row_of[index]

    def warning(self) -> str:
        """One line about the under-trained candidates; empty where there are none."""
        found = self.under_trained()
        if not found:
            return ""
        named = ", ".join(map(str, found[:4])) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
        noun = "1 candidate" if len(found) == 1 else f"{len(found)} candidates"
        return (
            f"warm-up trained {noun} less than a third as often as the mean of its position: {named}; such scores "
            "may be too low: raise search.warmup_steps, or set search.warmup_paths=fair"
        )

    def to_json(self) -> dict[str, Any]:
        """As `result.json`, an event and the saved weights hold it."""
        return {
            phase: {
                **self._before.get(phase, {}),
                **{row: {**self._before.get(phase, {}).get(row, {}), **names} for row, names in counts.items()},
            }
            for phase, counts in self._counts.items()
        }

    def load(self, counts: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave; what it does not name is 0, what this pool does not have is only stored."""
        self._before = counts
        for phase, rows in self._counts.items():
            for row, names in rows.items():
                for name in names:
                    names[name] = int(counts.get(phase, {}).get(row, {}).get(name, 0))
