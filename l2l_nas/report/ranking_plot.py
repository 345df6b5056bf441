"""The pictures of `ranking` and `search_chain`: what networks are ranked by, over what training alone gives."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from l2l_nas.report.bench_table import runs_of
from l2l_nas.report.figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE)


def ranking_figure(result: Mapping[str, Any]) -> Figure:
    """A panel for the parameter count and one for each path sampler; a dot is an architecture.

    Args:
        result: what the bench writes as JSON.
    """
    samplers = list(result["scores"])
    figure = new_figure(3.4 * (1 + len(samplers)), 4.4, layout="constrained")
    panels = figure.subplots(1, 1 + len(samplers), squeeze=False)[0]
    metric = result["metric"]
    alone = [statistics.fmean(seeds) for seeds in result["alone"]]
    control = result["controls"]["parameters"]
    _scatter(panels[0], alone, result["parameters"], GREY, f"parameter count\ntau {_shown(control['tau'])}")
    panels[0].set_ylabel("parameters", color=INK)
    for index, (axes, row) in enumerate(zip(panels[1:], result["rows"], strict=True)):
        runs = result["scores"][row["sampler"]]
        scores = [statistics.fmean(values) for values in zip(*runs, strict=True)]
        title = (
            f"{row['sampler']} paths\ntau {_shown(row['tau'])}\nover parameters {_shown(row['over_parameters']['tau'])}"
        )
        _scatter(axes, alone, scores, _COLOURS[index % len(_COLOURS)], title)
        axes.set_ylabel(f"{metric} with shared weights", color=INK)
    for axes in panels:
        axes.set_xlabel(f"{metric} trained alone", color=INK)
    ceiling = result["controls"]["seed_against_the_others"]["tau"]
    runs = len(next(iter(result["scores"].values())))
    _entitle(
        figure,
        f"{len(alone)} architectures trained alone, and ranked without that\n"
        f"{len(result['alone'][0])} seeds, {runs} supernets; one seed against the others: tau {_shown(ceiling)}",
    )
    return figure


def chain_figure(result: Mapping[str, Any]) -> Figure:
    """A panel for trial scores and one for finalists' last ones, a dot is a network; and what is left after each stage.

    Args:
        result: what the bench writes as JSON.
    """
    figure = new_figure(12.0, 4.6, layout="constrained")
    panels = figure.subplots(1, 3, squeeze=False, width_ratios=(1, 1, 1.3))[0]
    metric = result["metric"]
    alone = [statistics.fmean(seeds) for seeds in result["alone"]["test"]]
    shown = (result["rows"][0], result["rows"][-1])
    for axes, row, colour in zip(panels, shown, (BLUE, ORANGE), strict=False):
        stage = result["stages"][_STAGES.get(row["sampler"], row["sampler"])]
        scores = [statistics.fmean(values) for values in zip(*stage, strict=True)]
        _scatter(axes, alone, scores, colour, f"{row['sampler']}\ntau {_shown(row['tau'])}")
        axes.set_ylabel(f"{metric}, validation part", color=INK)
        axes.set_xlabel(f"{metric} trained alone, test part", color=INK)
    _stages(panels[2], result["chain"], metric)
    _entitle(
        figure,
        f"{len(alone)} networks trained alone, and through the stages of {runs_of(result)}",
    )
    return figure


# the stage that a ranking is of, where it has another name
_STAGES = {"trial score": "trial", "finalist": "validation"}


def _entitle(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)


def _stages(axes: Axes, rows: Sequence[Mapping[str, Any]], metric: str) -> None:
    places = list(range(len(rows)))
    values = [row["value"] for row in rows]
    # a few searches far off may put the mean outside of what 95 % of them came to
    errors = [[max(0, row["value"] - row["low"]) for row in rows], [max(0, row["high"] - row["value"]) for row in rows]]
    colours = [GREEN] * (len(rows) - 1) + [GREY]
    for place, value, low, high, colour in zip(places, values, *errors, colours, strict=True):
        axes.errorbar([value], [place], xerr=[[low], [high]], fmt="o", color=colour, capsize=3, linewidth=1.4)
        axes.annotate(
            f"{value:.4f}", (value, place), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8
        )
    axes.set_yticks(places, [row["stage"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"{metric}, test part; bars: 95 % of searches", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6, axis="x")
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9)


def _scatter(axes: Axes, xs: Sequence[float], ys: Sequence[float], colour: str, title: str) -> None:
    axes.plot(xs, ys, "o", color=colour, markersize=4, alpha=0.65, markeredgewidth=0)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9)


def _shown(about: Mapping[str, float]) -> str:
    return f"{about['value']:.2f} ({about['low']:.2f} to {about['high']:.2f})"
