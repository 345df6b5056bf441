"""Summaries to draw pages of, and a reader that notices what is wrong in a page."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

from l2l_nas.nas.objectives import Goal, State, TrialRecord, ranked
from l2l_nas.report.card import SpaceSummary, space_summary
from l2l_nas.report.history import read_history
from l2l_nas.report.results import Results
from l2l_nas.report.summary import Setting, Summary
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes
from tests.report.examples import ACCURACY, PARAMETERS, small_pool

HOSTILE = """<script>alert(1)</script>"'&</style><!-- ]]> \\ {{x}} `${y}`"""
GONE = Architecture(("stem", "old", "wide", "older", "head"))
_VOID = {"meta", "img", "br"}


def card_of_pool(pool: LayerPool | None = None) -> SpaceSummary:
    pool = pool or small_pool()
    return space_summary(pool, check_shapes(pool))


def hostile_card(depth: int = 3) -> SpaceSummary:
    """As a damaged or forged log might describe a space; a pool would refuse such names."""
    content = card_of_pool(small_pool(depth)).to_json()
    content["source"] = HOSTILE
    for item in content["positions"]:
        old = item["name"]
        item["name"] = old + HOSTILE
        item["output"] = HOSTILE
        item["candidates"] = [name + HOSTILE for name in item["candidates"]]
        item["skips"] = [name + HOSTILE for name in item["skips"]]
    content["sizes"] = {f"{item['name']}/{name}": 5 for item in content["positions"] for name in item["candidates"]}
    return SpaceSummary.from_json(content)


def random_trials(card: SpaceSummary, number: int, goals: Sequence[Goal] = (ACCURACY, PARAMETERS)) -> list[TrialRecord]:
    generator = random.Random(0)
    records = []
    for index in range(number):
        choices = tuple(generator.choice(position.candidates) for position in card.positions)
        architecture = Architecture(choices)
        values = {goal.name: round(generator.random(), 3) for goal in goals}
        if "parameters" in values:
            values["parameters"] = float(card.num_parameters(architecture))
        records.append(TrialRecord(index, architecture, State.COMPLETE, values, seconds=0.5))
    return records


def every_state(records) -> list[TrialRecord]:
    """A trial of each kind that has no score, and some that have, one of them of candidates that are gone."""
    silent = [
        TrialRecord(100 + index, records[index].architecture, state, reason=f"because {state}")
        for index, state in enumerate(state for state in State if not state.has_score)
    ]
    return [*records[:5], replace(records[5], architecture=GONE, in_space=False), *silent]


def finalist_figures(record: TrialRecord, *, with_test: bool) -> dict:
    """As `l2l_nas.nas.strategies.finalists.Finalist.figures` tells of a finalist: later trials came to more."""
    accuracy = 0.9 + 0.001 * record.number
    goals = {name: value for name, value in record.values.items() if name != "parameters"}
    return {
        "architecture": list(record.architecture.choices),
        "trial_score": goals,
        "validation": {**goals, "accuracy": accuracy, "loss": 0.1},
        "test": {**goals, "accuracy": accuracy - 0.02, "loss": 0.2} if with_test else None,
        "standard_error": {
            "validation": {"accuracy": 0.0078, "loss": 0.01},
            "test": {"accuracy": 0.0091} if with_test else None,
        },
        "costs": {"parameters": record.values.get("parameters", 5.0), "streamed_bytes": 14592.0},
    }


def log_of(
    card: SpaceSummary, *, finalists: Sequence[TrialRecord] = (), until: str = "done", with_test: bool = True
) -> list[dict]:
    """Events of a session: 10 s each of warm-up, trials, finalists; then 2 s of export and 1 s of pictures."""
    samples = {"training": 1077, "validation": 360, **({"test": 359} if with_test else {})}
    events: list[dict] = [
        {
            "event": "start",
            "time": 100.0,
            "resume": False,
            "trials": 0,
            "versions": {"torch": "9.9"},
            "data": {"samples": samples},
        },
        {"event": "space", "time": 100.0, **card.to_json()},
        {"event": "phase", "time": 100.0, "name": "warm-up", "total": 5, "done": 0},
        {
            "event": "coverage",
            "time": 110.0,
            "warmup": {p.name: dict.fromkeys(p.candidates, 9) for p in card.positions},
        },
        {"event": "phase", "time": 110.0, "name": "search", "total": 4, "done": 0},
        {"event": "trial", "time": 114.0, "seconds": 3.0},
        {"event": "page", "time": 115.0, "seconds": 0.5},
        {"event": "trial", "time": 120.0, "seconds": 3.0},
        {"event": "phase", "time": 120.0, "name": "finalists", "total": 5, "done": 0},
        *(
            {
                "event": "finalist",
                "time": 130.0,
                "number": record.number,
                **finalist_figures(record, with_test=with_test),
            }
            for record in finalists
        ),
        {"event": "phase", "time": 130.0, "name": "export", "total": 0, "done": 0},
        {"event": "phase", "time": 132.0, "name": "report", "total": 0, "done": 0},
        {"event": "done", "time": 133.0, "best": 0},
    ]
    names = [event.get("name", event["event"]) for event in events]
    return events[: names.index(until) + 1]


def summary_of(
    card: SpaceSummary | None = None,
    records: Sequence[TrialRecord] = (),
    *,
    goals: Sequence[Goal] = (ACCURACY, PARAMETERS),
    num_finalists: int = 0,
    until: str = "done",
    running_at: float | None = None,
    with_test: bool = True,
    word: str = "x",
    **changes,
) -> Summary:
    card = card or card_of_pool()
    finalists = ranked(records, goals)[:num_finalists]
    history = read_history(log_of(card, finalists=finalists, until=until, with_test=with_test), running_at=running_at)
    found = history.finalists[-1] if history.finalists and history.state == "finished" else None
    values = {
        "pool": word,
        "folder": word,
        "made_at": 1000.0,
        "done": "",
        "history": history,
        "goals": tuple(goals),
        "records": tuple(records),
        "num_asked": len(records),
        "found": found,
        "settings": (Setting(word, word, word, word),),
        "resume": word,
        "seed": word,
    }
    return Summary(**{**values, **changes})


def results_of(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> Results:
    """Trials of the small pool alone."""
    return Results(card_of_pool(), tuple(goals), tuple(records))


class Reader(HTMLParser):
    """Reads a page: refuses elements that are not closed one after the other, keeps its words, links and sources."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str, class_: str) -> int:
        return sum(t == tag and n == "class" and class_ in value.split() for t, n, value in self.attributes)

    def refuse_references(self) -> None:
        """Nothing outside the page is loaded, and no attribute runs anything."""
        for tag, name, value in self.attributes:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
                assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value[:50])
            if name == "style":
                assert re.fullmatch(r"--heat:[\d.]+", value), value
        assert not {"link", "iframe", "object", "embed", "base", "form"} & set(self.tags)
