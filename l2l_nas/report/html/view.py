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

from l2l_nas.nas.objectives import State, counts, num_evaluated
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.charts import tables
from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.diagram import Diagram, lay_out
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.html.frame import asset, environment, policy
from l2l_nas.report.network import NOT_COUNTED, Network, margin
from l2l_nas.report.resolved import resolved
from l2l_nas.report.summary import Summary
from l2l_nas.space.architecture import format_choices

_NUM_BEST = 5
_MAX_NUMBERS = 12  # trials named for a reason
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
    apart = resolved(results, history.count("validation"))
    first = next((one for one in results.finalists[:1] if one.has_mean), None)
    compared = first.num_validations if first is not None else 0
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
        "num_evaluated": num_evaluated(results.records),
        "outcomes": _outcomes(summary),
        "finalists": tables.finalist_table(results, winner=winner) if results.finalists else None,
        "winner": winner,
        "in_rounds": tables.in_rounds(results.finalists),
        "compared": compared,
        "compared_word": f"mean of the last {compared} validation scores" if compared else "validation score",
        "resolved": {what: f"{found.sentence()}." for what, found in apart.items() if found},
        "has_test": any(network.test for network in results.finalists),
        "has_errors": any(values for network in results.finalists for values in network.standard_error.values()),
        "beside": beside,
        "baseline": tables.baseline_table(results, beside) if beside else None,
        "not_counted": NOT_COUNTED,
        "margin": margin(results.finalists[0], beside.best, goal, history.count("test")) if beside else "",
        "curves": {"Finalists": finalist_curves(results), "Trials": trial_curves(results)},
        "leaders": [(network, _drawing(results.card, network, first=leaders[0])) for network in leaders],
        "trial_plots": [charts[-1] for charts in plots],
        "final_plots": [charts[0] for charts in plots] if results.finalists else [],
        "trade_off": f"{goal.name.capitalize()} against {' and '.join(aim.name for aim in results.aims[1:])}",
        "front": tables.front_table(results) if results.scored else None,
        "max_front": tables.MAX_FRONT,
        "progress": progress_chart(results),
        "reasons": results.reasons(),
        "max_numbers": _MAX_NUMBERS,
        "trials": tables.trial_table(results) if results.records else None,
        "made": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.made_at)),
    }


def _outcomes(summary: Summary) -> str:
    """How many trials ended how, of those without a score of their own."""
    found = counts(summary.records)
    words = {**{state.value: state.label for state in State if not state.has_score}, "cached": "repeated"}
    return ", ".join(f"{found[state]:,} {word}" for state, word in words.items() if found[state])


def _drawing(card: SpaceSummary, network: Network, *, first: Network) -> Diagram:
    """A network's boxes; those marked differ from the first's."""
    return lay_out(
        boxes_of(card, network.architecture, first=first.architecture),
        source=card.source,
        label=f"Trial {network.trial}: {format_choices(network.architecture)}",
        num_positions=len(card.positions),
    )
