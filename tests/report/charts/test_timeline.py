from __future__ import annotations

import io
from itertools import pairwise

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.relay.trace import TraceSpan
from l2l_nas.report.charts.chart import Chart, Point
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import draw, png_of


def spans_of(*, overlapped: bool, layers: int = 4, steps: int = 2) -> list[TraceSpan]:
    """Loads of 2 ms, forwards of 3, sends of 2 and updates of 3, each as soon as it may, or each after the other."""
    free = {"up": 0.0, "compute": 0.0, "down": 0.0, "host": 0.0}
    spans: list[TraceSpan] = []
    last = 0.0

    def run(lane: str, op: str, layer: str, step: int, seconds: float, after: float) -> float:
        nonlocal last
        begin = max(free[lane], after) if overlapped else last
        free[lane] = last = begin + seconds
        spans.append(TraceSpan(lane, op, layer, step, begin, last))
        return last

    for step in range(steps):
        for index in range(layers):
            layer = f"layer{index}/dense"
            loaded = run("up", "load", layer, step, 0.002, 0.0)
            computed = run("compute", "backward", layer, step, 0.003, loaded)
            sent = run("down", "send", layer, step, 0.002, computed)
            run("host", "update", layer, step, 0.003, sent)
    return spans


def chart_of(spans: list[TraceSpan], **how) -> Chart:
    (chart,) = timeline_sheet(spans, **how).charts
    return chart


def bars(chart: Chart, *labels: str) -> list[Point]:
    """The bars of these operations; of all where none is named."""
    strip = ("compute alone", "other lanes alone", "both at once")
    found = [one for one in chart.series if one.kind == "spans" and (one.label in labels or not labels)]
    return [point for one in found if labels or one.label not in strip for point in one.points]


def length(points: list[Point]) -> float:
    return sum(end - begin for begin, end in (point.reach for point in points))


def test_one_sees_the_overlap_and_its_absence() -> None:
    together, apart = (chart_of(spans_of(overlapped=kind)) for kind in (True, False))
    assert length(bars(together, "both at once")) > 0.6 * together.x.high
    assert bars(apart, "both at once") == []
    assert length(bars(apart, "other lanes alone")) > 0.5 * apart.x.high
    assert "0% was hidden behind compute" in apart.x.label
    assert "busy: up 20%, compute 30%, down 20%, host 30%" in apart.x.label


def test_the_times_alone_and_at_once_fill_what_is_not_idle_and_never_overlap() -> None:
    chart = chart_of(spans_of(overlapped=True))
    parts = sorted(p.reach for p in bars(chart, "compute alone", "other lanes alone", "both at once"))
    assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(parts))
    assert {p.y for p in bars(chart, "both at once")} == {4}


def test_every_span_is_a_bar_in_the_row_of_its_lane() -> None:
    spans = spans_of(overlapped=True)
    chart = chart_of(spans)
    lanes = [label.split("\n")[0] for _, label in chart.y.labelled()]
    assert lanes == ["up", "compute", "down", "host", "at once"]
    drawn = sorted((point.y, *(round(end, 6) for end in point.reach), point.note) for point in bars(chart))
    assert drawn == sorted(
        (lanes.index(s.lane), round(s.start_s * 1e3, 6), round(s.end_s * 1e3, 6), s.layer) for s in spans
    )  # the first span begins at 0


def test_a_window_shows_the_last_steps_alone() -> None:
    spans = spans_of(overlapped=False, steps=5)
    chart = chart_of(spans, last_steps=2)
    assert len(bars(chart)) == len(spans) * 2 // 5 - 1  # it begins with computing, after the first load
    assert [point.note for point in chart.series[-1].points] == ["step 3", "step 4"]
    assert chart.x.high == pytest.approx(78, rel=0.01)
    assert len(bars(chart_of(spans, last_steps=9))) == len(spans) - 1
    with pytest.raises(SettingError, match="last_steps=0"):
        timeline_sheet(spans, last_steps=0)


def test_the_last_steps_are_the_last_in_time_whatever_their_numbers() -> None:
    """Finalists are trained in turns: one that is done has the highest number, and others follow."""
    spans = [TraceSpan("compute", "tail", "a", step, at, at + 1.0) for at, step in enumerate((8, 9, -1, 3, 4, -1))]
    chart = chart_of(spans, last_steps=2)
    assert [point.note for point in chart.series[-1].points] == ["step 3", "step 4", "evaluation"]


def test_a_window_has_the_work_of_other_steps_that_ran_beside_it() -> None:
    late = [
        TraceSpan("compute", "backward", "a", 0, 0.0, 1.0),
        TraceSpan("compute", "forward", "a", 1, 1.0, 3.0),
        TraceSpan("host", "update", "b", 0, 0.5, 2.0),  # of the step before, cut at the window's begin
    ]
    chart = chart_of(late, last_steps=1)
    assert len(bars(chart)) == 2
    assert "2,000.0 ms; busy: compute 100%, host 50%" in chart.x.label


def test_a_hundred_steps_have_few_numbers() -> None:
    points = chart_of(spans_of(overlapped=True, steps=100)).series[-1].points
    assert len(points) == 100
    assert 5 <= sum(bool(point.note) for point in points) <= 12


def test_a_trace_without_spans_says_so() -> None:
    assert chart_of([], title="A run") == Chart("A run", message="nothing was recorded")


def names_in(spans: list[TraceSpan]) -> list[str]:
    texts = draw(timeline_sheet(spans)).axes[0].texts
    return [text.get_text() for text in texts if text.get_text().startswith("layer")]


def test_names_stand_in_bars_only_where_they_fit() -> None:
    pytest.importorskip("matplotlib")
    few, some, many = (names_in(spans_of(overlapped=False, layers=layers, steps=1)) for layers in (2, 8, 200))
    assert "layer0/dense" in few
    assert "layer0/dense" not in some
    assert "layer0" in some
    assert not many


@pytest.mark.parametrize(("overlapped", "layers"), [(True, 2), (False, 4), (True, 12)])
def test_names_stay_inside_their_bars(overlapped: bool, layers: int) -> None:
    pytest.importorskip("matplotlib")
    figure = draw(timeline_sheet(spans_of(overlapped=overlapped, layers=layers, steps=1)))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    drawn = [path.get_extents(axes.transData) for item in axes.collections for path in item.get_paths()]
    names = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("layer")]
    assert names
    for name in names:
        assert any(bar.x0 <= name.x0 and name.x1 <= bar.x1 and bar.y0 <= name.y0 <= bar.y1 for bar in drawn)


def test_the_same_spans_give_the_same_picture_with_ink_on_it() -> None:
    image = pytest.importorskip("matplotlib.image")
    first, second = (png_of(timeline_sheet(spans_of(overlapped=True), title="Two slots")) for _ in range(2))
    assert first == second
    pixels = image.imread(io.BytesIO(first))
    assert pixels.shape[1] == 1200
    assert 0.05 < (pixels[..., :3].min(axis=-1) < 0.6).mean() < 0.6
    png_of(timeline_sheet([TraceSpan("elsewhere", "ponder", "", 0, 1.0, 1.0)]))  # no length, an unknown operation
