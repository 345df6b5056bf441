"""All that the page of a run shows, gathered: plain data, made from records and the run's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from l2l_nas.report.card import SpaceCard
from l2l_nas.report.history import History, Scored
from l2l_nas.report.importance import Effect, kendall_tau, main_effects
from l2l_nas.search.records import Goal, TrialRecord, num_evaluated, ranked
from l2l_nas.space.architecture import Architecture

PARAMETERS = Goal("parameters", maximize=False)
_LARGEST = 1e30  # no chart can be drawn of more


@dataclass(frozen=True)
class Setting:
    """A setting, as text.

    Args:
        name: dotted.
        value: what the run had.
        default: what it would have been.
        meaning: its help text.
    """

    name: str
    value: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Command:
    """Something to do next.

    Args:
        purpose: what for, in a few words.
        line: to be pasted into a shell.
        note: what to know about it; may be empty.
    """

    purpose: str
    line: str
    note: str = ""


@dataclass(frozen=True)
class Reason:
    """Trials that ended alike without a score.

    Args:
        state: "pruned" or "failed".
        text: the first one's reason.
        trials: their numbers.
    """

    state: str
    text: str
    trials: tuple[int, ...]


@dataclass(frozen=True)
class Ranking:
    """Finalists by their score as trials, and by their value after further training.

    Args:
        before: trial numbers, best trial first.
        after: the same trials, best finalist first.
        scores, values: of the first goal, by trial number.
        tau: Kendall's; None for fewer than three finalists, or where all are equal.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    scores: Mapping[int, float]
    values: Mapping[int, float]
    tau: float | None


