"""The pictures of a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from l2l_nas.files import write_atomically
from l2l_nas.report.charts.chart import Sheet
from l2l_nas.report.charts.grid import coverage_grid
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.png import draw, is_matplotlib_installed, message_figure, png_bytes
from l2l_nas.report.png_architecture import architecture_figure
from l2l_nas.report.png_grid import grid_figure
from l2l_nas.report.results import TEST, VALIDATION, Results
from l2l_nas.report.text import format_value, with_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_pictures(
    folder: Path, results: Results, *, warmup: Mapping[str, Mapping[str, int]] | None = None
) -> list[Path]:
    """Write `best_so_far.png`, `pareto.png`, `architecture.png`, and those there is something for, into a folder.

    These are `learning_curves.png`, where networks were scored on their way, and `coverage.png`.

    With one goal, `pareto.png` shows it against the number of parameters; with three, it shows the first two. Without a
    complete trial, the pictures say so.

    Args:
        folder: it must exist.
        results: what the search found.
        warmup: steps of warm-up by row and candidate; None where nothing was trained on shared weights, and there is no
            picture of it.

    Returns:
        What was written; nothing where matplotlib is not installed.

    Raises:
        StorageError: a picture could not be written.
    """
    if not is_matplotlib_installed():
        return []
    figures = {
        "best_so_far.png": draw(Sheet((progress_chart(results),))),
        "pareto.png": draw(Sheet(trade_off_charts(results, *results.trade_offs[0]), panel_in=(8.0, 4.2))),
        "architecture.png": _best_architecture(results),
    }
    curves = Sheet((finalist_curves(results), trial_curves(results)), panel_in=(8.0, 4.2))
    if not all(chart.message for chart in curves.charts):
        figures["learning_curves.png"] = draw(curves)
    if warmup is not None:
        figures["coverage.png"] = grid_figure(coverage_grid(results, warmup))
    paths = []
    for name, figure in figures.items():
        path = folder / name
        write_atomically(path, png_bytes(figure))
        paths.append(path)
    return paths


def _best_architecture(results: Results) -> Figure:
    best, goal = results.best, results.goals[0].name
    if best is None:
        return message_figure("Best architecture", "no complete trial")
    scores = [
        f"{part} {with_error(goal, best.part(part)[goal], best.error(part, goal))}"
        for part in (VALIDATION, TEST)
        if goal in best.part(part)
    ] or [f"trial score {format_value(goal, best.values[goal])}"]
    title = f"Best architecture (trial {best.trial}): {goal}, {', '.join(scores)}"
    return architecture_figure(results.card, best.architecture, title=title)
