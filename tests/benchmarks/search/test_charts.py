from __future__ import annotations

import pytest

from benchmarks.charts import bench_sheet
from tests.benchmarks.examples import ranking
from tests.report.charts.reading import places


def test_the_parameter_count_and_every_sampler_have_a_chart_with_tau_and_its_interval():
    sheet = bench_sheet(ranking())
    assert [chart.title for chart in sheet.charts] == [
        "parameter count\ntau 0.59 (0.53 to 0.64)",
        "uniform paths\ntau 0.80 (0.74 to 0.85)\nover parameters 0.21 (-0.12 to 0.30)",
        "fair paths\ntau 0.60 (0.54 to 0.65)\nover parameters 0.21 (-0.12 to 0.30)",
    ]
    assert "2 seeds, 2 supernets; one seed against the others: tau 0.88 (0.82 to 0.93)" in sheet.title


def test_a_dot_is_the_mean_of_the_supernets_over_the_mean_alone():
    parameters, uniform, _ = bench_sheet(ranking()).charts
    assert places(parameters.series[0])[0] == (0.52, 900)
    assert places(uniform.series[0])[0] == pytest.approx((0.52, 0.41))
    assert len(uniform.series[0].points) == 4
