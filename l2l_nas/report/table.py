"""Tables for the terminal, made for 80 columns: in colour on a terminal, plain in a file or a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from l2l_nas.errors import counted
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.tables import Best, Drawn, TableColumn, TableRow
from l2l_nas.report.charts.tables import Table as Described
from l2l_nas.report.network import Network, RandomBaseline, margin
from l2l_nas.report.text import format_value

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


def baseline_line(best: Network, other: RandomBaseline | None, goal: Goal, count: int) -> str:
    """The best of random search, and how the two differ on the test part; `count` as in `margin`."""
    if other is None:
        return "random search: none of its networks could be trained"
    failed = f", {other.failed} of them failed" if other.failed else ""
    networks = f"{counted(other.networks, 'network')}, {other.steps:,} steps in all{failed}"
    line = f"{other.heading} ({networks}): {headline(other.best)}"
    return "\n".join(filter(None, (line, margin(best, other.best, goal, count))))


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a sweep, in order: folder, overrides that not all have, objectives, seconds.

    Args:
        rows: one for each run, with `folder`, `overrides` (a list of texts), `seconds`, `error` if it failed, and under
            every other key the value of an objective. What a run lacks is shown as a dash.
    """
    words: list[list[str]] = [row["overrides"] for row in rows]
    common = set.intersection(*map(set, words)) if len(rows) > 1 else set()
    names = dict.fromkeys(key for row in rows for key in row if key not in ("folder", "overrides", "seconds", "error"))
    folders = [PurePath(str(row["folder"])) for row in rows]
    described = []
    for row, folder, own in zip(rows, folders, words, strict=True):
        values = (_cell(name, row.get(name)) for name in names)
        differing = " ".join(word for word in own if word not in common)
        cells = folder.name, differing or "-", *values, _seconds(row.get("seconds"))
        described.append(TableRow(cells))
    columns = (
        TableColumn("run", "words"),
        TableColumn("overrides", ""),
        *map(TableColumn, names),
        TableColumn("seconds"),
    )
    title = f"{counted(len(rows), 'run')} in {folders[0].parent}"
    return terminal_table(title, Described(columns, tuple(described)))


def new_table(title: str, *columns: str) -> Table:
    """A table in the style of all, with columns that are never broken."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, header_style="cyan", pad_edge=False
    )
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    return format_value(name, value) if isinstance(value, int | float) else str(value)


def _seconds(value: object) -> str:
    return f"{value:,.1f}" if isinstance(value, int | float) else "-"
