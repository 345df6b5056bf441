"""The picture of `bench=nas201`: how far from the optimum each sampler is, evaluation after evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from l2l_nas.report.figures import BLUE, GREEN, GREY, INK, ORANGE, PALE, PURPLE, SKY, VERMILLION, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (GREY, SKY, BLUE, VERMILLION, ORANGE, GREEN, PURPLE, INK)
_TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet16-120"}


def nas201_figure(result: Mapping[str, Any]) -> Figure:
    """A panel for each data set: points below the optimum of the best value seen; a mark for what is handed out.

    Args:
        result: what the bench writes as JSON.
    """
    from matplotlib.ticker import NullFormatter

    figure = new_figure(11.0, 4.5, layout="constrained")
    samplers = list(dict.fromkeys(row["sampler"] for row in result["rows"]))
    panels = figure.subplots(1, len(result["optimum"]), squeeze=False)[0]
    rows = {(row["sampler"], row["dataset"]): row for row in result["rows"]}
    for axes, (dataset, optimum) in zip(panels, result["optimum"].items(), strict=True):
        for index, sampler in enumerate(samplers):
            colour = _COLOURS[index % len(_COLOURS)]
            curve = result["curves"][f"{sampler}/{dataset}"]
            gaps = [max(optimum - value, 1e-3) for value in curve]
            first = min(9, len(gaps) - 1)  # what the very first evaluations find is luck
            counts = range(first + 1, len(gaps) + 1)
            axes.plot(counts, gaps[first:], color=colour, linewidth=1.8, label=sampler if axes is panels[0] else None)
            handed_out = rows[sampler, dataset]["handed_out"]["mean"]
            axes.plot(len(gaps) * 1.04, max(optimum - handed_out, 1e-3), "D", color=colour, markersize=5)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{_TITLES.get(dataset, dataset)}, optimum {optimum:.2f}", loc="left", fontsize=10, color=INK)
        axes.set_xlabel("evaluations", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=PALE, linewidth=0.6, alpha=0.6, which="both")
        axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, which="both")
    panels[0].set_ylabel("points below the optimum, log scale", color=INK)
    figure.suptitle(
        f"NAS-Bench-201, mean of {result['runs']} runs: line, the best value seen; mark, what is handed out",
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
        color=INK,
    )
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return figure
