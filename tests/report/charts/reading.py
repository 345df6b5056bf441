"""Reads descriptions of charts as tests compare them."""

from __future__ import annotations

from l2l_nas.report.charts.chart import Chart, Series


def places(series: Series) -> list[tuple[float, float]]:
    return [(point.x, point.y) for point in series.points]


def labelled(chart: Chart, label: str) -> Series:
    """The one series of a label."""
    (found,) = (series for series in chart.series if series.label == label)
    return found


def styled(chart: Chart, style: str) -> Series:
    """The one series of a style."""
    (found,) = (series for series in chart.series if series.style == style)
    return found


def notes(chart: Chart) -> list[str]:
    return [point.note for series in chart.series for point in series.points if point.note]
