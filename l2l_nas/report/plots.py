"""Charts of a search: how the best value grew, and what the goals cost each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from l2l_nas.report.figures import BLUE, GREY, INK, ORANGE, SKY, VERMILLION, message_figure, new_chart
from l2l_nas.report.text import format_value
from l2l_nas.search.records import Goal, TrialRecord, distinct, pareto_front, ranked
from l2l_nas.space.architecture import Architecture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def best_so_far_figure(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> Figure:
    """Every trial by its number, and the best value of the first goal up to then.

    Complete trials are full dots, cached ones rings; failed and pruned ones have no value and are marks at the bottom.
    """
    from matplotlib.ticker import MaxNLocator

    goal = goals[0]
    complete = sorted(distinct(records), key=lambda record: record.number)
    if not complete:
        return message_figure(f"Best {goal.name} so far", f"no complete trial among {_counted(len(records))}")
    best = ranked(records, goals)[0]
    shown = format_value(goal.name, best.values[goal.name])
    figure, axes = new_chart(f"Best {goal.name} so far: {shown} (trial {best.number}), {_counted(len(records))}")

    cached = [record for record in records if record.cached and record.values]  # a repeat of what failed has none
    for label, group, fill in (
        ("complete", complete, SKY),
        ("cached: seen before", cached, "white"),
    ):
        if group:
            numbers = [record.number for record in group]
            heights = [record.values[goal.name] for record in group]
            axes.plot(numbers, heights, "o", markersize=5.5, color=fill, markeredgecolor=BLUE, label=label)
    _plot_best_line(axes, complete, goal, last=max(record.number for record in records))
    axes.plot(best.number, best.values[goal.name], "o", markersize=8, color=ORANGE, markeredgecolor=INK, label="best")
    values = [record.values[goal.name] for record in (*complete, *cached)]
    has_marks = _plot_marks_at_bottom(axes, records)
    axes.set_ylim(_padded(values, below=0.2 if has_marks else 0.08, above=0.08))
    axes.set_xlim(_padded([record.number for record in records], below=0.02, above=0.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("trial number", color=INK)
    axes.set_ylabel(_axis_label(goal), color=INK)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def pareto_figure(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> Figure:
    """The first of two goals over the second: every complete trial, and the Pareto front as a staircase.

    The staircase is the best value of the first goal that one gets for at most (at least) a value of the second.
    """
    goal, cost = goals
    complete = distinct(records)
    if not complete:
        return message_figure(
            f"{goal.name.capitalize()} against {cost.name}", f"no complete trial among {_counted(len(records))}"
        )
    front = sorted(pareto_front(records, goals), key=lambda record: record.values[cost.name])
    figure, axes = new_chart(
        f"{goal.name.capitalize()} against {cost.name}: {len(front)} of {len(complete)} architectures on the front"
    )
    costs = [record.values[cost.name] for record in complete]
    values = [record.values[goal.name] for record in complete]
    axes.plot(costs, values, "o", markersize=5.5, color=SKY, markeredgecolor=BLUE, markeredgewidth=0.7, label="trial")

    # the front goes on at its best value, up to the dearest trial
    edge = max(costs) if not cost.maximize else min(costs)
    stairs = [(record.values[cost.name], record.values[goal.name]) for record in front]
    best = ranked(records, goals)[0]
    end = [(edge, best.values[goal.name])]
    xs, ys = zip(*(end + stairs if cost.maximize else stairs + end), strict=True)
    axes.plot(xs, ys, drawstyle="steps-pre" if cost.maximize else "steps-post", color=ORANGE, linewidth=2, zorder=1.9)
    xs, ys = zip(*stairs, strict=True)
    axes.plot(xs, ys, "o", markersize=8, color=ORANGE, markeredgecolor=INK, label="on the Pareto front")

    is_log = cost.name == "parameters" and min(costs) > 0 and max(costs) > 10 * min(costs)
    _scale_costs(axes.xaxis, costs, is_log=is_log, is_count=cost.name == "parameters")
    axes.set_ylim(_padded(values, below=0.08 if goal.maximize else 0.18, above=0.18 if goal.maximize else 0.08))
    _annotate(axes, best, goal, cost)
    axes.set_xlabel(_axis_label(cost) + (", log scale" if is_log else ""), color=INK)
    axes.set_ylabel(_axis_label(goal), color=INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def with_parameters(
    records: Sequence[TrialRecord], goals: Sequence[Goal], parameters: Mapping[Architecture, int]
) -> tuple[list[TrialRecord], tuple[Goal, ...]]:
    """Records and goals of a search for one goal, with the number of parameters as the second, for `pareto_figure`."""
    extended = [
        replace(record, values={**record.values, "parameters": parameters[record.architecture]})
        if record.state == "complete"
        else record
        for record in records
    ]
    return extended, (goals[0], Goal("parameters", maximize=False))


def _plot_best_line(axes: Axes, complete: Iterable[TrialRecord], goal: Goal, *, last: int) -> None:
    numbers: list[int] = []
    bests: list[float] = []
    for record in complete:
        value = record.values[goal.name]
        if not bests or goal.better(value, bests[-1]):
            numbers.append(record.number)
            bests.append(value)
    axes.plot(
        [*numbers, last],
        [*bests, bests[-1]],
        drawstyle="steps-post",
        color=ORANGE,
        linewidth=2,
        zorder=1.9,
        label="best so far",
    )


def _plot_marks_at_bottom(axes: Axes, records: Sequence[TrialRecord]) -> bool:
    """Failed and pruned trials, at a fixed height: they have no value."""
    found = False
    for state, marker, colour in (("failed", "x", VERMILLION), ("pruned", "|", GREY)):
        numbers = [record.number for record in records if record.state == state]
        if numbers:
            found = True
            axes.plot(
                numbers,
                [0.045] * len(numbers),
                marker,
                transform=axes.get_xaxis_transform(),
                color=colour,
                markersize=7,
                markeredgewidth=1.6,
                label=state,
            )
    return found


def _annotate(axes: Axes, best: TrialRecord, goal: Goal, cost: Goal) -> None:
    """Name the best trial by the first goal, on the side where there are no better values and inside the axes."""
    x, y = best.values[cost.name], best.values[goal.name]
    across = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[0]
    side = "left" if across < 0.3 else "right" if across > 0.7 else "center"
    axes.annotate(
        f"best: trial {best.number}, {goal.name} {format_value(goal.name, y)}",
        (x, y),
        xytext=(0, 9 if goal.maximize else -9),
        textcoords="offset points",
        ha=side,
        va="bottom" if goal.maximize else "top",
        fontsize=9.5,
        fontweight="bold",
        color=INK,
    )


def _scale_costs(axis: Axis, costs: Sequence[float], *, is_log: bool, is_count: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if is_log:
        axis.axes.set_xscale("log")
        few_decades = max(costs) < 1e3 * min(costs)
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few_decades else (1.0,)))
        axis.set_minor_formatter(NullFormatter())
        margin = (max(costs) / min(costs)) ** 0.05
        axis.axes.set_xlim(min(costs) / margin, max(costs) * margin)
    else:
        axis.axes.set_xlim(_padded(costs, below=0.05, above=0.05))
        axis.set_major_locator(MaxNLocator(integer=is_count, min_n_ticks=1))
    if is_count:
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short_count(value)))


def _short_count(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _padded(values: Sequence[float], *, below: float, above: float) -> tuple[float, float]:
    """Limits around values, with room as a share of their span; a single value gets some room too."""
    low, high = min(values), max(values)
    span = high - low or abs(high) * 0.1 or 1.0
    if high == low:
        low, high = low - span / 2, high + span / 2
    return low - below * span, high + above * span


def _axis_label(goal: Goal) -> str:
    name = "number of parameters" if goal.name == "parameters" else goal.name
    return f"{name} ({'higher' if goal.maximize else 'lower'} is better)"


def _counted(num_trials: int) -> str:
    return f"{num_trials} trial" if num_trials == 1 else f"{num_trials} trials"
