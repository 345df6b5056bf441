from __future__ import annotations

import pytest

from benchmarks.charts import bench_sheet
from tests.benchmarks.examples import ALL, memory, throughput
from tests.report.charts.reading import labelled, notes, places


@pytest.mark.parametrize("name", list(ALL))
def test_every_bench_has_charts_with_titles_and_named_axes(name):
    for chart in bench_sheet(ALL[name]).charts:
        assert chart.title
        assert chart.x is not None
        assert chart.y is not None
        assert chart.y.label or chart.y.marks
        assert chart.x.label or chart.x.marks
        assert all(series.points for series in chart.series)


@pytest.mark.parametrize("name", list(ALL))
def test_every_bench_can_be_drawn(name):
    pytest.importorskip("matplotlib")
    from l2l_nas.report.png import draw
    from tests.report.test_png import assert_drawn

    sheet = bench_sheet(ALL[name])
    figure = draw(sheet)
    assert_drawn(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [chart.title for chart in sheet.charts]


def test_memory_is_drawn_for_the_sides_that_were_measured():
    (chart,) = bench_sheet(memory()).charts
    assert places(labelled(chart, "relay_host (x 1.00)")) == [(12, 4e6), (24, 4e6), (384, 4e6)]
    assert len(chart.series) == 3
    assert chart.x is not None
    assert chart.y is not None
    assert chart.x.is_log
    assert chart.y.is_log


def test_every_ratio_is_written_beside_its_interval():
    (chart,) = bench_sheet(throughput()).charts
    said = notes(chart)
    assert "1.58" in said
    assert [series.label for series in chart.series] == ["4 blocks", "12 blocks", "24 blocks"]
    for series in chart.series:
        assert series.is_across
        assert all(point.reach and point.reach[0] <= point.x <= point.reach[1] for point in series.points)


def test_the_reference_has_no_row_of_its_own():
    (chart,) = bench_sheet(throughput()).charts
    assert chart.y is not None
    assert [label for _, label in chart.y.marks] == ["relay", "relay_exact", "plain", "deepspeed", "control"]


@pytest.mark.parametrize("name", ["depth", "throughput"])
def test_where_nothing_was_measured_there_is_a_message(name):
    empty = {**ALL[name], "rows": []}
    assert bench_sheet(empty).charts[0].message == "nothing could be measured"
