"""Learning curves: scores of finalists after each round of their training, and of trials during theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from l2l_nas.nas.objectives import Goal, State, ranked
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, axis_label
from l2l_nas.report.network import read_rungs
from l2l_nas.report.results import Results

_MAX_LINES = 120  # more lines hide each other
Curve = tuple[int, Mapping[int, float]]  # a trial, and its scores by steps


def finalist_curves(results: Results) -> Chart:
    """The score of each finalist after each round, over the steps that it was trained."""
    goal = _measured(results.goals, [metrics for one in results.finalists for metrics in one.rungs.values()])
    curves = [
        (one.trial, {step: values[goal.name] for step, values in one.rungs.items()})
        for one in results.finalists
        if len(one.rungs) > 1 and all(goal.name in values for values in one.rungs.values())
    ]
    title = f"{goal.name} of finalists after each round (validation)"
    if not curves:
        return Chart(title, message="Finalists are scored during their training if search.finalist_rounds is above 1.")
    best = results.finalists[0].trial
    groups = [
        ("course", "final", "other finalists", [curve for curve in curves if curve[0] != best]),
        ("stairs", "best", f"trial {best}, the best", [curve for curve in curves if curve[0] == best]),
    ]
    return _chart(title, goal, "validation", groups)


def trial_curves(results: Results) -> Chart:
    """The scores of trials during their training; of very many, an even choice and the best."""
    goal = _measured(results.goals, [metrics for one in results.in_space for metrics in one.rungs.values()])
    best = [record.number for record in ranked(results.in_space, results.goals)[:1]]
    groups: dict[State, list[Curve]] = {}
    for record in results.in_space:
        values = {step: found[goal.name] for step, found in read_rungs(record.rungs).items() if goal.name in found}
        if values and record.state.has_score and goal.name in record.values:
            values[_total(record.rungs)] = record.values[goal.name]
        if values and not record.cached:
            groups.setdefault(record.state, []).append((record.number, values))
    title = f"{goal.name} of trials during their training"
    if not groups:
        return Chart(title, message="Trials are scored during their training with search.early_stop=halving.")
    whole = groups.get(State.COMPLETE, [])
    shown = [
        ("halved", "stopped", State.STOPPED.label, _thinned(groups.get(State.STOPPED, []))),
        ("course", "trial", "went on to the end", _thinned([curve for curve in whole if curve[0] not in best])),
        ("stairs", "best", "the best", [curve for curve in whole if curve[0] in best]),
    ]
    return _chart(title, goal, "trial score", shown)


def _measured(goals: Sequence[Goal], found: Sequence[Mapping[str, float]]) -> Goal:
    """The first goal that is a metric: a cost does not change in a training."""
    return next((goal for goal in goals if any(goal.name in metrics for metrics in found)), goals[0])


def _chart(title: str, goal: Goal, what: str, groups: Sequence[tuple[str, str, str, Sequence[Curve]]]) -> Chart:
    lines: list[Series] = []
    dots: list[Series] = []
    for line, dot, label, curves in groups:
        points = [tuple(Point(x, y, trial=trial) for x, y in sorted(values.items())) for trial, values in curves]
        lines += [Series(line, one, kind="line") for one in points]
        dots += [Series(dot, tuple(point for one in points for point in one), label)] if points else []
    found = [point for one in dots for point in one.points]
    return Chart(
        title,
        Axis.around("steps trained", [0, *(point.x for point in found)], (0.02, 0.03), is_count=True),
        Axis.around(axis_label(goal, what), [point.y for point in found], (0.07, 0.08)),
        (*lines, *dots),
    )


def _total(rungs: Mapping[str, object]) -> int:
    return int(next(iter(rungs)).partition("/")[2])


def _thinned(curves: Sequence[Curve]) -> Sequence[Curve]:
    return curves[:: math.ceil(len(curves) / _MAX_LINES) or 1]
