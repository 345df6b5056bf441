"""All that the page of a run shows, gathered: plain data, made from records and the run's log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.report.history import History
from l2l_nas.report.network import Network, in_order, with_cost
from l2l_nas.report.results import Results


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
class Summary:
    """Of a run that is finished, stopped or under way.

    Args:
        pool: as the settings name it.
        folder: the run's.
        made_at: when, in seconds since 1970.
        done: how much of its phase a running search has done, such as "step 200 of 1,000"; may be empty.
        history: what the log tells.
        goals: one to three.
        records: all trials; those that are not `live` have candidates that the space no longer offers.
        num_asked: how many trials were asked for.
        found: the network in the run's result; None before there is one.
        settings: those that differ from their defaults.
        config: all of them, as `config.yaml` has them.
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
    found: Network | None
    settings: tuple[Setting, ...]
    commands: tuple[Command, ...]
    seed: str
    config: str = ""
    timeline: bytes = b""

    @property
    def is_finished(self) -> bool:
        """Whether `found` is what this search came to."""
        return self.history.state == "finished" and self.found is not None

    @cached_property
    def results(self) -> Results:
        """What was found until now: the finalists of the log, before them the winner in the run's result."""
        found = self.found if self.is_finished else None
        first = [found] if found is not None and found.is_trained else []
        latency = self.history.latency
        trained = tuple(
            with_cost(one, "latency_ms", latency[one.trial]) if one.trial in latency else one
            for one in (*first, *in_order(self.history.finalists, self.goals))
        )
        return Results(self.history.card, self.goals, self.records, trained, found)
