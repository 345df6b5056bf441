from __future__ import annotations

import pytest

from l2l_nas.report.bench_plots import bench_figure
from tests.report.bench_examples import ALL, memory, throughput
from tests.report.test_plots import assert_drawn, line, points, texts

NAMES = list(ALL)


@pytest.mark.parametrize("name", NAMES)
def test_every_bench_has_a_picture_with_named_axes(name):
    figure = bench_figure(ALL[name])
    assert_drawn(figure)
    axes = figure.axes[0]
    assert axes.get_title(loc="left")
    assert axes.get_ylabel() or axes.get_yticklabels()
    assert axes.get_xlabel() or name == "population"


def test_memory_is_drawn_for_the_sides_that_were_measured():
    figure = bench_figure(memory())
    assert points(line(figure, "relay_host (x 1.00)")) == [(12, 4e6), (24, 4e6), (384, 4e6)]
    assert len(figure.axes[0].lines) == 3
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"


def test_every_ratio_is_written_beside_its_point():
    said = texts(bench_figure(throughput()))
    assert "1.58" in said
    assert said.count("0.7") + said.count("0.8") >= 3  # plain, at three depths


def test_the_reference_has_no_row_of_its_own():
    labels = [label.get_text() for label in bench_figure(throughput()).axes[0].get_yticklabels()]
    assert labels == ["relay", "relay_exact", "plain", "deepspeed", "control"]


@pytest.mark.parametrize("name", ["depth", "throughput"])
def test_where_nothing_was_measured_the_picture_says_so(name):
    empty = {**ALL[name], "rows": []}
    assert "nothing could be measured" in texts(bench_figure(empty))
