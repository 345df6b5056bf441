from __future__ import annotations

import pytest

from l2l_nas.report.bench_plots import bench_figure
from tests.report.bench_examples import ranking
from tests.report.test_plots import assert_drawn, points


def test_the_parameter_count_and_every_sampler_have_a_panel_with_tau_and_its_interval():
    figure = bench_figure(ranking())
    assert_drawn(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "parameter count\ntau 0.59 (0.53 to 0.64)",
        "uniform paths\ntau 0.80 (0.74 to 0.85)\nover parameters 0.21 (-0.12 to 0.30)",
        "sandwich paths\ntau 0.60 (0.54 to 0.65)\nover parameters 0.21 (-0.12 to 0.30)",
    ]
    assert "2 seeds, 2 supernets; one seed against the others: tau 0.88 (0.82 to 0.93)" in figure.get_suptitle()


def test_a_dot_is_the_mean_of_the_supernets_over_the_mean_alone():
    parameters, uniform, _ = bench_figure(ranking()).axes
    assert points(parameters.lines[0])[0] == (0.52, 900)
    assert points(uniform.lines[0])[0] == pytest.approx((0.52, 0.41))
    assert len(points(uniform.lines[0])) == 4
