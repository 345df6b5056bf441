"""Early stopping: which trials are not worth the rest of their steps. A new rule is one class and one entry here.

Optuna's `report` and its pruners take one objective only, so the rule is our own: a trial is scored at rungs, a quarter
and a half of its steps, and stopped where it is in the worse part of all trials that were scored there before.

The rungs, and that a trial is compared with those that happen to be there already, without waiting for others, are
asynchronous successive halving's (ASHA: Li et al., arXiv 1810.05934, section 3). What is better, with several
objectives, is what NSGA-II says (Deb et al., IEEE Trans. Evol. Comput. 6(2), 2002): a lower front of the non-dominated
sorting, and within a front more distance to the neighbours. Schmucker et al. (arXiv 2106.12639) put the two together.
Unlike ASHA, which goes on with the best of a rung whenever there is space, a trial here runs to its end or is stopped
for good: its weights are dropped.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.objectives import Goal, TrialRecord, minimised
from l2l_nas.plugins import is_given, is_named, is_own, made
from l2l_nas.space.architecture import Architecture

Point = tuple[float, ...]

# trials that must have come to a rung before one is stopped there
_LEAST = 5
# fewer steps than that tell nothing at a quarter
LEAST_STEPS = 8


@runtime_checkable
class EarlyStop(Protocol):
    """Decides whether a trial goes on. One object decides for all trials of a search, wherever they are trained."""

    def stop_reason(self, architecture: Architecture, rung: str, values: Mapping[str, float]) -> str | None:
        """Why a trial is stopped; None if it goes on.

        Args:
            rung: where it is, such as "50/200": so many of so many steps.
            values: metrics and costs by name, those of all goals among them.
        """

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """Take over trials of an interrupted search."""


class NeverStop:
    """Every trial takes all its steps."""

    def stop_reason(self, architecture: Architecture, rung: str, values: Mapping[str, float]) -> str | None:
        """See `EarlyStop`."""

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """See `EarlyStop`."""


class Halving:
    """Stops a trial at a rung where it is not in the better half of all that came there.

    Args:
        goals: what is better; the first 5 trials at a rung go on in any case.
    """

    def __init__(self, goals: Sequence[Goal]) -> None:
        self._goals = tuple(goals)
        # by rung and architecture, values to minimise, in the order in which they came
        self._seen: dict[str, dict[Architecture, Point]] = {}

    def stop_reason(self, architecture: Architecture, rung: str, values: Mapping[str, float]) -> str | None:
        """See `EarlyStop`."""
        there = self._seen.setdefault(rung, {})
        there.pop(architecture, None)  # a trial that was interrupted and begun again
        there[architecture] = minimised(values, self._goals)
        if len(there) <= _LEAST:
            return None
        place = place_among(there[architecture], list(there.values()))
        if place <= (len(there) + 1) // 2:
            return None
        done, _, total = rung.partition("/")
        by = " and ".join(goal.name for goal in self._goals)
        return f"stopped after {done} of {total} steps: number {place} of {len(there)} there by {by}"

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """See `EarlyStop`."""
        for record in records:
            if record.cached:
                continue
            for rung, metrics in record.rungs.items():
                values = {**record.metrics, **metrics}  # costs stand with the trial
                if all(goal.name in values for goal in self._goals):
                    self._seen.setdefault(rung, {})[record.architecture] = minimised(values, self._goals)


def place_among(point: Point, points: Sequence[Point]) -> int:
    """The place of a point among these, itself one of them, from 1; equal points share the best of their places."""
    better = itertools.takewhile(lambda other: other != point, ranked_points(set(points)))
    counts = Counter(points)
    return 1 + sum(counts[other] for other in better)


def ranked_points(points: Collection[Point]) -> list[Point]:
    """Different points to minimise, best first.

    By front of the non-dominated sorting; within a front, those at the ends of a goal, then by the distance to their
    neighbours (crowding distance), then by the goals one after the other.
    """
    fronts: dict[int, list[Point]] = {}
    ordered = sorted(points)
    for rank, point in zip(_fronts(ordered), ordered, strict=True):
        fronts.setdefault(rank, []).append(point)
    ranked: list[Point] = []
    for _, front in sorted(fronts.items()):
        keyed = [(-distance, point) for distance, point in zip(_crowding(front), front, strict=True)]
        ranked += [point for _, point in sorted(keyed)]
    return ranked


def _fronts(points: Sequence[Point]) -> list[int]:
    """The front of each of these different, sorted points, from 0: one behind the last of those that dominate it.

    Who dominates a point comes before it.
    """
    values = np.array(points)
    ranks = np.zeros(len(points), dtype=np.int64)
    for index in range(1, len(points)):
        dominating = (values[:index] <= values[index]).all(axis=1)
        ranks[index] = ranks[:index][dominating].max(initial=-1) + 1
    return [int(rank) for rank in ranks]


def _crowding(front: Sequence[Point]) -> list[float]:
    """Deb et al. 2002, section III B: for each point, the sum over goals of the gap between its neighbours."""
    distances = [0.0] * len(front)
    for goal in range(len(front[0])):
        along = sorted(range(len(front)), key=lambda i: front[i][goal])
        span = front[along[-1]][goal] - front[along[0]][goal]
        distances[along[0]] = distances[along[-1]] = math.inf
        for before, i, after in zip(along, along[1:], along[2:], strict=False):
            distances[i] += (front[after][goal] - front[before][goal]) / span if span else 0.0
    return distances


Build = Callable[[Sequence[Goal]], EarlyStop]

EARLY_STOPS: dict[str, Build] = {"none": lambda goals: NeverStop(), "halving": Halving}


def build_early_stop(name: str, goals: Sequence[Goal]) -> EarlyStop:
    """A rule by name.

    Args:
        name: a key of `EARLY_STOPS`, or `FILE.py:NAME` or `MODULE:NAME` of a class or function that gives a rule. It is
            given `goals`, if it takes them.

    Raises:
        SettingError: no such rule, or what is named gives no rule.
        L2LError: what is named raised something.
    """
    check_early_stop(name)
    if is_given(name):
        raise SettingError("search.early_stop was given in Python; give it again")
    if not is_named(name):
        return EARLY_STOPS[name](goals)
    own: EarlyStop = made(
        name,
        setting="search.early_stop",
        offered={"goals": goals},
        is_right=lambda one: isinstance(one, EarlyStop),
        kind="an object with stop_reason and learn",
    )
    return own


def check_early_stop(name: str | EarlyStop) -> None:
    """Refuse a name that is none, and an object that is no rule.

    Raises:
        SettingError: with those there are.
    """
    if not isinstance(name, str):
        if not isinstance(name, EarlyStop):
            raise SettingError(f"search.early_stop: {name!r} is no name, and lacks stop_reason or learn")
        return
    if name not in EARLY_STOPS and not is_own(name):
        raise SettingError(f"search.early_stop: no rule '{name}'{did_you_mean(name, EARLY_STOPS)}")
