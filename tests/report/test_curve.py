from __future__ import annotations

import pytest

from l2l_nas.training.retrain import Look

pytest.importorskip("matplotlib")

from l2l_nas.report.curve import curve_figure
from tests.report.test_plots import assert_drawn


def looks(count: int) -> list[Look]:
    return [
        Look(
            10 * i, {"accuracy": 0.5 + i / 20, "loss": 2.0 / (i + 1)}, 3.0 / (i + 1) if i else None, 0.1 if i else None
        )
        for i in range(count)
    ]


def drawn(figure) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        for axes in figure.axes
        for line in axes.lines
    }


def test_the_metric_and_the_losses_are_drawn_and_the_best_look_is_marked():
    some = looks(4)
    figure = curve_figure(some, some[2], metric="accuracy")
    lines = drawn(figure)
    assert lines["validation accuracy"] == [(0, 0.5), (10, 0.55), (20, 0.6), (30, 0.65)]
    assert lines["best, kept"] == [(20, 0.6)]
    assert lines["training loss, mean since the look before"] == [(10, 1.5), (20, 1.0), (30, 0.75)]
    assert lines["validation loss"][0] == (0, 2.0)
    assert "accuracy 0.6000 at step 20" in figure.axes[0].get_title(loc="left")
    assert_drawn(figure)


def test_a_loss_that_decides_is_drawn_once():
    some = looks(3)
    figure = curve_figure(some, some[2], metric="loss")
    assert set(drawn(figure)) == {"validation loss", "best, kept", "training loss, mean since the look before"}
    assert_drawn(figure)


def test_one_look_is_a_picture_too():
    for metric in ("accuracy", "loss"):
        assert_drawn(curve_figure(looks(1), looks(1)[0], metric=metric))


def test_losses_far_apart_get_a_logarithmic_axis():
    assert curve_figure(looks(3), looks(3)[0], metric="accuracy").axes[1].get_yscale() == "linear"
    assert curve_figure(looks(60), looks(60)[0], metric="accuracy").axes[1].get_yscale() == "log"
