"""All that the page of a run shows, gathered: plain data, made from the run's records and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.report.blocks import TakenApart
from l2l_nas.report.charts.tables import Table
from l2l_nas.report.history import RunHistory
from l2l_nas.report.network import Network, in_order, with_cost
from l2l_nas.report.results import Results


@dataclass(frozen=True)
class Setting:
    """A setting, as text."""

    name: str  # dotted
    value: str  # what the run had
    default: str  # what it would have been
    meaning: str  # its help text


@dataclass(frozen=True)
class Summary:
    """Of a run that is finished, stopped or under way."""

    pool: str  # as the settings name it
    folder: str  # the run's
    made_at: float  # when, in seconds since 1970
    done: str  # how much of its phase a running search has done, such as "step 200 of 1,000"; may be empty
    history: RunHistory  # what the events tell
    goals: tuple[Goal, ...]  # one to three
    # all trials; those that are not `in_space` have candidates that the space no longer offers
    records: tuple[TrialRecord, ...]
    num_asked: int  # how many trials were asked for
    found: Network | None  # the network in the run's result; None before there is one
    settings: tuple[Setting, ...]  # those that differ from their defaults
    resume: str  # the command, or the call, that goes on with it; empty where nothing can
    seed: str  # of the run
    steps: Mapping[str, float] = field(default_factory=dict)  # that each phase took; empty where they are not known
    config: str = ""  # all settings, as `config.yaml` has them
    apart: TakenApart | None = None  # what the network is made of that was taken apart; None where none was
    texts: Table | None = None  # what was measured of its networks on texts; None where nothing was

    @property
    def is_finished(self) -> bool:
        """Whether `found` is what this search came to."""
        return self.history.state == "finished" and self.found is not None

    @cached_property
    def results(self) -> Results:
        """What was found until now: the finalists that events tell of, before them the winner in the run's result."""
        found = self.found if self.is_finished else None
        first = [found] if found is not None and found.is_trained else []
        trained = tuple(self._with_latencies(one) for one in (*first, *in_order(self.history.finalists, self.goals)))
        return Results(self.history.card, self.goals, self.records, trained, found)

    def _with_latencies(self, network: Network) -> Network:
        for name, times in self.history.latency.items():
            if network.trial in times:
                network = with_cost(network, name, times[network.trial])
        return network
