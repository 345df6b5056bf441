"""One network's training: what was measured on the validation data, and the losses, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.report.charts.chart import Axis, Chart, Place, Point, Series, Sheet, line
from l2l_nas.report.text import format_value
from l2l_nas.training.retrain import Validation


def curve_sheet(validations: Sequence[Validation], best: Validation, *, metric: str) -> Sheet:
    """The metric that decides, and below it the losses, over the steps; the best validation is marked.

    Args:
        validations: at least one, in order.
        best: one of them.
        metric: one of their values.
    """
    trained = [
        (validation.step, validation.train_loss) for validation in validations if validation.train_loss is not None
    ]
    validated = [
        (validation.step, validation.values["loss"])
        for validation in validations
        if metric != "loss" and "loss" in validation.values
    ]
    steps = Axis.around("training step", [validation.step for validation in validations], (0.03, 0.03), is_count=True)
    values = [(validation.step, validation.values[metric]) for validation in validations]
    upper = Chart(
        f"Training: {metric} {format_value(metric, best.values[metric])} at step {best.step:,}",
        steps,
        Axis.around(f"validation {metric}", [value for _, value in values], (0.08, 0.08)),
        (
            line("validation", values, f"validation {metric}"),
            Series("best", (Point(best.step, best.values[metric]),), "best, saved"),
        ),
    )
    if not trained and not validated:
        return Sheet((upper,), panel_in=(8.0, 4.0))
    lines = (
        line("training", trained, "training loss, mean since the validation before"),
        line("validation", validated, "validation loss"),
    )
    lower = Chart("Loss", steps, _loss_axis([*trained, *validated]), tuple(one for one in lines if one.points))
    return Sheet((upper, lower), panel_in=(8.0, 3.0))


def _loss_axis(places: Sequence[Place]) -> Axis:
    values = [value for _, value in places]
    low, high = min(values), max(values)
    if low > 0 and high > 10 * low:
        return Axis("loss, log scale", low / 1.2, high * 1.2, is_log=True)
    return Axis.around("loss", values, (0.08, 0.08))
