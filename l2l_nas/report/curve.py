"""The picture of one network's training: what was measured on the validation data, and the loss, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from l2l_nas.report.figures import BLUE, GREY, INK, ORANGE, PALE, SKY, new_figure
from l2l_nas.report.text import format_value
from l2l_nas.training.retrain import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def curve_figure(looks: Sequence[Look], best: Look, *, metric: str) -> Figure:
    """The metric that decides, and below it the losses, over the steps; the best look is marked.

    Args:
        looks: at least one, in order.
        best: one of them.
        metric: one of their values.
    """
    trained = [(look.step, look.train_loss) for look in looks if look.train_loss is not None]
    validated = [(look.step, look.values["loss"]) for look in looks if metric != "loss" and "loss" in look.values]
    has_losses = bool(trained or validated)
    figure = new_figure(8.0, 6.0 if has_losses else 4.0, layout="constrained")
    upper = figure.add_subplot(2 if has_losses else 1, 1, 1)
    _plot(upper, [(look.step, look.values[metric]) for look in looks], color=BLUE, label=f"validation {metric}")
    shown = format_value(metric, best.values[metric])
    upper.plot(best.step, best.values[metric], "o", markersize=9, color=ORANGE, markeredgecolor=INK, label="best, kept")
    upper.set_title(
        f"Training: {metric} {shown} at step {best.step:,}", loc="left", fontsize=12, fontweight="bold", color=INK
    )
    _dress(upper, f"validation {metric}")
    if has_losses:
        lower = figure.add_subplot(2, 1, 2, sharex=upper)
        _plot(lower, trained, color=SKY, label="training loss, mean since the look before")
        _plot(lower, validated, color=BLUE, label="validation loss")
        values = [value for _, value in (*trained, *validated)]
        is_log = min(values) > 0 and max(values) > 10 * min(values)
        if is_log:
            lower.set_yscale("log")
        _dress(lower, "loss, log scale" if is_log else "loss")
    figure.axes[-1].set_xlabel("training step", color=INK)
    return figure


def _plot(axes: Axes, points: Sequence[tuple[int, float]], *, color: str, label: str) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker="o" if len(xs) <= 60 else "", markersize=4, color=color, linewidth=2, label=label)


def _dress(axes: Axes, label: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, which="both")
    axes.set_ylabel(label, color=INK)
    axes.legend(frameon=False, fontsize=9)
