"""What a search found, as charts and pages ask for it: fronts, the best, reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from l2l_nas.nas.objectives import Goal, State, TrialRecord, distinct, pareto_front, ranked
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.network import Network, front, with_cost

PARAMETERS = Goal("parameters", maximize=False)
_LARGEST = 1e30  # no chart can be drawn of more


@dataclass(frozen=True)
class Results:
    """Trials, and what was trained further."""

    card: SpaceSummary  # the space searched
    goals: tuple[Goal, ...]  # one to three
    # all trials; those that are not `in_space` have candidates that the space no longer offers
    records: tuple[TrialRecord, ...]
    finalists: tuple[Network, ...] = ()  # what was trained further, the winner first
    found: Network | None = None  # the network that the search came to, where it trained none; None before its end

    def __post_init__(self) -> None:
        """Finalists are there once, and all that has a score has its number of parameters."""
        finalists: dict[int, Network] = {}
        for network in self.finalists:
            finalists.setdefault(network.trial, self._counted(network))
        object.__setattr__(self, "records", tuple(map(self._with_parameters, self.records)))
        object.__setattr__(self, "finalists", tuple(finalists.values()))
        object.__setattr__(self, "found", self.found and self._counted(self.found))

    def _counted(self, network: Network) -> Network:
        return with_cost(network, PARAMETERS.name, float(self.card.num_parameters(network.architecture)))

    def _with_parameters(self, record: TrialRecord) -> TrialRecord:
        """The trial with its number of parameters among its values; of layers that are gone it may be unknown."""
        known = record.metrics.get(PARAMETERS.name)
        if not record.state.has_score or PARAMETERS.name in record.values or (known is None and not record.in_space):
            return record
        count = float(self.card.num_parameters(record.architecture)) if known is None else known
        return replace(record, values={**record.values, PARAMETERS.name: count})

    @cached_property
    def in_space(self) -> tuple[TrialRecord, ...]:
        """Trials whose candidates are all there."""
        return tuple(record for record in self.records if record.in_space)

    @property
    def best(self) -> Network | None:
        """What was found; before the end, the best finalist or trial so far."""
        entries = self.leaders(1)
        return entries[0] if entries else None

    def leaders(self, limit: int) -> tuple[Network, ...]:
        """The best networks: those trained further, or trials while there are none; their scores do not compare."""
        if self.finalists:
            return self.finalists[:limit]
        found = [self.found] if self.found is not None else []  # finalists=0 trains none
        trials = map(Network.of_trial, ranked(self.in_space, self.goals)[: limit + 1])
        return tuple({network.trial: network for network in (*found, *trials)}.values())[:limit]

    @property
    def trade_offs(self) -> tuple[tuple[Goal, Goal], ...]:
        """What charts show against each other: the first goal and each other one, or the number of parameters."""
        return tuple((self.goals[0], goal) for goal in self.aims[1:])

    @property
    def aims(self) -> tuple[Goal, ...]:
        """The goals, with one alone and the number of parameters."""
        return self.goals if len(self.goals) > 1 else (self.goals[0], PARAMETERS)

    @cached_property
    def scored(self) -> tuple[TrialRecord, ...]:
        """Trials with a score of their own, of candidates that are there."""
        return tuple(distinct(self.in_space))

    @cached_property
    def trial_front(self) -> tuple[TrialRecord, ...]:
        """Of them, those that no other beats."""
        return tuple(pareto_front(self.scored, self.aims))

    @cached_property
    def final_front(self) -> tuple[Network, ...]:
        """The finalists that no other beats by what they came to on the validation data."""
        return tuple(front(self.finalists, self.aims))

    def reasons(self) -> list[list[TrialRecord]]:
        """Trials that ended alike without a score, most first; reasons that differ in numbers alone are alike."""
        groups: dict[tuple[State, str], list[TrialRecord]] = {}
        for record in self.records:
            if not record.state.has_score:
                alike = re.sub(r"\d[\d,.]*", "#", record.reason)
                groups.setdefault((record.state, alike), []).append(record)
        return sorted(groups.values(), key=len, reverse=True)


def only_finite(records: Iterable[TrialRecord], goals: Sequence[Goal]) -> tuple[TrialRecord, ...]:
    """Records as a page can draw them: a trial whose value is not finite, or absurd, counts as failed.

    Raises:
        KeyError: a complete trial lacks the value of a goal.
    """
    return tuple(
        record
        if not record.state.has_score or all(abs(record.values[goal.name]) < _LARGEST for goal in goals)
        else replace(record, state=State.FAILED, values={}, reason="a value that is not finite")
        for record in records
    )
