"""What methods found, as a table of JSON that a comparison goes on with, and what it says of them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import machine
from l2l_nas.files import read_json, write_atomically
from l2l_nas.report.interval import is_resolved


class Place(NamedTuple):
    """Where methods are compared; the budget is in whole trainings."""

    landscape: str
    budget: float
    task: str


@dataclass
class Found:
    """The test accuracies of what methods returned, by place, method and repetition.

    Attributes:
        truths: of every search that was played.
        seconds: of processor time, by method, in all.
        versions: of the packages of the peers.
    """

    truths: dict[Place, dict[str, dict[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Found:
        """What was played before; nothing where there is no file."""
        if not path.exists():
            return cls()
        content = read_json(path)
        found = cls({}, dict(content["seconds"]), dict(content["versions"]))
        for row in content["rows"]:
            place = Place(row["landscape"], float(row["budget"]), row["task"])
            truths = {number: float(one) for number, one in enumerate(row["test"]) if one is not None}
            found.truths.setdefault(place, {})[row["method"]] = truths
        return found

    def add(self, place: Place, method: str, repetition: int, truth: float, *, seconds: float) -> None:
        self.truths.setdefault(place, {}).setdefault(method, {})[repetition] = round(truth, 5)
        self.seconds[method] = round(self.seconds.get(method, 0.0) + seconds, 2)

    def has(self, place: Place, method: str, repetition: int) -> bool:
        return repetition in self.truths.get(place, {}).get(method, {})

    def write(self, path: Path) -> None:
        """Write it whole, a line for each method at a place."""
        rows = [
            {"landscape": place.landscape, "task": place.task, "budget": place.budget, "method": method,
             "test": [truths.get(number) for number in range(max(truths) + 1)]}
            for place, methods in sorted(self.truths.items())
            for method, truths in methods.items()
        ]  # fmt: skip
        head = {"benchmark": "search_peers", "machine": machine(), "versions": self.versions, "seconds": self.seconds}
        text = json.dumps(head, indent=2).removesuffix("\n}")
        found = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        write_atomically(path, f'{text},\n  "rows": [\n{found}\n  ]\n}}\n')


@dataclass(frozen=True)
class Difference:
    """Of two methods, paired by repetition, in points of test accuracy: mean, standard error, fewest repetitions."""

    value: float
    error: float
    count: int

    def __str__(self) -> str:
        mark = "" if self.is_resolved else " not resolved"
        return f"{self.value:+.2f} ± {self.error:.2f} ({self.count}){mark}"

    @property
    def is_resolved(self) -> bool:
        """See [Note: resolved]; degrees of freedom are those of the task with the fewest repetitions."""
        return is_resolved(self.value, self.error, self.count)


def difference(truths: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """The first minus the second; None where they have no repetition in common."""
    found = [100 * (truths[number] - others[number]) for number in sorted(truths.keys() & others.keys())]
    if not found:
        return None
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return Difference(statistics.fmean(found), error, len(found))


def mean_of_tasks(differences: Sequence[Difference]) -> Difference:
    """Tasks count alike; their repetitions are independent."""
    error = math.sqrt(sum(one.error**2 for one in differences)) / len(differences)
    return Difference(statistics.fmean(one.value for one in differences), error, min(one.count for one in differences))


def summary(found: Found, over: str) -> list[dict[str, Any]]:
    """A row for each landscape, budget and method: its mean test accuracy by task, and the mean difference to `over`.

    A difference is None where a task lacks it.
    """
    rows = []
    for landscape, budget in dict.fromkeys((place.landscape, place.budget) for place in sorted(found.truths)):
        places = [p for p in sorted(found.truths) if (p.landscape, p.budget) == (landscape, budget)]
        for method in dict.fromkeys(name for place in places for name in found.truths[place]):
            there = [found.truths[place].get(method, {}) for place in places]
            means = {p.task: statistics.fmean(own.values()) for p, own in zip(places, there, strict=True) if own}
            each = [difference(own, found.truths[p].get(over, {})) for p, own in zip(places, there, strict=True)]
            known = [one for one in each if one is not None]
            mean = mean_of_tasks(known) if len(known) == len(places) and method != over else None
            rows.append({"landscape": landscape, "budget": budget, "method": method, "test": means, "mean": mean})
    return rows
