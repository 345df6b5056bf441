"""`report.html`: everything about a run in one file that needs nothing else, no network and no plug-in.

The view gathers plain data; `page.html.j2` is the page, and escapes all text that it is given. The page says in its
head what a browser may run and load: the style and the one script in it, pictures in it, nothing else. So even a name
that slipped through unescaped could not run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from markupsafe import Markup

from l2l_nas.cost.table import BYTES
from l2l_nas.nas.objectives import State, counts
from l2l_nas.nas.suspects import to_retire
from l2l_nas.report.charts import tables
from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.diagram import DENSE_PAGE, PAGE, lay_out
from l2l_nas.report.charts.grid import coverage_grid, importance_grid
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.charts.tips import labelled
from l2l_nas.report.html.frame import asset, environment, policy
from l2l_nas.report.network import Network, margin
from l2l_nas.report.results import TEST, VALIDATION
from l2l_nas.report.styles import hue_class
from l2l_nas.report.summary import Summary
from l2l_nas.report.text import format_choices, format_seconds, format_value, short_heading

_NUM_BEST = 5
_ROOMY = 24  # positions whose boxes have two lines each; of more, one
_MAX_NUMBERS = 12  # trials named for a reason
_PER = {"flops": "a forward pass", "latency_ms": "a forward pass"} | dict.fromkeys(BYTES, "a training step")
Parts = dict[str, Any]  # of something on the page, by name
_GENERATOR = b'<meta name="generator" content="l2l_nas">'


def is_page(path: Path) -> bool:
    """Whether a file is a report."""
    if not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return _GENERATOR in file.read(8192)
    except OSError:
        return False


def render_page(summary: Summary) -> str:
    """The page of a run.

    Args:
        summary: all that it shows.

    Returns:
        A whole HTML document.
    """
    return environment().get_template("page.html.j2").render(view_of(summary))


def view_of(summary: Summary) -> dict[str, Any]:
    """What the template is given: plain data and text, nothing of it markup but the page's own style and script."""
    results, history = summary.results, summary.history
    script = asset("page.js")
    best, goal = results.best, results.goals[0]
    plots = [trade_off_charts(results, first, second) for first, second in results.trade_offs]
    beside = history.baseline if results.finalists else None
    leaders = results.leaders(_NUM_BEST)
    winner = results.finalists[0].trial if results.finalists and summary.is_finished else None
    return {
        "s": summary,
        "results": results,
        "history": history,
        "goal": goal.name,
        "best": best,
        "style": Markup(asset("page.css")),
        "script": Markup(script),
        "policy": policy(script),
        "tiles": _tiles(summary),
        "finalists": tables.finalist_table(results, winner=winner) if results.finalists else None,
        "winner": winner,
        "in_rounds": tables.in_rounds(results.finalists),
        "has_test": any(network.test for network in results.finalists),
        "has_errors": any(values for network in results.finalists for values in network.standard_error.values()),
        "beside": beside,
        "baseline": tables.baseline_table(results, beside) if beside else None,
        "margin": margin(results.finalists[0], beside.best, goal) if beside else "",
        "curves": {"Finalists": finalist_curves(results), "Trials": trial_curves(results)},
        "leaders": [_leader(summary, network, rank, leaders[0]) for rank, network in enumerate(leaders, start=1)],
        "legend": _legend(summary),
        "trial_plots": [charts[-1] for charts in plots],
        "final_plots": [charts[0] for charts in plots] if results.finalists else [],
        "trade_off": f"{goal.name.capitalize()} against {' and '.join(aim.name for aim in results.aims[1:])}",
        "front": tables.front_table(results) if results.scored else None,
        "max_front": tables.MAX_FRONT,
        "progress": progress_chart(results),
        "importance": importance_grid(results),
        "coverage": coverage_grid(results, history.warmup),
        "ranking": results.ranking(),
        "reasons": results.reasons(),
        "suspects": results.suspects,
        "retire": to_retire(one.pattern for one in results.suspects),
        "num_failed": counts(results.in_space)[State.FAILED],
        "max_numbers": _MAX_NUMBERS,
        "trials": tables.trial_table(results) if results.records else None,
        "made": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.made_at)),
    }


def _tiles(summary: Summary) -> list[Parts]:
    """The figures in the head of the page."""
    tiles: list[Parts] = []
    best, history, card = summary.results.best, summary.history, summary.results.card
    if best is not None:
        for name in dict.fromkeys([*(goal.name for goal in summary.goals), "latency_ms"]):
            tiles += _score_tiles(best, name)
        used = f"{len(card.reads(best.architecture))} of {len(card.positions)} positions used"
        tiles.append(_tile("parameters", format_value("parameters", best.costs["parameters"]), used))
    found = counts(summary.records)
    words = {**{state.value: state.label for state in State if not state.has_score}, "cached": "repeated"}
    ends = ", ".join(f"{found[state]:,} {word}" for state, word in words.items() if found[state])
    tiles.append(_tile("trials", f"{summary.results.num_evaluated:,} of {summary.num_asked:,}", ends or "none failed"))
    if history.samples:
        parts = ", ".join(f"{count:,} {part}" for part, count in history.samples.items())
        tiles.append(_tile("samples", f"{sum(history.samples.values()):,}", parts))
    often = f"{history.sessions} sessions" if history.sessions > 1 else f"seed {summary.seed}"
    return [*tiles, _tile("time", format_seconds(history.seconds), often)]


def _tile(label: str, figure: str, note: str) -> Parts:
    return {"label": label, "figure": figure, "note": note}


def _score_tiles(best: Network, name: str) -> list[Parts]:
    """What a goal is on each part of the data, or what it costs."""
    if name == "parameters":
        return []  # they have a tile in any case
    if name in best.costs:
        return [_tile(short_heading(name), format_value(name, best.costs[name]), _PER.get(name, ""))]
    if not best.is_trained and name in best.values:
        return [_tile(f"{name}, trial score", format_value(name, best.values[name]), f"trial {best.trial}")]
    tiles = []
    for part in (VALIDATION, TEST):
        if name in best.part(part):
            figure, _, error = best.scored(part, name).partition(" ")
            of = f"trial {best.trial}, trained further" if part == VALIDATION else "measured once"
            tiles.append(_tile(f"{name}, {part}", figure, f"{error}; {of}" if error else of))
    return tiles


def _leader(summary: Summary, network: Network, rank: int, first: Network) -> Parts:
    """The value of the first goal, where it is from, the other goals, and the drawing beside the first's."""
    goal, card = summary.goals[0].name, summary.results.card
    kind = "validation" if network.is_trained else "trial score"
    lines = [f"{rank}. {goal} {format_value(goal, network.values[goal])}", f"trial {network.trial}, {kind}"]
    if goal in network.part(TEST):
        lines.append(f"test {network.scored(TEST, goal)}")
    others = dict.fromkeys(["parameters", *(other.name for other in summary.goals[1:])])
    lines += [labelled(name, network.values[name]) for name in others if name in network.values]
    drawing = lay_out(
        boxes_of(card, network.architecture, first=first.architecture),
        source=card.source,
        label=f"Trial {network.trial}: {format_choices(network.architecture)}",
        sizes=PAGE if len(card.positions) <= _ROOMY else DENSE_PAGE,
    )
    return {"trial": network.trial, "lines": lines, "drawing": drawing}


def _legend(summary: Summary) -> list[tuple[str, str]]:
    """What the colours of blocks and strips mean: class and name of every candidate."""
    card = summary.results.card
    skips = {name for position in card.positions for name in position.skips}
    return [("gap" if name in skips else hue_class(hue), name) for name, hue in card.hue_numbers.items()]
