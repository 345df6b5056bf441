from __future__ import annotations

import io
from pathlib import Path

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.relay.trace import TraceSpan

pytest.importorskip("matplotlib")

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import imread

from l2l_nas.report.png import png_bytes
from l2l_nas.report.styles import INK, VERMILLION
from l2l_nas.report.timeline import draw_timeline, timeline_figure


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


def texts(figure: Figure) -> list[str]:
    return [item.get_text() for item in [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]]


def strip_share(figure: Figure, colour: str) -> float:
    """The share of the lower strip's pixels that have a colour."""
    pixels = imread(io.BytesIO(png_bytes(figure)))[..., :3]
    box = figure.axes[1].get_window_extent()
    part = pixels[len(pixels) - int(box.y1) + 4 : len(pixels) - int(box.y0) - 4, int(box.x0) + 4 : int(box.x1) - 4]
    wanted = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return float((np.abs(part - wanted).max(axis=-1) < 0.02).mean())


def num_bars(figure: Figure) -> int:
    rows = [item for item in figure.axes[0].collections if isinstance(item, PolyCollection)]
    return sum(len(item.get_paths()) for item in rows)


def test_one_sees_the_overlap_and_its_absence() -> None:
    together, apart = (timeline_figure(spans_of(overlapped=kind)) for kind in (True, False))
    assert strip_share(together, INK) > 0.6
    assert strip_share(apart, INK) == 0
    assert strip_share(apart, VERMILLION) > 0.5
    assert strip_share(together, VERMILLION) < 0.3
    assert any("0% was hidden behind compute" in text for text in texts(apart))
    assert any("busy: up 20%, compute 30%, down 20%, host 30%" in text for text in texts(apart))


def test_every_span_is_a_bar_in_the_row_of_its_lane() -> None:
    spans = spans_of(overlapped=True)
    figure = timeline_figure(spans)
    assert num_bars(figure) == len(spans)
    labels = [label.get_text().split("\n")[0] for label in figure.axes[0].get_yticklabels()]
    assert labels == ["up", "compute", "down", "host"]
    boxes = [path.get_extents() for item in figure.axes[0].collections for path in item.get_paths()]
    drawn = sorted((round((box.y0 + box.y1) / 2), round(box.x0, 6), round(box.x1, 6)) for box in boxes)
    expected = sorted(
        (labels.index(s.lane), round(s.start_s * 1e3, 6), round(s.end_s * 1e3, 6)) for s in spans
    )  # the first span begins at 0
    assert drawn == expected


def test_a_window_shows_the_last_steps_alone() -> None:
    spans = spans_of(overlapped=False, steps=5)
    figure = timeline_figure(spans, last_steps=2)
    assert num_bars(figure) == len(spans) * 2 // 5 - 1  # it begins with computing, after the first load
    assert [text for text in texts(figure) if text.startswith("step")] == ["step 3", "step 4"]
    assert figure.axes[0].get_xlim()[1] == pytest.approx(78, rel=0.01)
    assert num_bars(timeline_figure(spans, last_steps=9)) == len(spans) - 1
    with pytest.raises(SettingError, match="last_steps=0"):
        timeline_figure(spans, last_steps=0)


def test_a_window_has_the_work_of_other_steps_that_ran_beside_it() -> None:
    late = [
        TraceSpan("compute", "backward", "a", 0, 0.0, 1.0),
        TraceSpan("compute", "forward", "a", 1, 1.0, 3.0),
        TraceSpan("host", "update", "b", 0, 0.5, 2.0),  # of the step before, cut at the window's begin
    ]
    figure = timeline_figure(late, last_steps=1)
    assert num_bars(figure) == 2
    assert any("2,000.0 ms; busy: compute 100%, host 50%" in text for text in texts(figure))


def test_names_stand_in_bars_only_where_they_fit() -> None:
    few, some, many = (
        texts(timeline_figure(spans_of(overlapped=False, layers=layers, steps=1))) for layers in (2, 8, 200)
    )
    assert "layer0/dense" in few
    assert "layer0/dense" not in some
    assert "layer0" in some
    assert not [text for text in many if text.startswith("layer")]


@pytest.mark.parametrize(("overlapped", "layers"), [(True, 2), (False, 4), (True, 12)])
def test_names_stay_inside_their_bars(overlapped: bool, layers: int) -> None:
    figure = timeline_figure(spans_of(overlapped=overlapped, layers=layers, steps=1))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    bars = [path.get_extents(axes.transData) for item in axes.collections for path in item.get_paths()]
    names = [text.get_window_extent() for text in axes.texts if text.get_text().startswith("layer")]
    assert names
    for name in names:
        assert any(bar.x0 <= name.x0 and name.x1 <= bar.x1 and bar.y0 <= name.y0 <= bar.y1 for bar in bars)


def test_a_trace_without_spans_says_so() -> None:
    assert "nothing was recorded" in texts(timeline_figure([], title="A run"))


def test_one_span_of_no_length_and_an_unknown_operation_can_be_drawn() -> None:
    png_bytes(timeline_figure([TraceSpan("elsewhere", "ponder", "", 0, 1.0, 1.0)]))


def test_a_hundred_steps_are_drawn_with_few_labels() -> None:
    figure = timeline_figure(spans_of(overlapped=True, steps=100))
    assert 5 <= len([text for text in texts(figure) if text.startswith("step")]) <= 12
    png_bytes(figure)


def test_the_picture_is_written_and_the_same_spans_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw_timeline(spans_of(overlapped=True), tmp_path / name, title="Two slots")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    pixels = imread(tmp_path / "a.png")
    assert pixels.shape[1] == 1200
    assert 0.05 < (pixels[..., :3].min(axis=-1) < 0.6).mean() < 0.6
