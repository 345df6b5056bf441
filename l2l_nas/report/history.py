"""What a run's events tell: how far it is, what its finalists came to, and where the time went.

A run may have been stopped or killed and gone on several times: each time is a session, which begins with the event
"start". What a killed session did after its last event is not known, and not counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from l2l_nas.cost.table import MEASURED
from l2l_nas.nas.earlier_task import LearnedFrom
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.network import Network, RandomBaseline, finite

Event = Mapping[str, Any]
RunState = Literal["running", "finished", "stopped", "failed", "cut off"]

ENDS: dict[str, RunState] = {"done": "finished", "stopped": "stopped", "failed": "failed"}


@dataclass(frozen=True)
class RunHistory:
    """A run's events, read."""

    card: SpaceSummary  # the space searched
    state: RunState  # of the last session; "cut off" if it neither ended nor is known to run
    spent: Mapping[str, float]  # seconds of all sessions by what they went into; parts without any are left out
    versions: Mapping[str, str]  # of what the last session ran on
    earlier: tuple[SpaceSummary, ...] = ()  # the spaces of before, in which candidates may have been that are gone
    phase: str = ""  # its last one
    sessions: int = 1  # how often the run was started
    finalists: tuple[Network, ...] = ()  # of the last session, in the order they were trained
    given_up: Mapping[int, str] = field(default_factory=dict)  # why others were not trained to the end, by their trials
    baseline: RandomBaseline | None = None  # the result of the last session's random search; None where there was none
    learned_from: LearnedFrom | None = (
        None  # what the last session knew from earlier runs; None where it asked for nothing
    )
    device: str = ""  # that the last session ran on; empty where the events do not tell
    # latencies of finalists in ms that were measured: by cost, then by their trials
    latency: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    failure: str = ""  # why it failed
    stopped_by: str = ""  # the callback that stopped it, and had its result so far written; empty for none
    samples: Mapping[str, int] = field(default_factory=dict)  # how many each part of the data has; empty if not known
    groups: Mapping[str, int] = field(
        default_factory=dict
    )  # in which these lie, of parts whose samples belong together

    def count(self, part: str) -> int:
        """What standard errors of a part are over: groups, or samples; 0 where that is not known."""
        return self.groups.get(part) or self.samples.get(part, 0)

    @property
    def seconds(self) -> float:
        """Of all sessions."""
        return sum(self.spent.values())


def read_events(text: str) -> list[Event]:
    """The events of a log; a line that a kill cut off is left out."""
    events: list[Event] = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            events.append(event)
    return events


def last_result(events: Sequence[Event]) -> Any:
    """What a run came to last, as `result.json` has it; None: to nothing yet."""
    return next((event.get("content") for event in reversed(events) if event["event"] == "result"), None)


def read_history(events: Sequence[Event], *, running_at: float | None = None) -> RunHistory:
    """Read the events of a search.

    Args:
        events: of all sessions.
        running_at: the time (Unix) if the search is under way; None otherwise.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: an event lacks something, or it is something else.
    """
    sessions = _sessions(events)
    cards = [event for event in events if event["event"] == "space"]  # one a session
    if not sessions or not cards:
        raise ValueError("it does not tell what was searched")
    last = sessions[-1]
    ends = [event for event in last if event["event"] in ENDS]
    done = [event for event in ends if event["event"] == "done"]
    state: RunState = "running" if running_at is not None else "cut off"
    if ends:
        state = ENDS[(done or ends)[-1]["event"]]
    played = [event for event in last if event["event"] == "baseline"]
    learned = [event for event in last if event["event"] == "learned_from"]
    measured = [event for event in last if event["event"] == "latency"]
    phases = [str(event["name"]) for event in last if event["event"] == "phase"]
    return RunHistory(
        card=SpaceSummary.from_json(cards[-1]),
        earlier=tuple(SpaceSummary.from_json(card) for card in cards[:-1]),
        state=state,
        phase=phases[-1] if phases else "start",
        sessions=len(sessions),
        finalists=tuple(Network.from_json(event) for event in last if event["event"] == "finalist"),
        given_up={int(event["number"]): str(event["reason"]) for event in last if event["event"] == "given_up"},
        baseline=RandomBaseline.from_json(played[-1]) if played else None,
        spent=time_spent(events, running_at=running_at),
        versions={str(name): str(text) for name, text in last[0].get("versions", {}).items()},
        learned_from=LearnedFrom.from_json(learned[-1]) if learned else None,
        device=str(last[0].get("device", "")),
        latency={
            name: {int(trial): finite(ms) for trial, ms in one.get(name, {}).items()}
            for one in measured
            for name in MEASURED
        },
        failure=str(ends[-1].get("reason", "")) if state == "failed" else "",
        stopped_by=str(ends[-1].get("by", "")) if state == "stopped" else "",
        samples={str(part): int(number) for part, number in last[0].get("data", {}).get("samples", {}).items()},
        groups={str(part): int(number) for part, number in last[0].get("data", {}).get("groups", {}).items()},
    )


# what the seconds after a phase began are counted as
_NAMES = {
    "start": "start",
    "warm-up": "warm-up",
    "blocks": "imitation of blocks",
    "scores": "scores of blocks",
    "networks": "scores of blocks",
    "pairs": "scores of blocks",
    "search": "between trials: sampling, saving",
    "rates": "rates of fine-tuning",
    "finalists": "finalists",
    "baseline": "random search beside it",
    "export": "saving and export",
    "report": "pictures and page",
}
TRIALS = "trials: training, scoring"
_ORDER = ("start", "warm-up", "imitation of blocks", "scores of blocks", TRIALS, *_NAMES.values())


def time_spent(events: Sequence[Event], *, running_at: float | None = None) -> dict[str, float]:
    """Seconds by what they went into, over all sessions.

    Trials and pages tell their own seconds; both are taken from the phase in which they fell.
    """
    seconds = dict.fromkeys(_ORDER, 0.0)
    sessions = _sessions(events)
    for session in sessions:
        part = "start"
        last_time = finite(session[0]["time"])
        for event in session:
            time = finite(event["time"])
            seconds[part] += max(0.0, time - last_time)
            last_time = max(time, last_time)
            own = {"trial": TRIALS, "page": _NAMES["report"]}.get(event["event"])
            if own is not None:
                taken = min(max(0.0, finite(event["seconds"])), seconds[part])
                seconds[part] -= taken
                seconds[own] += taken
            if event["event"] == "phase":
                part = _NAMES.get(str(event["name"]), part)
            if event["event"] in ENDS:
                part = _NAMES["report"]
        if session is sessions[-1] and running_at is not None:
            seconds[part] += max(0.0, running_at - last_time)
    return {name: value for name, value in seconds.items() if value > 0.05}


def seconds_of(events: Sequence[Event]) -> float:
    """Seconds of all sessions that events tell of; 0 where they are damaged."""
    try:
        return sum(time_spent(events).values())
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def _sessions(events: Sequence[Event]) -> list[list[Event]]:
    """Events from one start to the next; what stands before the first start is left out."""
    sessions: list[list[Event]] = []
    for event in events:
        if event["event"] == "start":
            sessions.append([])
        if sessions:
            sessions[-1].append(event)
    return sessions
