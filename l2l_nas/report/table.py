"""Tables for the terminal, made for 80 columns: in colour on a terminal, plain in a file or a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text

from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.sweep_study import SweepRecord, Values
from l2l_nas.report.charts.tables import Best, Column, Drawn, TableRow
from l2l_nas.report.charts.tables import Table as Described
from l2l_nas.report.network import Network, RandomBaseline, margin
from l2l_nas.report.text import counted, format_value

_BEST = "bold green"


def terminal_table(title: str, table: Described) -> Table:
    """A described table; the winner's row stands out."""
    made = new_table(title)
    for index, column in enumerate(table.columns):
        title = column.title.replace(", ", ",\n")
        if not column.class_:  # words, which take what space is left
            made.add_column(title, overflow="fold", ratio=1)
        else:
            widest = max((len(str(row.cells[index])) for row in table.rows), default=0)
            side: Literal["left", "right"] = "left" if column.class_ == "words" else "right"
            made.add_column(title, justify=side, overflow="fold", min_width=min(widest, column.unbroken))
    for row in table.rows:
        first, *others = (cell.words if isinstance(cell, Drawn) else cell for cell in row.cells)
        cells = [f"\N{BLACK STAR} {first}" if row.is_winner else first, *others]
        # Text, not str: rich would read [...] in a string as markup
        styled = [Text(cell, style=_BEST if isinstance(cell, Best) else "") for cell in cells]
        made.add_row(*styled, style=_BEST if row.is_winner else "")
    return made


def headline(best: Network) -> str:
    """Each metric of the best: `accuracy 0.9778 ± 0.0078 validation, 0.9694 ± 0.0091 test`."""
    if not best.is_trained:
        return "  ".join(f"{name} {format_value(name, value)}" for name, value in best.trial_score.items())
    return "; ".join(f"{name} {', '.join(best.scores(name))}" for name in best.part("validation"))


def baseline_line(best: Network, other: RandomBaseline | None, goal: Goal) -> str:
    """The best of random search, and how far the best is ahead of it on the test part."""
    if other is None:
        return "random search: none of its networks could be trained"
    failed = f", {other.failed} of them failed" if other.failed else ""
    networks = f"{counted(other.networks, 'network')} of {other.steps:,}{failed}"
    line = f"random search with as many steps ({networks}): {headline(other.best)}"
    return "\n".join(filter(None, (line, margin(best, other.best, goal))))


def sweep_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """The runs of a multirun, in order: folder, overrides, objectives, seconds.

    Args:
        rows: one for each run, with `folder`, `overrides` (text or a list of texts), `seconds`, and under every other
            key the value of an objective. What a run lacks (it failed, say) is shown as a dash.
    """
    names = dict.fromkeys(key for row in rows for key in row if key not in ("folder", "overrides", "seconds"))
    folders = [PurePath(str(row.get("folder", "-"))) for row in rows]
    parents = {folder.parent for folder in folders}
    described = []
    for row, folder in zip(rows, folders, strict=True):
        values = (_cell(name, row.get(name)) for name in names)
        where, overrides = folder.name if len(parents) == 1 else str(folder), _joined(row.get("overrides"))
        described.append(TableRow((where, overrides, *values, _seconds(row.get("seconds")))))
    columns = Column("folder", "words"), Column("overrides", ""), *map(Column, names), Column("seconds")
    title = counted(len(rows), "run") + (f" in {parents.pop()}" if len(parents) == 1 else "")
    return terminal_table(title, Described(columns, tuple(described)))


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
    title = f"{'Pareto front' if len(goals) == 2 else 'Best runs'}: {len(shown)} of {len(complete)} complete"
    rows = []
    for record in shown:
        values = (format_value(one.name, record.values[one.name]) for one in goals)
        cells = str(record.number), *values, settings_text(record.settings), f"{record.seconds:,.1f}"
        rows.append(TableRow(cells))
    columns = Column("run"), *(Column(one.name) for one in goals), Column("settings", ""), Column("seconds")
    return terminal_table(title + (f", {num_failed} failed" if num_failed else ""), Described(columns, tuple(rows)))


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
