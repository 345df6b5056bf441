"""Tables of coloured cells: how often each candidate was trained, and what it scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from l2l_nas.nas.strategies.coverage import SHARE
from l2l_nas.report.importance import MIN_TRIALS, Effect, main_effects
from l2l_nas.report.results import Results, Tried
from l2l_nas.report.text import counted, format_value

_MAX_CELLS = 6000
DASH = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    """A candidate of a position."""

    text: str  # text, small: the figure, and a lesser one behind it
    small: str = ""
    # -1 to 1, how far the figure is below or above the mean; None where there is none to compare
    heat: float | None = None
    is_scarce: bool = False  # whether it was trained far less than the others of its position


Cells = tuple[Cell | None, ...]  # of a position, one a column; None where it does not offer that candidate


@dataclass(frozen=True)
class Grid:
    """Rows of cells, or the message why there is nothing to show."""

    title: str  # what it shows
    columns: tuple[str, ...] = ()  # names of candidates
    rows: Mapping[str, Cells] = field(default_factory=dict)  # by position with a choice, or several of them
    caption: str = ""  # what the cells are
    message: str = ""  # why there is nothing to show
    effects: tuple[Effect, ...] = ()  # what the choice of each row did; empty where that was not asked


def coverage_grid(results: Results, warmup: Mapping[str, Mapping[str, int]]) -> Grid:
    """How often each candidate was trained.

    Args:
        results: whose trials are counted.
        warmup: steps by row and candidate; empty where there was none.
    """
    title = "How often each candidate was trained"
    rows = {row: counts for row, counts in results.coverage(warmup).items() if len(counts) > 1}
    names = tuple(dict.fromkeys(name for counts in rows.values() for name in counts))
    use_steps = any(one.steps for counts in rows.values() for one in counts.values())
    if not rows:
        return Grid(title, message="No position has a choice.")
    if len(rows) * len(names) > _MAX_CELLS:
        return Grid(title, message="This space is too large for such a table.")
    if not use_steps and not results.records:
        return Grid(title, message="Nothing is counted before the end of the warm-up.")
    cells = {row: _coverage_cells(counts, names, use_steps=use_steps) for row, counts in rows.items()}
    num_scarce = sum(cell is not None and cell.is_scarce for row in cells.values() for cell in row)
    trials = "trials that chose the candidate and how many of them failed"
    caption = (
        f"Each cell has the steps of the warm-up that trained a candidate, then + the {trials}. Blue is more than the "
        "mean of its position, orange less. A red frame marks less than a third of it: such scores may be low; here "
        f"{counted(num_scarce, 'candidate') if num_scarce else 'none'}."
        if use_steps
        else f"Each cell has the {trials}; no warm-up was counted. Blue is more than the mean of its position, orange "
        "less."
    )
    return Grid(title, names, cells, caption)


def _coverage_cells(counts: Mapping[str, Tried], columns: tuple[str, ...], *, use_steps: bool) -> Cells:
    measured = {name: one.steps if use_steps else one.trials for name, one in counts.items()}
    mean = sum(measured.values()) / len(measured)
    cells = {
        candidate: Cell(
            f"{measured[candidate]:,}",
            ", ".join([f"+{one.trials:,}"] * use_steps + [f"{one.failed:,} failed"] * (one.failed > 0)),
            max(-1.0, min(1.0, measured[candidate] / mean - 1)) if mean else 0.0,
            use_steps and one.steps < SHARE * mean,
        )
        for candidate, one in counts.items()
    }
    return tuple(cells.get(candidate) for candidate in columns)


def importance_grid(results: Results) -> Grid:
    """How much each position's choice did, and the mean score of every candidate."""
    title = "Which positions matter"
    goal = results.goals[0]
    effects = main_effects(results.card, results.in_space, goal.name)
    if not effects:
        return Grid(title, message=f"This needs at least {MIN_TRIALS} different scores.")
    offered = {position.name: position.candidates for position in results.card.positions}
    tried = {name for effect in effects for name in effect.means}
    columns = tuple(dict.fromkeys(name for names in offered.values() for name in names if name in tried))
    if len(columns) * len(effects) > _MAX_CELLS:
        columns = ()
    values = [record.values[goal.name] for record in results.scored]
    middle = sum(values) / len(values)
    widest = max(abs(mean - middle) for effect in effects for mean in effect.means.values()) or 1.0

    def cell(effect: Effect, name: str) -> Cell | None:
        if name not in effect.means:
            return Cell(DASH) if name in offered[effect.position] else None
        mean = effect.means[name]
        text = f"{mean:.3f}" if 1e-2 <= abs(mean) < 1e3 else format_value(goal.name, mean)
        heat = (mean - middle) / widest * (1 if goal.maximize else -1)
        return Cell(text, f"{effect.counts[name]}", heat)

    rows = {effect.position: tuple(cell(effect, name) for name in columns) for effect in effects}
    caption = (
        f"Each cell has the mean {goal.name} of the trials with this candidate, and their number. Blue is better than "
        "the mean of all trials, orange worse."
    )
    return Grid(title, columns, rows, caption if columns else "", effects=effects)
