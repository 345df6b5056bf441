"""The best value so far, over the trials of a search."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.errors import counted
from l2l_nas.nas.objectives import State, TrialRecord, distinct, ranked
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, axis_label, best_so_far, line
from l2l_nas.report.results import Results
from l2l_nas.report.text import format_value


def progress_chart(results: Results) -> Chart:
    """Every trial by its number, and the best value of the first goal up to then.

    Trials without a score have no value: they are marks on the floor.
    """
    goal, records = results.goals[0], results.records
    scored = sorted(distinct(records), key=lambda record: record.number)
    if not scored:
        return Chart(f"Best {goal.name} so far", message=f"no complete trial among {counted(len(records), 'trial')}")

    def points(group: Sequence[TrialRecord]) -> tuple[Point, ...]:
        return tuple(Point(r.number, r.values.get(goal.name, 0.0), trial=r.number) for r in group)

    live = [record for record in scored if record.in_space]
    best = ranked(live, results.goals)[:1]
    silent = [record for record in records if not record.state.has_score]
    groups = [
        ("cached", "a repeat, not trained again", [r for r in records if r.cached and r.state.has_score]),
        ("trial", "other trial", [record for record in live if record not in best]),
        ("gone", "a trial with candidates that the space no longer has", [r for r in scored if not r.in_space]),
        ("best", "best", best),
    ]
    series = [
        Series(state.value, points([r for r in silent if r.state is state]), state.label, "floor") for state in State
    ]
    last = max(record.number for record in records)
    series.append(
        line("stairs", best_so_far([(r.number, r.values[goal.name]) for r in live], goal, until=last), "best so far")
    )
    series += [Series(style, points(group), label) for style, label, group in groups]
    values = [record.values[goal.name] for record in records if record.state.has_score]
    title = f"Best {goal.name} so far (trial score)"
    if best:
        title += f": {format_value(goal.name, best[0].values[goal.name])} (trial {best[0].number})"
    return Chart(
        f"{title}, {counted(len(records), 'trial')}",
        Axis.around("trial", [record.number for record in records], (0.02, 0.02), is_count=True),
        Axis.around(axis_label(goal, "trial score"), values, (0.18 if silent else 0.07, 0.08)),
        tuple(one for one in series if one.points),
    )
