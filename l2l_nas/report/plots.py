"""Charts of a search: how the best value grew, and what the goals cost each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from l2l_nas.cost.table import COUNTS
from l2l_nas.nas.objectives import Goal, State, TrialRecord, distinct, pareto_front, ranked
from l2l_nas.report.figures import BLUE, GREY, INK, ORANGE, SKY, hue, message_figure, new_chart, style_axes
from l2l_nas.report.network import Network, front, in_order
from l2l_nas.report.text import format_value, heading
from l2l_nas.space.architecture import Architecture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def best_so_far_figure(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> Figure:
    """Every trial by its number, and the best value of the first goal up to then.

    Trials with a score are full dots, cached ones rings, those of candidates that are gone crosses; those without have
    no value and are marks at the bottom.
    """
    from matplotlib.ticker import MaxNLocator

    goal = goals[0]
    scored = sorted(distinct(records), key=lambda record: record.number)
    complete = [record for record in scored if record.live]
    if not complete:
        return message_figure(f"Best {goal.name} so far", f"no complete trial among {_counted(len(records))}")
    best = ranked(complete, goals)[0]
    shown = format_value(goal.name, best.values[goal.name])
    title = f"Best {goal.name} so far (trial score): {shown} (trial {best.number}), {_counted(len(records))}"
    figure, axes = new_chart(title)

    cached = [record for record in records if record.cached and record.state.has_score]
    gone = [record for record in scored if not record.live]
    for label, group, mark, fill in (
        (State.COMPLETE.label, complete, State.COMPLETE.mark, hue(State.COMPLETE.hue)),
        ("cached: seen before", cached, "o", "white"),
        ("candidates gone", gone, "+", GREY),
    ):
        if group:
            numbers = [record.number for record in group]
            heights = [record.values[goal.name] for record in group]
            edge = GREY if group is gone else BLUE
            axes.plot(numbers, heights, mark, markersize=5.5, color=fill, markeredgecolor=edge, label=label)
    _plot_best_line(axes, complete, goal, last=max(record.number for record in records))
    axes.plot(best.number, best.values[goal.name], "o", markersize=8, color=ORANGE, markeredgecolor=INK, label="best")
    values = [record.values[goal.name] for record in (*scored, *cached)]
    has_marks = _plot_marks_at_bottom(axes, records)
    axes.set_ylim(padded(values, below=0.2 if has_marks else 0.08, above=0.08))
    axes.set_xlim(padded([record.number for record in records], below=0.02, above=0.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.set_xlabel("trial number", color=INK)
    axes.set_ylabel(f"trial score: {_axis_label(goal)}", color=INK)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def pareto_figure(records: Sequence[TrialRecord], goals: Sequence[Goal], finalists: Sequence[Network] = ()) -> Figure:
    """The first goal over the second, with the Pareto front of these two as a staircase.

    The staircase is the best value of the first goal that one gets for at most (at least) a value of the second.

    Args:
        records: their scores as trials are drawn; the front is theirs where nothing was trained further.
        goals: the first two are drawn.
        finalists: what was trained further: in axes of their own above the trials, with error bars and the front.
    """
    goals = goals[:2]
    goal, cost = goals
    complete = [record for record in distinct(records) if record.live]
    if not complete:
        return message_figure(
            f"{goal.name.capitalize()} against {cost.name}", f"no complete trial among {_counted(len(records))}"
        )
    networks = [n for n in finalists if all(one.name in n.values for one in goals)]
    over = f"{goal.name.capitalize()} against {cost.name}"
    if networks:
        members = front(networks, goals)
        title = f"{over}: {len(members)} of {len(networks)} finalists on the front"
        figure, axes = new_chart(title, height_in=6.6, rows=2)
        _plot_finalists(axes, networks, members, goals)
        below = figure.add_subplot(2, 1, 2)
        style_axes(below)
        _plot_trials(below, complete, goals, front_of=(), chosen={network.trial for network in networks})
    else:
        best = pareto_front(complete, goals)
        figure, axes = new_chart(f"{over}: {len(best)} of {len(complete)} architectures on the front")
        below = axes
        _plot_trials(below, complete, goals, front_of=best, chosen=set())
    trial_costs = [record.values[cost.name] for record in complete]
    final_costs = [network.values[cost.name] for network in networks]
    is_common = all(cost.name in network.costs for network in networks)
    for place, costs in ((axes, final_costs), (below, trial_costs)) if networks else ((below, trial_costs),):
        costs = [*trial_costs, *final_costs] if is_common else costs
        is_count = cost.name in COUNTS
        is_log = is_count and min(costs) > 0 and max(costs) > 10 * min(costs)
        _scale_costs(place.xaxis, costs, is_log=is_log, is_count=is_count)
        if place is below or not is_common:
            place.set_xlabel(_axis_label(cost) + (", log scale" if is_log else ""), color=INK)
    if networks:
        winner = in_order(networks, goals)[0]
        error = (winner.error("validation", goal.name) or 0.0) * (1 if goal.maximize else -1)
        _annotate(axes, winner.trial, _places([winner], goals)[0], goal, beyond=error)
    else:
        first = ranked(complete, goals)[0]
        _annotate(axes, first.number, (first.values[cost.name], first.values[goal.name]), goal)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _places(networks: Sequence[Network], goals: Sequence[Goal]) -> list[tuple[float, float]]:
    goal, cost = goals
    return [(network.values[cost.name], network.values[goal.name]) for network in networks]


def _plot_finalists(axes: Axes, networks: Sequence[Network], members: Sequence[Network], goals: Sequence[Goal]) -> None:
    """What finalists came to on the validation data; a bar is one standard error to either side."""
    goal, _ = goals
    errors = [network.error("validation", goal.name) or 0.0 for network in networks]
    xs, ys = zip(*_places(networks, goals), strict=True)
    axes.errorbar(xs, ys, yerr=errors, fmt="none", ecolor=GREY, elinewidth=1.2, capsize=2.5, zorder=1.95)
    numbers = {network.trial for network in members}
    others = [place for n, place in zip(networks, _places(networks, goals), strict=True) if n.trial not in numbers]
    if others:
        label = "other finalist"
        axes.plot(*zip(*others, strict=True), "s", markersize=6.5, color=BLUE, markeredgecolor=INK, label=label)
    _plot_stairs(axes, _places(members, goals), goals, edge=xs)
    ends = [end for y, error in zip(ys, errors, strict=True) for end in (y - error, y + error)]
    axes.set_ylim(padded(ends, below=0.08 if goal.maximize else 0.2, above=0.2 if goal.maximize else 0.08))
    axes.set_ylabel(f"{_axis_label(goal, short=True)},\nvalidation after training", color=INK)


def _plot_trials(
    axes: Axes,
    complete: Sequence[TrialRecord],
    goals: Sequence[Goal],
    *,
    front_of: Sequence[TrialRecord],
    chosen: set[int],
) -> None:
    """Scores of trials, small; with their front, or with a mark on those that were trained further."""
    goal, cost = goals
    places = [(record.values[cost.name], record.values[goal.name]) for record in complete]
    xs, ys = zip(*places, strict=True)
    size = 4.0 if chosen else 5.5
    axes.plot(xs, ys, "o", markersize=size, color=SKY, markeredgecolor=BLUE, markeredgewidth=0.7, label="trial score")
    if front_of:
        best = [(record.values[cost.name], record.values[goal.name]) for record in front_of]
        _plot_stairs(axes, best, goals, edge=xs)
    marked = [place for record, place in zip(complete, places, strict=True) if record.number in chosen]
    if marked:
        label = "trial score of a finalist"
        axes.plot(*zip(*marked, strict=True), "o", markersize=4.5, color=ORANGE, markeredgecolor=BLUE, label=label)
    axes.set_ylim(padded(ys, below=0.08 if goal.maximize else 0.18, above=0.18 if goal.maximize else 0.08))
    axes.set_ylabel(f"{_axis_label(goal, short=bool(chosen))},\ntrial score", color=INK)


def _plot_stairs(
    axes: Axes, members: Sequence[tuple[float, float]], goals: Sequence[Goal], *, edge: Sequence[float]
) -> None:
    """The front; it goes on at its best value, up to the dearest of all."""
    goal, cost = goals
    stairs = sorted(members)
    best = max(y for _, y in stairs) if goal.maximize else min(y for _, y in stairs)
    end = [(max(edge) if not cost.maximize else min(edge), best)]
    xs, ys = zip(*(end + stairs if cost.maximize else stairs + end), strict=True)
    axes.plot(xs, ys, drawstyle="steps-pre" if cost.maximize else "steps-post", color=ORANGE, linewidth=2, zorder=1.9)
    xs, ys = zip(*stairs, strict=True)
    axes.plot(xs, ys, "o", markersize=8, color=ORANGE, markeredgecolor=INK, label="on the Pareto front")


def with_parameters(
    records: Sequence[TrialRecord], goals: Sequence[Goal], parameters: Mapping[Architecture, int]
) -> tuple[list[TrialRecord], tuple[Goal, ...]]:
    """Records and goals of a search for one goal, with the number of parameters as the second, for `pareto_figure`."""
    extended = [
        replace(record, values={**record.values, "parameters": parameters[record.architecture]})
        if record.state.has_score
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
    """Trials without a score, at a fixed height: they have no value."""
    found = False
    for state in State:
        numbers = [record.number for record in records if record.state is state and not state.has_score]
        if numbers:
            found = True
            axes.plot(
                numbers,
                [0.045] * len(numbers),
                state.mark,
                transform=axes.get_xaxis_transform(),
                color=hue(state.hue),
                markersize=7,
                markeredgewidth=1.6,
                label=state.label,
            )
    return found


def _annotate(axes: Axes, trial: int, place: tuple[float, float], goal: Goal, *, beyond: float = 0.0) -> None:
    """Name the best by the first goal, on the side where there are no better values and inside the axes.

    Args:
        beyond: how far its error bar reaches that way.
    """
    x, y = place
    across = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[0]
    side = "left" if across < 0.3 else "right" if across > 0.7 else "center"
    axes.annotate(
        f"best: trial {trial}, {goal.name} {format_value(goal.name, y)}",
        (x, y + beyond),
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
        axis.axes.set_xlim(padded(costs, below=0.05, above=0.05))
        axis.set_major_locator(MaxNLocator(integer=is_count, min_n_ticks=1))
    if is_count:
        axis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def short_count(value: float) -> str:
    """A count for an axis: 20k, 1.5M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def padded(values: Sequence[float], *, below: float, above: float) -> tuple[float, float]:
    """Limits around values, with room as a share of their span; a single value gets some room too."""
    low, high = min(values), max(values)
    span = high - low or abs(high) * 0.1 or 1.0
    if high == low:
        low, high = low - span / 2, high + span / 2
    return low - below * span, high + above * span


def _axis_label(goal: Goal, *, short: bool = False) -> str:
    name = heading(goal.name)
    return name if short else f"{name} ({'higher' if goal.maximize else 'lower'} is better)"


def _counted(num_trials: int) -> str:
    return f"{num_trials} trial" if num_trials == 1 else f"{num_trials} trials"
