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
from l2l_nas.nas.objectives import Goal, State, counts
from l2l_nas.nas.suspects import to_retire
from l2l_nas.report.charts import tables
from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.diagram import DENSE_PAGE, PAGE, lay_out
from l2l_nas.report.charts.grid import coverage_grid, importance_grid
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.charts.tips import labelled
from l2l_nas.report.history import RunState, Spent
from l2l_nas.report.html.frame import asset, environment, policy
from l2l_nas.report.network import Network, margin
from l2l_nas.report.results import TEST, VALIDATION, Ranking
from l2l_nas.report.styles import hue_class
from l2l_nas.report.summary import Summary
from l2l_nas.report.text import format_choices, format_seconds, format_value, short_heading

# said wherever trial scores stand
SCORES = (
    "A trial score is measured on weights that are shared with other networks, or that were trained for a few steps. "
    "It ranks trials; it does not say how good a network is once it is trained."
)
_NUM_BEST = 5
_ROOMY = 24  # positions whose boxes have two lines each; of more, one
_MAX_NUMBERS = 12  # trials named for a reason
_RANK_PITCH, _RANK_HEAD = 28.0, 22.0
_NAVIGATION = {
    "finalists": "Finalists",
    "baseline": "Random search",
    "curves": "Learning curves",
    "best": "Architectures",
    "pareto": "Trade-off",
    "progress": "Progress",
    "importance": "Positions",
    "coverage": "Coverage",
    "ranking": "Ranking",
    "plan": "Predicted",
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
    "baseline": "running random search",
    "export": "exporting",
    "report": "drawing pictures",
}
_STATES: dict[RunState, str] = {
    "running": "This page was made while the search was running. Reload it for a newer one.",
    "finished": "",
    "stopped": "The search was stopped. Everything is saved, and you can resume it: see What next.",
    "failed": "The search ended with an error.",
    "cut off": "The search was cut off: it was killed, or the machine went down. You can resume it: see What next.",
}
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
        "best_words": format_choices(best.architecture) if best else "",
        "style": Markup(asset("page.css")),
        "script": Markup(script),
        "policy": policy(script),
        "title": _title(summary),
        "headline": _headline(summary),
        "notes": _notes(summary),
        "outcome": _outcome(summary),
        "no_test": _no_test(summary),
        "score_words": SCORES,
        "tiles": _tiles(summary),
        "navigation": _navigation(summary),
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
        "paths": _rank_paths(results.ranking(), goal),
        "rank_height": _RANK_HEAD + _RANK_PITCH * len(results.finalists) + 4,
        "spent": _parts(history.spent),
        "reasons": results.reasons(),
        "suspects": results.suspects,
        "retire": to_retire(one.pattern for one in results.suspects),
        "num_failed": counts(results.in_space)[State.FAILED],
        "max_numbers": _MAX_NUMBERS,
        "trials": tables.trial_table(results) if results.records else None,
        "made": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.made_at)),
    }


def _navigation(summary: Summary) -> dict[str, str]:
    is_shown = {"baseline": summary.history.baseline is not None, "plan": summary.planned is not None}
    return {name: text for name, text in _NAVIGATION.items() if is_shown.get(name, True)}


def _title(summary: Summary) -> str:
    best, goal = summary.results.best, summary.goals[0].name
    if best is None:
        return summary.pool
    kind = "validation" if best.is_trained else "trial score"
    return f"{goal} {format_value(goal, best.values[goal])} ({kind}): {summary.pool}"


def _headline(summary: Summary) -> str:
    best, goal = summary.results.best, summary.goals[0].name
    if best is None:
        return "No network yet" if summary.history.state == "running" else "No network found"
    parameters = format_value("parameters", best.costs["parameters"])
    so_far = "" if summary.is_finished else " so far"
    return f"Best network{so_far}: {goal} {', '.join(best.scores(goal))}, with {parameters} parameters"


def _notes(summary: Summary) -> list[str]:
    history = summary.history
    best = summary.results.best
    problems = dict.fromkeys(best.problems.values()) if best else ()
    notes = [_STATES[history.state], history.failure, *(f"{text[:1].upper()}{text[1:]}." for text in problems)]
    if history.state == "running":
        doing = _PHASES.get(history.phase, history.phase)
        notes.insert(0, f"Now {doing}: {summary.done}." if summary.done else f"Now {doing}.")
    if history.stopped_by:
        notes.append(f"Callback {history.stopped_by} stopped the search; result.json has the best network so far.")
    elif summary.found is not None and not summary.is_finished:
        notes.append("result.json and export/ in the folder are from before this run was resumed.")
    return [note for note in notes if note]


def _outcome(summary: Summary) -> str:
    """What the numbers in the headline are."""
    best = summary.results.best
    if best is None:
        return ""
    if not best.is_trained:
        return SCORES
    if best.test:
        errors = "A \N{PLUS-MINUS SIGN} is one standard error"
        return f"The search chose by the validation score. The test score was measured once, at the end. {errors}."
    return _no_test(summary).replace("There is no test column: t", "T")


def _no_test(summary: Summary) -> str:
    if summary.history.samples.get(TEST):
        return "There is no test column: the test part was not measured."
    why = "these data have no test part" if summary.history.samples else "this run measured no test part"
    return f"There is no test column: {why}. The search chose by the scores shown, so they are too good."


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


def _parts(spent: tuple[Spent, ...]) -> list[Parts]:
    """Of the time: where each part's bar begins and how long it is, as shares of the whole."""
    total, begin, parts = sum(part.seconds for part in spent) or 1.0, 0.0, []
    for part in spent:
        share, seconds = part.seconds / total, format_seconds(part.seconds)
        tip = f"{part.name}\n{seconds}, {share:.0%}"
        parts.append({"name": part.name, "seconds": seconds, "begin": begin, "share": share, "tip": tip})
        begin += share
    return parts


def _rank_paths(ranking: Ranking | None, goal: Goal) -> list[Parts]:
    """Each finalist's way from its rank as a trial to that after training; heights are in pixels."""
    paths: list[Parts] = []
    for rank, network in enumerate(ranking.before if ranking else ()):
        assert ranking is not None
        trial, later = network.trial, ranking.after.index(network)
        score, value = (
            format_value(goal.name, of[goal.name]) for of in (network.trial_score, network.part(VALIDATION))
        )
        tip = f"Trial {trial}\n{goal.name} {score} as a trial (rank {rank + 1})\n{value} after (rank {later + 1})"
        before, after = (_RANK_HEAD + (place + 0.5) * _RANK_PITCH for place in (rank, later))
        path = {"trial": trial, "is_best": later == 0, "before": before, "after": after}
        paths.append({**path, "score": score, "value": value, "tip": tip})
    return paths
