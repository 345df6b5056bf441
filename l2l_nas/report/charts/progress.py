"""The best value so far, over the trials of a search or the runs of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from l2l_nas.nas.objectives import Goal, State, TrialRecord, distinct, ranked
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, axis_label, best_so_far, line
from l2l_nas.report.charts.tips import GONE, trial_tip
from l2l_nas.report.results import Results
from l2l_nas.report.text import counted, format_value, shorten

if TYPE_CHECKING:
    from l2l_nas.nas.sweeps.sweep_study import SweepRecord

_MAX_BARS = 10


def progress_chart(results: Results) -> Chart:
    """Every trial by its number, and the best value of the first goal up to then.

    Trials without a score have no value: they are marks on the floor.
    """
    goal, records = results.goals[0], results.records
    scored = sorted(distinct(records), key=lambda record: record.number)
    if not scored:
        return Chart(f"Best {goal.name} so far", message=f"no complete trial among {counted(len(records), 'trial')}")

    def points(group: Sequence[TrialRecord]) -> tuple[Point, ...]:
        return tuple(
            Point(r.number, r.values.get(goal.name, 0.0), tip=trial_tip(results, r), trial=r.number) for r in group
        )

    live = [record for record in scored if record.live]
    best = ranked(live, results.goals)[:1]
    silent = [record for record in records if not record.state.has_score]
    groups = [
        ("cached", "a repeat, not trained again", [r for r in records if r.cached and r.state.has_score]),
        ("trial", "other trial", [record for record in live if record not in best]),
        ("gone", f"a trial {GONE}", [record for record in scored if not record.live]),
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


def sweep_sheet(records: Sequence[SweepRecord], goals: Sequence[Goal], importances: Mapping[str, float]) -> Sheet:
    """Every run's value of the first goal and the best up to then; beside it, which settings mattered.

    Args:
        records: all runs.
        goals: one or two.
        importances: shares of the variance by setting; where there are none, the runs stand alone.
    """
    goal = goals[0]
    places = [(record.number, record.values[goal.name]) for record in records if record.state == "complete"]
    if not places:
        return Sheet((Chart(f"Best {goal.name} so far", message="no complete run"),))
    failed = [record.number for record in records if record.state == "failed"]
    last = max(record.number for record in records)
    corners = best_so_far(places, goal, until=last)
    runs = Chart(
        f"Best {goal.name} so far: {format_value(goal.name, corners[-1][1])}",
        Axis.around("run", [0, last], (0.03, 0.03), is_count=True),
        Axis.around(axis_label(goal), [y for _, y in places], (0.12 if failed else 0.06, 0.08)),
        (
            line("stairs", corners, "best so far"),
            Series("trial", tuple(Point(x, y) for x, y in places), "run"),
            *([Series("failed", tuple(Point(x, 0.0) for x in failed), "failed", "floor")] if failed else []),
        ),
    )
    if not importances:
        return Sheet((runs,))
    shown = sorted(importances.items(), key=lambda item: -item[1])[:_MAX_BARS]
    bars = tuple(Point(share, row) for row, (_, share) in enumerate(shown))
    mattered = Chart(
        "What mattered",
        Axis("share of the variance explained", 0.0, 1.0),
        Axis.of_names("", [shorten(name, 34) for name, _ in shown]),
        (Series("trial", bars, kind="bars", is_across=True),),
    )
    return Sheet((runs, mattered), is_row=True, panel_in=(6.0, 4.2))
