"""The tables of networks and trials, as plain data, for the page and for a terminal.

A trial's score and what a network came to by a training of its own never share a column.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from l2l_nas.nas.objectives import TrialRecord, ranked
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.charts.grid import DASH
from l2l_nas.report.network import TEST, VALIDATION, Network, RandomBaseline
from l2l_nas.report.results import Results
from l2l_nas.report.styles import hue_class
from l2l_nas.report.text import format_value, heading, short_heading
from l2l_nas.space.architecture import Architecture, format_choices

MAX_FRONT = 40
MAX_TRIALS = 3000
_LONG = 500  # rows; of more, the page has as little of each as its script can make a row of
_DIGITS = string.digits + string.ascii_lowercase


@dataclass(frozen=True)
class TableColumn:
    """A column: its title, and the classes of its cells."""

    title: str
    class_: str = "n wrap"
    unbroken: int = 80  # so many letters of a number are never broken on a terminal


class Best(str):
    """A value that none of its column is better than."""


@dataclass(frozen=True)
class Drawn:
    """An architecture in a cell."""

    words: str  # its candidates
    strip: tuple[str, ...] = ()  # a class for each position, for coloured squares; empty for none
    is_gone: bool = False  # whether it has candidates that the space no longer offers
    is_code: bool = False  # whether candidates are numbers in base 36, parted by points where one has two digits


@dataclass(frozen=True)
class TableRow:
    """A row of cells, one a column."""

    cells: tuple[str | Drawn, ...]  # text, or an architecture
    trial: int | None = None  # which it is of; None for none
    is_winner: bool = False  # whether it stands out
    tip: str = ""  # what its second cell says when one points at it


@dataclass(frozen=True)
class Table:
    """Columns and rows; one that is whole cannot be scrolled up and down."""

    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]
    is_whole: bool = False
    names: tuple[tuple[str, ...], ...] = ()  # candidates by position, where architectures are written as their numbers

    @property
    def is_long(self) -> bool:
        """Whether the page's script gives its cells their classes and labels, which make a page large."""
        return len(self.rows) > _LONG


TRIAL, ARCHITECTURE = TableColumn("trial", "n"), TableColumn("architecture", "")


def drawn(card: SpaceSummary, network: Network | TrialRecord) -> Drawn:
    """An architecture for a cell; of candidates that are gone there are only the names."""
    words = format_choices(network.architecture, is_whole=True)
    if isinstance(network, TrialRecord) and not network.in_space:
        return Drawn(words, is_gone=True)
    pairs = zip(card.positions, network.architecture.choices, strict=True)
    strip = ("gap" if name in position.skips else hue_class(card.hue_numbers[name]) for position, name in pairs)
    return Drawn(words, tuple(strip))


def coded(card: SpaceSummary, record: TrialRecord) -> Drawn:
    """The same in as few letters as may be: with 3,000 of them, a page of all names has several megabytes."""
    if not record.in_space:
        return drawn(card, record)
    pairs = zip(card.positions, record.architecture.choices, strict=True)
    digits = [_base_36(position.candidates.index(name)) for position, name in pairs]
    return Drawn(("." if max(map(len, digits)) > 1 else "").join(digits), is_code=True)


