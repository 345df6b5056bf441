"""The pictures of the benches, from what they write as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from l2l_nas.report.bench_table import STORAGE_SIDES, format_bytes
from l2l_nas.report.figures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    message_figure,
    new_chart,
)
from l2l_nas.report.nas201_plot import nas201_figure
from l2l_nas.report.ranking_plot import chain_figure, ranking_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result = Mapping[str, Any]

_COLOURS = (ORANGE, BLUE, GREEN, VERMILLION, PURPLE, SKY, INK)
_MARKERS = "osD^vP*"


def bench_figure(result: Result) -> Figure:
    """The picture of a bench.

    Args:
        result: what it writes as JSON.
    """
    return _FIGURES[result["bench"]](result)


def _memory(result: Result) -> Figure:
    """Device bytes over depth or batch, both axes logarithmic: a flat line is constant memory."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    size = result["bench"]
    measured = [row for row in result["rows"] if row["device_bytes"] is not None]
    title = f"Device-side memory of a training step by {size}"
    if not measured:
        return message_figure(title, "nothing could be measured")
    figure, axes = new_chart(title)
    values = sorted({row[size] for row in measured})
    for index, side in enumerate(dict.fromkeys(row["side"] for row in measured)):
        points = [(row[size], row["device_bytes"]) for row in measured if row["side"] == side]
        growth = result[f"last_{size}_over_first"].get(side)
        label = f"{side} (x {growth:.2f})" if growth else side
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=_pick(_COLOURS, index), marker=_pick(_MARKERS, index), label=label, linewidth=2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(values, [str(value) for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = min(row["device_bytes"] for row in measured), max(row["device_bytes"] for row in measured)
    ticks = [2.0**power for power in range(10, 50) if low / 2 <= 2.0**power <= high * 2]
    axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    unit = "blocks" if size == "depth" else f"samples, micro-batches of {result['settings']['micro_batch']}"
    axes.set_xlabel(f"{size} ({unit}), log scale", color=INK)
    axes.set_ylabel("peak bytes on the device, log scale", color=INK)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _throughput(result: Result) -> Figure:
    """Every side's ratio as a point with its interval, one colour a depth."""
    rows = result["rows"]
    over = result["over"]
    title = f"Time of a training step over {over}"
    if not rows:
        return message_figure(title, "nothing could be measured")
    figure, axes = new_chart(f"{title}, median and 95 % interval")
    sides = [side for side in dict.fromkeys(row["side"] for row in rows) if side != over]
    depths = list(dict.fromkeys(row["depth"] for row in rows))
    figure.set_size_inches(8.0, max(3.5, 1.6 + 0.5 * len(sides)))
    for index, depth in enumerate(depths):
        found = {row["side"]: row["over"][over] for row in rows if row["depth"] == depth and over in row["over"]}
        offset = (index - (len(depths) - 1) / 2) * 0.26
        places = [place + offset for place, side in enumerate(sides) if side in found]
        ratios = [found[side] for side in sides if side in found]
        _intervals(
            axes, ratios, places, colour=_pick(_COLOURS, index), marker=_pick(_MARKERS, index), label=f"{depth} blocks"
        )
    _name_rows(axes, sides)
    axes.axvline(1.0, color=INK, linewidth=1.2, zorder=1)
    axes.set_xlabel(f"seconds over those of {over} (1 = as fast; less is better)", color=INK)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def _switching(result: Result) -> Figure:
    """The ratio of every block of steps, and the medians with their intervals."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_chart(
        f"Another architecture at every step: {result['switching_over_fixed']['median']:.3f} of a fixed one's time"
    )
    blocks = result["seconds_by_block"]
    lines = (
        ("switching / fixed", "switching", "switching_over_fixed", ORANGE, "o"),
        ("control", "control", "control", BLUE, "s"),
    )
    for label, name, key, colour, marker in lines:
        ratios = [a / b for a, b in zip(blocks[name], blocks["fixed"], strict=True)]
        about = result[key]
        shown = f"{label}, median {about['median']:.3f} ({about['low']:.3f} to {about['high']:.3f})"
        axes.plot(range(1, len(ratios) + 1), ratios, marker, color=colour, markersize=5, label=shown)
        axes.axhspan(about["low"], about["high"], color=colour, alpha=0.15, linewidth=0)
        axes.axhline(about["median"], color=colour, linewidth=1.5)
    axes.axhline(1.0, color=INK, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel(f"block of {result['block_steps']} steps", color=INK)
    axes.set_ylabel("seconds over those of the fixed", color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _population(result: Result) -> Figure:
    """Measured speed-up beside the ideal."""
    figure, axes = new_chart("A population evaluated together: speed-up over one by one")
    rows = result["rows"]
    for index, row in enumerate(rows):
        speedup = row["speedup"]
        axes.bar(
            index - 0.17, row["ideal"], width=0.3, color=SKY, label=None if index else "ideal: shared work done once"
        )
        axes.bar(index + 0.17, speedup["median"], width=0.3, color=ORANGE, label=None if index else "measured")
        errors = [[speedup["median"] - speedup["low"]], [speedup["high"] - speedup["median"]]]
        axes.errorbar(index + 0.17, speedup["median"], yerr=errors, color=INK, capsize=4, linewidth=1.2)
        top = max(row["ideal"], speedup["high"])
        axes.annotate(
            f"{row['speedup_over_ideal']:.2f} of the ideal",
            (index, top),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9.5,
            color=INK,
        )
    axes.set_xticks(range(len(rows)), [f"{row['architectures']} {_POPULATIONS[row['population']]}" for row in rows])
    axes.axhline(1.0, color=GREY, linewidth=1.0)
    axes.set_ylim(0, 1.2 * max(max(row["ideal"], row["speedup"]["high"]) for row in rows))
    axes.set_xlim(-0.7, len(rows) - 0.3)
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("times as fast (more is better)", color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


_POPULATIONS = {"mutants": "one-position mutants of 4 parents", "uniform": "uniform draws"}


def _storage(result: Result) -> Figure:
    """Ratios of the step time, and what is written."""
    written = format_bytes(result["written_bytes_a_step"])
    figure, axes = new_chart(f"Layers in files over layers in memory; {written} written a step")
    figure.set_size_inches(8.0, 3.0)
    rows = [row for row in result["rows"] if "ram" in row["over"]]
    names = {"file": "states in files", "control": "control: in memory again"}
    _intervals(
        axes, [row["over"]["ram"] for row in rows], list(range(len(rows))), colour=ORANGE, marker="o", label=None
    )
    _name_rows(axes, [names[row["side"]] for row in rows])
    axes.axvline(1.0, color=INK, linewidth=1.2, zorder=1)
    axes.set_xlabel("seconds of a step over those in memory (1 = as fast), median and 95 % interval", color=INK)
    return figure


def _larger(result: Result) -> Figure:
    """Ratios of the step time."""
    sizes = (format_bytes(result[name]) for name in ("states_bytes", "memory_bytes"))
    figure, axes = new_chart("Training a pool of {} on a machine with {} of memory".format(*sizes))
    figure.set_size_inches(8.0, 3.2)
    rows = [row for row in result["rows"] if "ram" in row["over"]]
    _intervals(
        axes, [row["over"]["ram"] for row in rows], list(range(len(rows))), colour=ORANGE, marker="o", label=None
    )
    _name_rows(axes, [STORAGE_SIDES[row["side"]] for row in rows])
    axes.axvline(1.0, color=INK, linewidth=1.2, zorder=1)
    axes.set_xlabel("seconds of a step over those from memory (1 = as fast), median and 95 % interval", color=INK)
    return figure


def _workers(result: Result) -> Figure:
    """How many times as fast as one process."""
    figure, axes = new_chart(f"Trials a second with workers over one process, {result['cores']} cores")
    figure.set_size_inches(8.0, 3.0)
    rows = [row for row in result["rows"] if result["over"] in row["over"]]
    ratios = [row["over"][result["over"]] for row in rows]
    _intervals(axes, ratios, list(range(len(rows))), colour=ORANGE, marker="o", label=None)
    _name_rows(axes, [row["side"] if row["side"] != "control" else "control: one process again" for row in rows])
    axes.axvline(1.0, color=INK, linewidth=1.2, zorder=1)
    axes.set_xlabel("times as fast (1 = as fast), median and 95 % interval", color=INK)
    return figure


_FIGURES = {
    "depth": _memory,
    "batch": _memory,
    "throughput": _throughput,
    "switching": _switching,
    "population": _population,
    "storage": _storage,
    "larger_than_memory": _larger,
    "nas201": nas201_figure,
    "workers": _workers,
    "ranking": ranking_figure,
    "search_chain": chain_figure,
}


def _intervals(
    axes: Axes,
    ratios: Sequence[Mapping[str, float]],
    places: Sequence[float],
    *,
    colour: str,
    marker: str,
    label: str | None,
) -> None:
    """Points with interval bars, one below the other, each with its number."""
    medians = [ratio["median"] for ratio in ratios]
    errors = [
        [ratio["median"] - ratio["low"] for ratio in ratios],
        [ratio["high"] - ratio["median"] for ratio in ratios],
    ]
    axes.errorbar(
        medians, places, xerr=errors, fmt=marker, color=colour, markersize=6, capsize=3, linewidth=1.4, label=label
    )
    for ratio, place in zip(ratios, places, strict=True):
        axes.annotate(
            f"{ratio['median']:.2f}",
            (ratio["high"], place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=INK,
        )


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)


def _pick(items: Sequence[str], index: int) -> str:
    return items[index % len(items)]
