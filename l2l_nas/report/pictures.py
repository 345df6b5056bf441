"""The pictures of a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.layout import layout_of
from l2l_nas.files import write_atomically
from l2l_nas.nas.objectives import Goal, TrialRecord, distinct, ranked
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.report.coverage import coverage_figure
from l2l_nas.report.drawing import architecture_figure
from l2l_nas.report.figures import is_matplotlib_installed, message_figure, png_bytes
from l2l_nas.report.network import Network
from l2l_nas.report.plots import best_so_far_figure, pareto_figure, with_parameters
from l2l_nas.report.text import format_value, with_error
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import Specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_pictures(
    folder: Path,
    records: Sequence[TrialRecord],
    goals: Sequence[Goal],
    *,
    pool: LayerPool,
    boundaries: Sequence[Specs],
    best: Network | None = None,
    finalists: Sequence[Network] = (),
    coverage: Coverage | None = None,
) -> list[Path]:
    """Write `best_so_far.png`, `pareto.png`, `architecture.png` and `coverage.png` into a folder.

    With one goal, `pareto.png` shows it against the number of parameters. Without a complete trial, they say so.

    Args:
        folder: it must exist.
        records: all trials of the run.
        goals: one to three; `pareto.png` shows the first two.
        pool: what was searched.
        boundaries: what `l2l_nas.space.shapes.check_shapes` returned for the pool.
        best: the network to draw; the best trial where there is none.
        finalists: what was trained further.
        coverage: what was trained on the shared weights; without it, or where it is empty, there is no such picture.

    Returns:
        What was written; nothing where matplotlib is not installed.

    Raises:
        StorageError: a picture could not be written.
    """
    if not is_matplotlib_installed():
        return []
    two = (records, goals)
    if len(goals) == 1:
        live = [record for record in records if record.live]  # layers that are gone have no size any more
        counts = {record.architecture: num_parameters(pool, record.architecture) for record in distinct(live)}
        two = with_parameters([r for r in live if not r.state.has_score or r.architecture in counts], goals, counts)
    figures = {
        "best_so_far.png": best_so_far_figure(records, goals),
        "pareto.png": pareto_figure(*two, finalists),
        "architecture.png": _best_architecture_figure(records, goals, pool, boundaries, best),
    }
    if coverage is not None and not coverage.is_empty:
        figures["coverage.png"] = coverage_figure(coverage)
    paths = []
    for name, figure in figures.items():
        path = folder / name
        write_atomically(path, png_bytes(figure))
        paths.append(path)
    return paths


def parameters_by_position(pool: LayerPool, architecture: Architecture) -> dict[str, int]:
    """By position name, the number of weights first used there: repeated and tied ones count once, skips not at all."""
    seen: set[str] = set()
    counts: dict[str, int] = {}
    for layer in pool.path(architecture):
        fresh = [state for state in layer.states if state not in seen]
        seen.update(fresh)
        counts[pool.positions[layer.position].name] = sum(layout_of(pool, state).num_parameters for state in fresh)
    return counts


def _best_architecture_figure(
    records: Sequence[TrialRecord],
    goals: Sequence[Goal],
    pool: LayerPool,
    boundaries: Sequence[Specs],
    best: Network | None,
) -> Figure:
    live = [record for record in distinct(records) if record.live]
    if best is None and not live:
        return message_figure("Best architecture", "no complete trial")
    best = best or Network.of_trial(ranked(live, goals)[0])
    goal = goals[0].name
    scores = [
        f"{part} {with_error(goal, best.part(part)[goal], best.error(part, goal))}"
        for part in ("validation", "test")
        if goal in best.part(part)
    ] or [f"trial score {format_value(goal, best.values[goal])}"]
    return architecture_figure(
        pool,
        best.architecture,
        boundaries,
        parameters=parameters_by_position(pool, best.architecture),
        title=f"Best architecture (trial {best.trial}): {goal}, {', '.join(scores)}",
    )