@dataclass(frozen=True)
class Summary:
    """Of a run that is finished, stopped or under way.

    Args:
        pool: as the settings name it.
        folder: the run's.
        made_at: when, in seconds since 1970.
        done: how much of its phase a running search has done, such as "step 200 of 1,000"; may be empty.
        history: what the log tells.
        goals: one or two.
        records: all trials.
        num_asked: how many trials were asked for.
        found: the network in the run's result; None before there is one.
        settings: those that differ from their defaults.
        commands: what to do next.
        seed: of the run.
        timeline: the picture of the lanes, as a PNG; empty where none was asked for.
    """

    pool: str
    folder: str
    made_at: float
    done: str
    history: History
    goals: tuple[Goal, ...]
    records: tuple[TrialRecord, ...]
    num_asked: int
    found: Scored | None
    settings: tuple[Setting, ...]
    commands: tuple[Command, ...]
    seed: str
    timeline: bytes = b""

    @property
    def card(self) -> SpaceCard:
        """The space searched."""
        return self.history.card

    @property
    def num_evaluated(self) -> int:
        """Trials done, of those asked for."""
        return num_evaluated(self.records)

    @property
    def is_finished(self) -> bool:
        """Whether `found` is what this search came to."""
        return self.history.state == "finished" and self.found is not None

    @property
    def best(self) -> Scored | None:
        """What was found; before the end, the best finalist or trial so far."""
        entries = self.leaders(1)
        return entries[0] if entries else None

    def leaders(self, limit: int) -> tuple[Scored, ...]:
        """The best architectures: finalists, then trials. Their values cannot be compared: finalists trained longer."""
        finalists = sorted(self.history.finalists, key=self._rank)
        found = [self.found] if self.found is not None and self.is_finished else []
        trials = [
            Scored(r.number, r.architecture, self.with_parameters(r).values, False)
            for r in ranked(self.records, self.goals)
        ]
        entries: dict[Architecture, Scored] = {}
        for entry in (*found, *finalists, *trials):
            entries.setdefault(entry.architecture, entry)
        return tuple(entries.values())[:limit]

    def _rank(self, entry: Scored) -> tuple[float, float]:
        goal = self.goals[0]
        value = entry.values[goal.name]
        return (-value if goal.maximize else value, entry.values.get("parameters", 0.0))

    def with_parameters(self, record: TrialRecord) -> TrialRecord:
        """A complete trial, its number of parameters among its values."""
        if record.state != "complete" or "parameters" in record.values:
            return record
        count = float(self.card.num_parameters(record.architecture))
        return replace(record, values={**record.values, "parameters": count})

    @property
    def axes(self) -> tuple[Goal, Goal]:
        """What the Pareto front is between: with one goal, that and the number of parameters."""
        return (self.goals[0], self.goals[1] if len(self.goals) == 2 else PARAMETERS)

    def effects(self) -> tuple[Effect, ...]:
        """What each position's choice did to the first goal."""
        return main_effects(self.card, self.records, self.goals[0].name)

    def reasons(self) -> tuple[Reason, ...]:
        """Why trials have no score, most frequent first; reasons that differ in numbers alone are one."""
        groups: dict[tuple[str, str], list[TrialRecord]] = {}
        for record in self.records:
            if record.state != "complete":
                alike = re.sub(r"\d[\d,.]*", "#", record.reason)
                groups.setdefault((record.state, alike), []).append(record)
        found = [
            Reason(state, members[0].reason or "no reason given", tuple(record.number for record in members))
            for (state, _), members in groups.items()
        ]
        return tuple(sorted(found, key=lambda reason: -len(reason.trials)))

    def ranking(self) -> Ranking | None:
        """How the finalists' order compares with that of their trials; None for fewer than two finalists."""
        scores = {record.number: record for record in ranked(self.records, self.goals)}
        finalists = [entry for entry in self.history.finalists if entry.trial in scores]
        if len(finalists) < 2:
            return None
        goal = self.goals[0].name
        before = {entry.trial: scores[entry.trial].values[goal] for entry in finalists}
        after = {entry.trial: entry.values[goal] for entry in finalists}
        order = list(scores)
        return Ranking(
            tuple(sorted(before, key=order.index)),
            tuple(entry.trial for entry in sorted(finalists, key=self._rank)),
            before,
            after,
            kendall_tau(list(before.values()), list(after.values())) if len(before) > 2 else None,
        )

    def coverage(self) -> dict[str, dict[str, tuple[int, int]]]:
        """By row and candidate: steps of warm-up, and trials that chose it.

        Rows are those of warm-up's coverage (see `l2l_nas.search.coverage.Coverage`), or positions where there is none.
        """
        rows = {row: dict.fromkeys(counts, 0) for row, counts in self.history.warmup.items()}
        names = [position.name for position in self.card.positions]
        row_of: dict[str, str] = {}
        for row in rows or {name: {} for name in names}:
            first, _, last = row.partition(" to ")
            if first in names and (last or first) in names:
                members = names[names.index(first) : names.index(last or first) + 1]
                row_of.update(dict.fromkeys(members, row))
        for position in self.card.positions:
            counts = rows.setdefault(row_of.get(position.name, position.name), {})
            for name in position.candidates:
                counts.setdefault(name, 0)
        for record in self.records:
            if not record.cached and record.state == "complete":
                for name, choice in zip(names, record.architecture.choices, strict=True):
                    rows[row_of.get(name, name)][choice] += 1
        steps = self.history.warmup
        return {
            row: {name: (steps.get(row, {}).get(name, 0), trials) for name, trials in counts.items()}
            for row, counts in rows.items()
        }


def only_finite(records: Iterable[TrialRecord], goals: Sequence[Goal]) -> tuple[TrialRecord, ...]:
    """Records as a page can draw them: a trial whose value is not finite, or absurd, counts as failed.

    Raises:
        KeyError: a complete trial lacks the value of a goal.
    """
    return tuple(
        record
        if record.state != "complete" or all(abs(record.values[goal.name]) < _LARGEST for goal in goals)
        else replace(record, state="failed", values={}, reason="a value that is not finite")
        for record in records
    )
