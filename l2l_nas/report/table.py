"""Tables for the terminal, made for 80 columns: in colour on a terminal, plain in a file or a pipe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath

from rich import box
from rich.table import Table
from rich.text import Text

from l2l_nas.nas.objectives import Goal, TrialRecord, distinct, ranked
from l2l_nas.nas.strategies.baseline import Baseline
from l2l_nas.nas.strategies.finalists import Finalist, order, trained_front
from l2l_nas.nas.sweep_study import SweepRecord, Values
from l2l_nas.report.network import Network, RandomBaseline, margin
from l2l_nas.report.text import counted, format_choices, format_value, with_error
from l2l_nas.training.score import PARTS, Score

_BEST = "bold green"


def best_table(
    records: Sequence[TrialRecord], goals: Sequence[Goal], *, metrics: Collection[str], limit: int = 5
) -> Table:
    """The best trials by the first goal: rank, trial number, trial scores, costs, architecture.

    The best value of each goal among the rows shown stands out.

    Args:
        metrics: names of goals that are measured, with the weights that the trial had: their columns say so.
    """
    rows = ranked(records, goals)[:limit]
    complete = len(distinct(records))
    table = new_table(f"Best trials: {len(rows)} of {complete} complete" if rows else "Best trials: no complete trial")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("trial", justify="right", no_wrap=True)
    for goal in goals:
        # a long name may be broken, a number never
        widest = max((len(format_value(goal.name, record.values[goal.name])) for record in rows), default=0)
        title = f"trial score:\n{goal.name}" if goal.name in metrics else goal.name
        table.add_column(title, justify="right", overflow="fold", min_width=widest)
    table.add_column("architecture", overflow="fold", ratio=1)
    best = {goal.name: _best(goal, (record.values[goal.name] for record in rows)) for goal in goals if rows}
    for rank, record in enumerate(rows, start=1):
        values = (
            Text(
                format_value(goal.name, record.values[goal.name]),
                style=_BEST if record.values[goal.name] == best[goal.name] else "",
            )
            for goal in goals
        )
        # Text, not str: rich would read [...] in a string as markup
        table.add_row(str(rank), str(record.number), *values, Text(format_choices(record.architecture)))
    return table


def finalist_table(
    finalists: Sequence[Finalist], best: Finalist, goals: Sequence[Goal], *, metrics: Collection[str]
) -> Table:
    """The finalists, best first on the validation part: trial scores, scores after training with errors, steps, costs.

    The best is marked; so are, with several goals, those that no other beats on all of them. Of metrics other than the
    first goal, there is the score on the validation part alone: nothing more fits.

    Args:
        best: one of them.
        metrics: names of goals that are measured; goals with other names are costs.
    """
    measured = [goal.name for goal in goals if goal.name in metrics]
    parts = [part for part in PARTS if any(part in one.scores for one in finalists)]
    in_rounds = len({one.steps for one in finalists}) > 1
    # there is space for one of them: who was trained how long says more of the figures beside it
    costs = [goal.name for goal in goals if goal.name not in metrics] or ([] if in_rounds else ["parameters"])
    front = {one.record.number for one in trained_front(finalists, goals)} if len(goals) > 1 else set()
    table = new_table(f"Finalists, after training of their own: {counted(len(finalists), 'network')}")
    table.add_column("trial", justify="right", no_wrap=True)
    first, *further = measured
    table.add_column(f"trial score:\n{first}", justify="right", overflow="fold", min_width=6)
    # a figure stays beside its error, as long as there is space
    least = 15 if len(goals) < 3 and not further else 8
    shown = [*((part, first) for part in parts), *(("validation", name) for name in further)]
    for part, name in shown:
        table.add_column(f"{part}:\n{name}", justify="right", overflow="fold", min_width=least)
    if in_rounds:
        table.add_column("steps", justify="right", no_wrap=True)
    for name in costs:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("", no_wrap=True)
    for one in order(finalists, goals):
        is_best = one.record.number == best.record.number
        cells = [str(one.record.number), _cell(first, one.trial_score.get(first))]
        cells += [_scored(one.scores, part, name) for part, name in shown]
        cells += [f"{one.steps:,}"] if in_rounds else []
        cells += [_cell(name, one.costs.get(name)) for name in costs]
        mark = "best" if is_best else "front" if one.record.number in front else ""
        table.add_row(*map(Text, [*cells, mark]), style=_BEST if is_best else "")
    return table


def headline(best: Finalist) -> str:
    """Each metric of the best: `accuracy 0.9778 ± 0.0078 validation, 0.9694 ± 0.0091 test`."""
    if not best.is_trained:
        return "  ".join(f"{name} {format_value(name, value)}" for name, value in best.trial_score.items())
    return score_line(best.scores)


def baseline_line(best: Finalist, other: Baseline | None, goal: Goal) -> str:
    """The best of random search, and how far the best is ahead of it on the test part."""
    if other is None:
        return "random search: none of its networks could be trained"
    failed = f", {len(other.failed)} of them failed" if other.failed else ""
    line = (
        f"random search with as many steps ({counted(other.networks, 'network')} of {other.steps:,}{failed}): "
        f"{score_line(other.scores)}"
    )
    found, beside = Network.from_json(best.entry()), RandomBaseline.from_json(other.entry())
    return "\n".join(filter(None, (line, margin(found, beside.best, goal))))


def score_line(scores: Mapping[str, Score]) -> str:
    """Each metric on each part of the data, with its error."""
    return "; ".join(
        f"{name} " + ", ".join(f"{_scored(scores, part, name)} {part}" for part in PARTS if part in scores)
        for name in scores["validation"].values
    )


def _scored(scores: Mapping[str, Score], part: str, name: str) -> str:
    score = scores.get(part)
    if score is None or name not in score.values:
        return "-"
    return with_error(name, score.values[name], score.errors.get(name))


def sweep_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """The runs of a multirun, in order: folder, overrides, objectives, seconds.

    Args:
        rows: one for each run, with `folder`, `overrides` (text or a list of texts), `seconds`, and under every other
            key the value of an objective. What a run lacks (it failed, say) is shown as a dash.
    """
    objectives = dict.fromkeys(key for row in rows for key in row if key not in ("folder", "overrides", "seconds"))
    folders = [PurePath(str(row.get("folder", "-"))) for row in rows]
    parents = {folder.parent for folder in folders}
    together = len(parents) == 1
    table = new_table(f"{counted(len(rows), 'run')}" + (f" in {parents.pop()}" if together else ""))
    table.add_column("folder", overflow="fold")
    table.add_column("overrides", overflow="fold", ratio=1)
    for name in objectives:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for row, folder in zip(rows, folders, strict=True):
        table.add_row(
            Text(folder.name if together else str(folder)),
            Text(_joined(row.get("overrides"))),
            *(Text(_cell(name, row.get(name))) for name in objectives),
            Text(_seconds(row.get("seconds"))),
        )
    return table


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


def _values_text(record: SweepRecord, goals: Sequence[Goal]) -> str:
    return ", ".join(f"{goal.name} {format_value(goal.name, record.values[goal.name])}" for goal in goals)


def new_table(title: str, *columns: str) -> Table:
    """A table in the style of all, with columns that are never broken."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, header_style="cyan", pad_edge=False
    )
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _best(goal: Goal, values: Iterable[float]) -> float:
    return max(values) if goal.maximize else min(values)


def _joined(overrides: object) -> str:
    if overrides is None or overrides == "":
        return "-"
    return " ".join(map(str, overrides)) if isinstance(overrides, list | tuple) else str(overrides)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    return format_value(name, value) if isinstance(value, int | float) else str(value)


def _seconds(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, int | float) else "-"
