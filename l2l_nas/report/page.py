"""`report.html`: everything about a run in one file that needs nothing else, no network and no plug-in.

The page says in its head what a browser may run and load: the style and the one script in it, pictures in it, nothing
else. So even a name that slipped through unescaped could not run.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from l2l_nas.cost.table import UNITS
from l2l_nas.nas.objectives import Goal
from l2l_nas.report import networks, sections
from l2l_nas.report.charts import format_seconds
from l2l_nas.report.history import RunState
from l2l_nas.report.network import Network
from l2l_nas.report.summary import TEST, VALIDATION, Summary
from l2l_nas.report.svg import Markup, tag
from l2l_nas.report.text import format_choices, format_value, with_error

_NAVIGATION = {
    "finalists": "Finalists",
    "baseline": "Random search",
    "best": "Architectures",
    "pareto": "Trade-off",
    "progress": "Progress",
    "importance": "Positions",
    "coverage": "Coverage",
    "ranking": "Ranking",
    "time": "Time",
    "trials": "Trials",
    "next": "What next",
    "settings": "Settings",
}
_PHASES = {
    "start": "starting",
    "warm-up": "in warm-up",
    "search": "searching",
    "finalists": "training finalists",
    "baseline": "playing random search",
    "export": "exporting",
    "report": "drawing pictures",
}
_STATES: dict[RunState, str] = {
    "running": "This page was made while the search ran; reload it for a newer one.",
    "finished": "",
    "stopped": "The search was stopped; everything is saved, and it can go on: see What next.",
    "failed": "The search ended with an error.",
    "cut off": "The search was cut off (killed, or the machine went down); it can go on: see What next.",
}


_GENERATOR = '<meta name="generator" content="l2l_nas">'


def is_page(path: Path) -> bool:
    """Whether a file is a report."""
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return _GENERATOR.encode() in file.read(8192)
    except OSError:
        return False


def render_page(summary: Summary) -> str:
    """The page of a run.

    Args:
        summary: all that it shows.

    Returns:
        A whole HTML document.
    """
    script, style = _asset("page.js"), _asset("page.css")
    goal = summary.goals[0].name
    best = summary.best
    kind = "validation" if best and best.is_trained else "trial score"
    title = f"{goal} {format_value(goal, best.values[goal])} ({kind}): {summary.pool}" if best else summary.pool
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content="l2l_nas"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", _header(summary), _main(summary), _footer(summary), tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _main(summary: Summary) -> Markup:
    return tag(
        "main",
        networks.finalists_section(summary),
        networks.baseline_section(summary),
        networks.best_section(summary),
        networks.pareto_section(summary),
        sections.progress_section(summary),
        sections.importance_section(summary),
        sections.coverage_section(summary),
        sections.ranking_section(summary),
        sections.time_section(summary),
        sections.reasons_section(summary),
        networks.trials_section(summary),
        sections.commands_section(summary),
        sections.settings_section(summary),
    )


def _header(summary: Summary) -> Markup:
    history = summary.history
    size = summary.card.size
    space = f"{size:,}" if size < 10**9 else f"{size:.1e}"
    over = tag(
        "p",
        tag("span", summary.pool),
        tag("span", f"{len(summary.card.positions)} positions, {space} architectures"),
        tag("span", history.state, class_=f"pill {history.state.split()[0]}"),
        class_="over words",
    )
    notes = [_STATES[history.state], history.failure]
    if history.state == "running":
        doing = _PHASES.get(history.phase, history.phase)
        notes.insert(0, f"Now {doing}: {summary.done}." if summary.done else f"Now {doing}.")
    if summary.found is not None and not summary.is_finished:
        notes.append("result.json and export/ in the folder are still those of the run before it went on.")
    best = summary.best
    words = format_choices(best.architecture) if best else ""
    absent = () if history.baseline else ("baseline",)
    return tag(
        "header",
        over,
        tag("h1", _headline(summary)),
        networks.outcome(summary),
        *(tag("p", note, class_="lead words") for note in notes if note),
        tag("p", words, class_="words") if words else "",
        _tiles(summary),
        tag("nav", *(tag("a", text, href=f"#{name}") for name, text in _NAVIGATION.items() if name not in absent)),
    )


def _headline(summary: Summary) -> str:
    best, goal = summary.best, summary.goals[0].name
    if best is None:
        return "No network yet" if summary.history.state == "running" else "No network found"
    parameters = format_value("parameters", summary.card.num_parameters(best.architecture))
    so_far = "" if summary.is_finished else " so far"
    if not best.is_trained:
        figures = f"{goal} {format_value(goal, best.values[goal])} (trial score)"
    else:
        parts = [part for part in (VALIDATION, TEST) if goal in best.part(part)]
        figures = f"{goal} " + ", ".join(
            f"{with_error(goal, best.part(part)[goal], best.error(part, goal))} {part}" for part in parts
        )
    return f"Best network{so_far}: {figures}, with {parameters} parameters"


def _score_tiles(best: Network, goals: Sequence[Goal]) -> list[tuple[str, str, str]]:
    """Of each goal: what it is on each part of the data, or what it costs."""
    tiles = []
    for name in (goal.name for goal in goals if goal.name != "parameters"):
        if name in best.costs:
            tiles.append((name, format_value(name, best.costs[name]), UNITS.get(name, "")))
        elif not best.is_trained:
            tiles.append((f"{name}, trial score", format_value(name, best.values[name]), f"trial {best.trial}"))
        else:
            for part in (VALIDATION, TEST):
                if name in best.part(part):
                    error = best.error(part, name)
                    shown = with_error(name, best.part(part)[name], error).partition(" ")
                    of = f"trial {best.trial}, trained further" if part == VALIDATION else "looked at once"
                    tiles.append((f"{name}, {part}", shown[0], f"{shown[2]}; {of}" if error is not None else of))
    return tiles


def _tiles(summary: Summary) -> Markup:
    tiles: list[tuple[str, str, str]] = []
    best, history = summary.best, summary.history
    if best is not None:
        tiles += _score_tiles(best, summary.goals)
        skipped = sum(
            name in position.skips
            for position, name in zip(summary.card.positions, best.architecture.choices, strict=True)
        )
        used = len(summary.card.positions) - skipped
        parameters = format_value("parameters", summary.card.num_parameters(best.architecture))
        tiles.append(("parameters", parameters, f"{used} of {len(summary.card.positions)} positions used"))
    evaluated = f"{summary.num_evaluated:,} of {summary.num_asked:,}"
    tiles.append(("trials", evaluated, sections.outcome_words(summary)))
    if history.samples:
        parts = ", ".join(f"{number:,} {part}" for part, number in history.samples.items())
        tiles.append(("samples", f"{sum(history.samples.values()):,}", parts))
    often = f"{history.sessions} sessions" if history.sessions > 1 else f"seed {summary.seed}"
    tiles.append(("time", format_seconds(history.seconds), often))
    return tag(
        "div",
        *(
            tag("dl", tag("dt", label), tag("dd", figure, class_="figure"), tag("dd", note), class_="tile")
            for label, figure, note in tiles
        ),
        class_="tiles",
    )


def _footer(summary: Summary) -> Markup:
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.made_at))
    return tag(
        "footer",
        tag("p", f"Made by l2l_nas on {made} from {summary.folder}.", class_="words"),
        tag("p", "Colours: Okabe and Ito, told apart with any kind of colour vision."),
    )


def _policy(script: str) -> str:
    """What a browser may load and run: only what stands in the page."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )


@cache
def _asset(name: str) -> str:
    return files("l2l_nas.report").joinpath(name).read_text(encoding="utf-8")
