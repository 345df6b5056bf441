"""The pictures of a run's folder."""

from __future__ import annotations

from pathlib import Path

from l2l_nas.files import write_atomically
from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.chart import Chart, Sheet
from l2l_nas.report.charts.diagram import FILE, Diagram, lay_out
from l2l_nas.report.charts.learning import finalist_curves, trial_curves
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.charts.progress import progress_chart
from l2l_nas.report.png import Picture, is_matplotlib_installed, png_of
from l2l_nas.report.results import Results


def write_pictures(folder: Path, results: Results) -> list[Path]:
    """Write `best_so_far.png`, `pareto.png` and `architecture.png` into a folder.

    Where networks were scored during their training, `learning_curves.png`, too.

    With one goal, `pareto.png` shows it against the number of parameters; with three, it shows the first two. Without a
    complete trial, the pictures say so.

    Args:
        folder: it must exist.
        results: what the search found.

    Returns:
        What was written; nothing where matplotlib is not installed.

    Raises:
        StorageError: a picture could not be written.
    """
    if not is_matplotlib_installed():
        return []
    pictures: dict[str, Picture] = {
        "best_so_far.png": Sheet((progress_chart(results),)),
        "pareto.png": Sheet(trade_off_charts(results, *results.trade_offs[0]), panel_in=(8.0, 4.2)),
        "architecture.png": _best_architecture(results),
    }
    curves = finalist_curves(results), trial_curves(results)
    if not all(chart.message for chart in curves):
        pictures["learning_curves.png"] = Sheet(curves, panel_in=(8.0, 4.2))
    for name, picture in pictures.items():
        write_atomically(folder / name, png_of(picture))
    return [folder / name for name in pictures]


def _best_architecture(results: Results) -> Sheet | Diagram:
    best, goal, card = results.best, results.goals[0].name, results.card
    if best is None:
        return Sheet((Chart("Best architecture", message="no complete trial"),))
    return lay_out(
        boxes_of(card, best.architecture),
        source=card.source,
        label=f"Best architecture (trial {best.trial}): {goal}, {', '.join(best.scores(goal))}\n"
        f"{len(card.reads(best.architecture))} of {len(card.positions)} positions used, "
        f"{card.num_parameters(best.architecture):,} parameters in total",
        sizes=FILE,
    )
