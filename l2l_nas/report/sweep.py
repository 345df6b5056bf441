"""What a sweep led by a sampler shows: a line for each run, the best settings, a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.sweeps.sweep_space import Values
from l2l_nas.nas.sweeps.sweep_study import SweepRecord
from l2l_nas.report.figures import BLUE, GREY, INK, ORANGE, PALE, SKY, VERMILLION, message_figure, new_figure
from l2l_nas.report.table import new_table
from l2l_nas.report.text import format_value, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS = 10


def settings_text(settings: Values) -> str:
    """Settings as the command line writes them, numbers with four digits."""
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


def run_line(record: SweepRecord, goals: Sequence[Goal], *, best: SweepRecord | None) -> str:
    """A run that is complete: its values, its seconds, and the best so far if there is one goal."""
    line = f"run {record.number}: {_values_text(record, goals)}, {record.seconds:.0f} s"
    return f"{line}; best {_values_text(best, goals)} (run {best.number})" if best else line


def swept_table(
    records: Sequence[SweepRecord], goals: Sequence[Goal], *, front: Sequence[int], limit: int = 5
) -> Table:
    """The best runs and their settings.

    Args:
        records: all runs.
        goals: with one, the best few are shown; with two, the Pareto front.
        front: numbers of the runs that no other beats.
        limit: how many of the best.
    """
    complete = [record for record in records if record.state == "complete"]
    goal = goals[0]
    shown = sorted(complete, key=lambda record: record.values[goal.name] * (-1 if goal.maximize else 1))
    shown = [record for record in shown if record.number in front] if len(goals) == 2 else shown[:limit]
    num_failed = sum(record.state == "failed" for record in records)
    title = "Pareto front" if len(goals) == 2 else "Best runs"
    table = new_table(
        f"{title}: {len(shown)} of {len(complete)} complete" + (f", {num_failed} failed" if num_failed else "")
    )
    table.add_column("run", justify="right", no_wrap=True)
    for one in goals:
        table.add_column(one.name, justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold", ratio=1)
    table.add_column("seconds", justify="right", no_wrap=True)
    for record in shown:
        values = (format_value(one.name, record.values[one.name]) for one in goals)
        table.add_row(str(record.number), *values, Text(settings_text(record.settings)), f"{record.seconds:,.1f}")
    return table


def sweep_figure(records: Sequence[SweepRecord], goals: Sequence[Goal], importances: Mapping[str, float]) -> Figure:
    """Every run's value of the first goal and the best up to then; beside it, which settings mattered.

    Args:
        records: all runs.
        goals: one or two.
        importances: shares of the variance by setting; where there are none, the runs stand alone.
    """
    goal = goals[0]
    complete = [record for record in records if record.state == "complete"]
    if not complete:
        return message_figure(f"Best {goal.name} so far", "no complete run")
    figure = new_figure(10.0 if importances else 8.0, 4.2, layout="constrained")
    if importances:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _plot_importances(right, importances)
    else:
        left = figure.subplots()
    _plot_runs(left, records, complete, goal)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _plot_runs(axes: Axes, records: Sequence[SweepRecord], complete: Sequence[SweepRecord], goal: Goal) -> None:
    from matplotlib.ticker import MaxNLocator

    numbers = [record.number for record in complete]
    values = [record.values[goal.name] for record in complete]
    axes.plot(numbers, values, "o", markersize=5.5, color=SKY, markeredgecolor=BLUE, label="run")
    best = [values[0]]
    for value in values[1:]:
        best.append(value if goal.better(value, best[-1]) else best[-1])
    last = max(record.number for record in records)
    axes.plot(
        [*numbers, last],
        [*best, best[-1]],
        drawstyle="steps-post",
        color=ORANGE,
        linewidth=2,
        zorder=1.9,
        label="best so far",
    )
    failed = [record.number for record in records if record.state == "failed"]
    if failed:  # they have no value
        axes.plot(
            failed, [0.03] * len(failed), "x", transform=axes.get_xaxis_transform(), color=VERMILLION, label="failed"
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("run", color=INK)
    axes.set_ylabel(f"{goal.name} ({'higher' if goal.maximize else 'lower'} is better)", color=INK)
    _style(axes, f"Best {goal.name} so far: {format_value(goal.name, best[-1])}")


def _plot_importances(axes: Axes, importances: Mapping[str, float]) -> None:
    shown = sorted(importances.items(), key=lambda item: item[1])[-_MAX_BARS:]
    axes.barh([shorten(name, 34) for name, _ in shown], [share for _, share in shown], color=SKY, edgecolor=BLUE)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of the variance explained", color=INK)
    _style(axes, "What mattered")


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9)


def _values_text(record: SweepRecord, goals: Sequence[Goal]) -> str:
    return ", ".join(f"{goal.name} {format_value(goal.name, record.values[goal.name])}" for goal in goals)
