"""Tables for the terminal, made for 80 columns: in colour on a terminal, plain in a file or a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from rich import box
from rich.table import Table
from rich.text import Text

from l2l_nas.report.text import format_choices, format_value
from l2l_nas.search.records import Goal, TrialRecord, distinct, pareto_front, ranked

_BEST = "bold green"


def best_table(records: Sequence[TrialRecord], goals: Sequence[Goal], *, limit: int = 5) -> Table:
    """The best trials by the first goal: rank, trial number, values, architecture.

    The best value of each goal among the rows shown stands out.
    """
    return _trial_table("Best trials", ranked(records, goals)[:limit], goals, num_complete=len(distinct(records)))


def pareto_table(records: Sequence[TrialRecord], goals: Sequence[Goal]) -> Table:
    """The trials that no other beats on all goals, best first by the first goal."""
    return _trial_table("Pareto front", pareto_front(records, goals), goals, num_complete=len(distinct(records)))


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
    table = new_table(f"{_counted(len(rows), 'run')}" + (f" in {parents.pop()}" if together else ""))
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


def _trial_table(title: str, rows: Sequence[TrialRecord], goals: Sequence[Goal], *, num_complete: int) -> Table:
    table = new_table(f"{title}: {len(rows)} of {num_complete} complete" if rows else f"{title}: no complete trial")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("trial", justify="right", no_wrap=True)
    for goal in goals:
        # a long name may be broken, a number never
        widest = max((len(format_value(goal.name, record.values[goal.name])) for record in rows), default=0)
        table.add_column(goal.name, justify="right", overflow="fold", min_width=widest)
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


def new_table(title: str) -> Table:
    """An empty table in the style of all."""
    return Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, header_style="cyan", pad_edge=False
    )


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


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
