from __future__ import annotations

from l2l_nas.report.charts.curve import curve_sheet
from l2l_nas.training.retrain import Validation
from tests.report.charts.reading import places


def validations(count: int) -> list[Validation]:
    return [
        Validation(
            10 * i, {"accuracy": 0.5 + i / 20, "loss": 2.0 / (i + 1)}, 3.0 / (i + 1) if i else None, 0.1 if i else None
        )
        for i in range(count)
    ]


def drawn(sheet) -> dict[str, list[tuple[float, float]]]:
    return {series.label: places(series) for chart in sheet.charts for series in chart.series}


def test_the_metric_and_the_losses_are_drawn_and_the_best_look_is_marked():
    some = validations(4)
    sheet = curve_sheet(some, some[2], metric="accuracy")
    lines = drawn(sheet)
    assert lines["validation accuracy"] == [(0, 0.5), (10, 0.55), (20, 0.6), (30, 0.65)]
    assert lines["best, saved"] == [(20, 0.6)]
    assert lines["training loss, mean since the validation before"] == [(10, 1.5), (20, 1.0), (30, 0.75)]
    assert lines["validation loss"][0] == (0, 2.0)
    assert "accuracy 0.6000 at step 20" in sheet.charts[0].title


def test_a_loss_that_decides_is_drawn_once():
    some = validations(3)
    sheet = curve_sheet(some, some[2], metric="loss")
    assert set(drawn(sheet)) == {"validation loss", "best, saved", "training loss, mean since the validation before"}


def test_one_look_is_a_sheet_too():
    for metric, count in (("accuracy", 2), ("loss", 1)):
        assert len(curve_sheet(validations(1), validations(1)[0], metric=metric).charts) == count


def test_losses_far_apart_get_a_logarithmic_axis():
    for number, is_log in ((3, False), (60, True)):
        axis = curve_sheet(validations(number), validations(number)[0], metric="accuracy").charts[1].y
        assert axis is not None
        assert axis.is_log == is_log == axis.label.endswith("log scale")