def _base_36(number: int) -> str:
    return (_base_36(number // 36) if number >= 36 else "") + _DIGITS[number % 36]


def value_cell(name: str, value: float | None) -> str:
    """A value, or a dash where there is none."""
    return DASH if value is None else format_value(name, value)


def best_table(results: Results, *, metrics: Collection[str], limit: int = 5) -> Table:
    """The best trials by the first goal, for a terminal; the best value of each goal among them stands out.

    Args:
        metrics: names of goals that are measured, with the weights that the trial had: their columns say so.
    """
    shown = ranked(results.records, results.goals)[:limit]
    rows = []
    for rank, record in enumerate(shown, start=1):
        cells = [str(rank), str(record.number)]
        for goal in results.goals:
            value = record.values[goal.name]
            is_best = not any(goal.better(other.values[goal.name], value) for other in shown)
            cells.append((Best if is_best else str)(format_value(goal.name, value)))
        rows.append(TableRow((*cells, format_choices(record.architecture)), record.number))
    names = (f"{goal.name}, trial score" if goal.name in metrics else goal.name for goal in results.goals)
    return Table((TableColumn("rank", "n"), TRIAL, *map(TableColumn, names), ARCHITECTURE), tuple(rows))


# costs of training, and what follows from the number of parameters
_OF_STEPS = ("file_bytes", "streamed_bytes", "device_bytes", "step_ms", "forward_ms")


def finalist_table(results: Results, *, winner: int | None, is_narrow: bool = False) -> Table:
    """What was trained further: every score beside its error, each kind in a column of its own.

    Args:
        results: with at least one finalist.
        winner: the trial of the network that the search came to; None before its end.
        is_narrow: whether there are 80 columns alone: for metrics but the first goal there is the score on the
            validation part, for costs those that are goals, and no architecture.
    """
    finalists, goals = results.finalists, results.goals
    metrics = [g.name for g in goals if any(g.name in network.part(VALIDATION) for network in finalists)]
    costs = list(dict.fromkeys(name for network in finalists for name in network.costs))
    if "cache_bytes" in costs:  # of networks that write there are many, and not all have space
        costs = [name for name in costs if name not in _OF_STEPS or name in [goal.name for goal in goals]]
    parts = [VALIDATION, *([TEST] if any(network.test for network in finalists) else [])]
    scored = [(part, name) for part in parts for name in metrics]
    is_raced = in_rounds(finalists)
    if is_narrow:
        scored = [one for one in scored if one[0] == VALIDATION or one[1] == metrics[0]]
        # there is space for one of them: who was trained how long says more of the figures beside it
        costs = [goal.name for goal in goals if goal.name not in metrics] or ([] if is_raced else ["parameters"])
    before = metrics[:1] if is_narrow else metrics
    means = (
        [] if is_narrow else [name for name in metrics if any(n.has_mean and name in n.compared_by for n in finalists)]
    )
    unbroken = 15 if len(goals) < 3 and len(metrics) < 2 else 8  # a figure beside its error, as there is space
    members = {network.trial for network in results.final_front} if len(goals) > 1 or not is_narrow else set()
    columns = [TRIAL, *(TableColumn(f"{name}, trial score", "n wrap pale") for name in before)]
    columns += [TableColumn(f"{name}, mean of the last validations") for name in means]
    columns += [TableColumn(f"{name}, {part}", unbroken=unbroken) for part, name in scored]
    columns += (
        [TableColumn("steps", "n")]
        if is_raced
        else [TableColumn("front" if is_narrow else "on the front", "wrap")]
        if members
        else []
    )
    columns += [TableColumn(short_heading(name)) for name in costs]
    rows = []
    for network in finalists:
        cells: list[str | Drawn] = [str(network.trial)]
        cells += [value_cell(name, network.trial_score.get(name)) for name in before]
        cells += [network.compared(name) or DASH for name in means]
        cells += [network.scored(part, name) or DASH for part, name in scored]
        cells += [f"{network.steps:,}"] if is_raced else ["yes" if network.trial in members else ""] if members else []
        cells += [value_cell(name, network.costs.get(name)) for name in costs]
        cells += [] if is_narrow else [drawn(results.card, network)]
        rows.append(TableRow(tuple(cells), network.trial, network.trial == winner))
    return Table((*columns, *([] if is_narrow else [ARCHITECTURE])), tuple(rows), is_whole=True)


def in_rounds(finalists: Sequence[Network]) -> bool:
    """Whether some were trained longer than others."""
    return len({network.steps for network in finalists}) > 1


def baseline_table(results: Results, beside: RandomBaseline) -> Table:
    """The winner, and the best of random search of as many steps."""
    winner, goal = results.finalists[0], results.goals[0].name
    parts = [part for part in (VALIDATION, TEST) if goal in winner.part(part) and goal in beside.best.part(part)]
    columns = [TableColumn("", ""), *(TableColumn(f"{goal}, {part}") for part in parts)]
    columns += [TableColumn(short_heading("parameters")), ARCHITECTURE]
    rows = tuple(
        TableRow(
            (
                name,
                *(network.scored(part, goal) for part in parts),
                value_cell("parameters", network.costs.get("parameters")),
                drawn(results.card, network),
            )
        )
        for name, network in (("this search", winner), ("random search", beside.best))
    )
    return Table(tuple(columns), rows, is_whole=True)


def front_table(results: Results) -> Table:
    """The first of the trials that no other beats."""
    first, *others = (goal.name for goal in results.aims)
    columns = [TRIAL, TableColumn(f"{first}, trial score")]
    for name in others:
        is_cost = all(name in network.costs for network in (*results.finalists, *results.leaders(1)))
        columns.append(TableColumn(heading(name) if is_cost else f"{name}, trial score"))
    rows = tuple(
        TableRow(
            (
                str(record.number),
                *(format_value(goal.name, record.values[goal.name]) for goal in results.aims),
                drawn(results.card, record),
            ),
            record.number,
        )
        for record in results.trial_front[:MAX_FRONT]
    )
    return Table((*columns, ARCHITECTURE), rows)


def _is_model_itself(card: SpaceSummary, architecture: Architecture) -> bool:
    """Whether it is the model that was converted: each position that offers it has the model's own part."""
    pairs = zip(card.positions, architecture.choices, strict=False)
    choices = [choice for position, choice in pairs if position.candidates[0] == "original"]
    return bool(choices) and set(choices) == {"original"}


def trial_table(results: Results) -> Table:
    """Every trial, in the order they were made."""
    names = [goal.name for goal in results.aims]
    columns = [
        TRIAL,
        TableColumn("outcome", ""),
        *(TableColumn(heading(name)) for name in names),
        TableColumn("seconds", "n"),
    ]
    rows: list[TableRow] = []
    is_long = len(results.records) > _LONG
    for record in results.records[:MAX_TRIALS]:
        outcome = f"{record.state.label}, repeated" if record.cached else record.state.label
        outcome += ", the model itself" if _is_model_itself(results.card, record.architecture) else ""
        cells: list[str | Drawn] = [
            str(record.number),
            outcome,
            *(value_cell(name, record.values.get(name)) for name in names),
        ]
        row = (*cells, f"{record.seconds:.2f}", (coded if is_long else drawn)(results.card, record))
        rows.append(TableRow(row, record.number, tip=record.reason))
    candidates = tuple(position.candidates for position in results.card.positions) if is_long else ()
    return Table((*columns, ARCHITECTURE), tuple(rows), names=candidates)
