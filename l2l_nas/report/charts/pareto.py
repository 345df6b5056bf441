"""What the goals cost each other. Scores of trials and of trained networks share no axis, and so no chart."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.cost.table import COUNTS
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.chart import Axis, Chart, Place, Point, Series, axis_label, best_so_far, line
from l2l_nas.report.network import Network
from l2l_nas.report.results import Results
from l2l_nas.report.text import format_value


def trade_off_charts(results: Results, goal: Goal, cost: Goal) -> tuple[Chart, ...]:
    """One goal over another: the finalists, where there are any, then the trials.

    The front is a staircase of these two goals: the best of the first for at most (at least) so much of the second. It
    is that of the finalists where there are any, for those are the networks one can use. The points that stand out are
    those that no other beats on all goals.
    """
    trials = _trial_chart(results, goal, cost)
    return (_finalist_chart(results, goal, cost), trials) if results.finalists else (trials,)


def _trial_chart(results: Results, goal: Goal, cost: Goal) -> Chart:
    records, members = results.scored, results.trial_front
    title = f"{goal.name} (trial score) against {cost.name}"
    if not records:
        return Chart(title, message="no complete trial")
    chosen = {network.trial for network in results.finalists}
    marked = {record.number for record in records if record.number in chosen} if chosen else {r.number for r in members}
    first = None if chosen else members[0].number
    points = [
        Point(
            record.values[cost.name],
            record.values[goal.name],
            note=_note(record.number, goal, record.values[goal.name]) if record.number == first else "",
            trial=record.number,
        )
        for record in records
    ]
    label = "trained further as a finalist" if chosen else f"on the front, {len(members)} of {len(records)}"
    places = [(point.x, point.y) for point in points]
    return Chart(
        title if chosen else f"{title}: {len(members)} of {len(records)} on the front",
        _cost_axis(results, cost, is_final=False),
        _goal_axis(goal, "trial score", [point.y for point in points]),
        (
            Series("trial", tuple(point for point in points if point.trial not in marked), "other trials"),
            *([] if chosen else [_staircase(places, goal, cost)]),
            Series("chosen" if chosen else "front", tuple(point for point in points if point.trial in marked), label),
        ),
    )


def _finalist_chart(results: Results, goal: Goal, cost: Goal) -> Chart:
    networks = results.finalists
    members = {network.trial for network in results.final_front}
    points = [_finalist(network, goal, cost, is_first=network is networks[0]) for network in networks]
    ends = [end for point in points for end in point.reach or (point.y,)]
    what = "mean of the last validations" if networks[0].has_mean else "validation, after training"
    others = "other finalists" + ("; the bars are one standard error" if any(point.reach for point in points) else "")
    return Chart(
        f"{goal.name} (validation after training) against {cost.name}: {len(members)} of {len(networks)} on the front",
        _cost_axis(results, cost, is_final=True),
        _goal_axis(goal, what, ends),
        (
            _staircase([(point.x, point.y) for point in points], goal, cost),
            Series("final", tuple(point for point in points if point.trial not in members), others),
            Series(
                "front",
                tuple(point for point in points if point.trial in members),
                f"on the front, {len(members)} of {len(networks)}",
            ),
        ),
    )


def _finalist(network: Network, goal: Goal, cost: Goal, *, is_first: bool) -> Point:
    value, error = network.compared_values[goal.name], network.compared_error(goal.name)
    return Point(
        network.compared_values[cost.name],
        value,
        reach=(value - error, value + error) if error else None,
        note=_note(network.trial, goal, value) if is_first else "",
        trial=network.trial,
    )


def _note(trial: int, goal: Goal, value: float) -> str:
    return f"best: trial {trial}, {goal.name} {format_value(goal.name, value)}"


def _staircase(places: Sequence[Place], goal: Goal, cost: Goal) -> Series:
    """The front of two goals; it goes on at its best value, up to the dearest of all."""
    across, up = (-1 if cost.maximize else 1), (-1 if goal.maximize else 1)
    ordered = sorted(places, key=lambda place: (across * place[0], up * place[1]))
    return line("stairs", best_so_far(ordered, goal, until=ordered[-1][0]))


def _goal_axis(goal: Goal, what: str, values: Sequence[float]) -> Axis:
    """With space for the note of the best, on the side where there are no better values."""
    return Axis.around(axis_label(goal, what), values, (0.07, 0.18) if goal.maximize else (0.18, 0.07))


def _cost_axis(results: Results, cost: Goal, *, is_final: bool) -> Axis:
    """Finalists and trials have the same axis for what they have in common, a cost."""
    trials = [record.values[cost.name] for record in results.scored]
    finals = [network.compared_values[cost.name] for network in results.finalists]
    is_cost = all(cost.name in network.costs for network in results.finalists)
    values = [*trials, *finals] if is_cost else finals if is_final else trials
    label = axis_label(cost) if is_cost else axis_label(cost, "validation" if is_final else "trial score")
    return Axis.counting(label, values) if cost.name in COUNTS else Axis.around(label, values, (0.05, 0.05))
