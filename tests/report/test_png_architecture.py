from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool
from tests.report.examples import small_pool
from tests.report.pages import card_of_pool
from tests.toys import unet_pool

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from l2l_nas.report.png import png_bytes
from l2l_nas.report.png_architecture import architecture_figure
from l2l_nas.report.styles import FIXED_HUE


def drawing(pool: LayerPool, choices: list[str]) -> Figure:
    return architecture_figure(card_of_pool(pool), pool.architecture(choices), title="Best: 0.9")


def test_a_long_title_takes_several_lines_and_loses_nothing() -> None:
    pool = small_pool()
    architecture = pool.architecture(["stem", "wide", "linear", "skip", "head"])
    title = "Best architecture (trial 57): accuracy, validation 0.9778 ± 0.0078, test 0.9694 ± 0.0091"
    figure = architecture_figure(card_of_pool(pool), architecture, title=title)
    figure.draw_without_rendering()
    lines = [text for text in figure.axes[0].texts if text.get_fontweight() == "bold" and text.get_fontsize() == 13]
    assert " ".join(text.get_text() for text in lines) == title
    assert len(lines) > 1
    width, height = figure.get_size_inches() * figure.dpi
    places = [text.get_window_extent() for text in figure.axes[0].texts]
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in places)
    first = boxes(figure)[0]
    assert min(text.get_position()[1] for text in lines) > first.get_y() + first.get_height() + 0.3


def boxes(figure: Figure) -> list[FancyBboxPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def words_in(figure: Figure, box: FancyBboxPatch) -> list[str]:
    low, high = box.get_y(), box.get_y() + box.get_height()
    left, right = box.get_x(), box.get_x() + box.get_width()
    inside = [
        t for t in figure.axes[0].texts if left < t.get_position()[0] < right and low < t.get_position()[1] < high
    ]
    return [text.get_text() for text in inside]


def test_every_position_is_a_box_that_says_what_was_chosen() -> None:
    figure = drawing(small_pool(), ["stem", "wide", "linear", "skip", "head"])
    assert [words_in(figure, box) for box in boxes(figure)] == [
        ["stem", "20", "stem", "4"],
        ["wide", "76", "layer_00", "4"],
        ["linear", "20", "layer_01", "4"],
        ["skip", "layer_02"],
        ["head", "10", "head", "2"],
    ]
    assert "4 of 5 positions used, 126 parameters in total" in words(figure)
    assert "Best: 0.9" in words(figure)
    assert "input 4" in words(figure)
    assert [text for text in words(figure) if text.endswith((", skip", ", wide"))] == [
        "linear, skip",
        "wide, skip",
        "linear, wide",
    ]


def test_a_skip_is_thin_and_dashed() -> None:
    *_, layer, skipped, _ = boxes(drawing(small_pool(), ["stem", "wide", "linear", "skip", "head"]))
    assert skipped.get_height() < layer.get_height()
    assert skipped.get_linewidth() < layer.get_linewidth()
    assert skipped.get_linestyle() != layer.get_linestyle()


def test_one_name_has_one_colour_and_what_is_no_choice_is_grey() -> None:
    stem, a, b, c, head = boxes(drawing(small_pool(), ["stem", "wide", "linear", "wide", "head"]))
    assert to_hex(a.get_edgecolor()) == to_hex(c.get_edgecolor())
    assert to_hex(a.get_edgecolor()) != to_hex(b.get_edgecolor())
    assert to_hex(stem.get_edgecolor()) == to_hex(head.get_edgecolor()) == FIXED_HUE.lower()


def test_fourteen_names_are_told_apart() -> None:
    pool = LayerPool(
        [Position("p", [Candidate(f"c{index}", nn.Identity) for index in range(14)])], inputs=TensorSpec((4,))
    )
    colours = {boxes(drawing(pool, [f"c{index}"]))[0].get_facecolor() for index in range(14)}
    assert len(colours) == 14


def test_weights_used_again_are_counted_once_and_named() -> None:
    figure = drawing(small_pool(shared=True), ["stem", "wide", "linear", "wide", "head"])
    assert words_in(figure, boxes(figure)[3]) == ["wide", "as layer_00", "layer_02", "4"]
    assert "5 of 5 positions used, 126 parameters in total" in words(figure)
    assert any("As X" in text.replace("\n", " ") for text in words(figure))


def test_tied_weights_are_counted_where_they_come_first() -> None:
    pool = LayerPool(
        [
            Position("embed", Candidate("embed", lambda: nn.Embedding(9, 4), tied={"weight": "tokens"})),
            Position("head", Candidate("head", lambda: nn.Linear(4, 9), tied={"weight": "tokens"})),
        ],
        inputs=TensorSpec((7,), torch.int64),
    )
    figure = drawing(pool, ["embed", "head"])
    first, last = boxes(figure)
    assert words_in(figure, first) == ["embed", "36", "embed", "7\N{MULTIPLICATION SIGN}4"]
    assert words_in(figure, last) == ["head", "9 + tied", "head", "7\N{MULTIPLICATION SIGN}9"]
    assert "input 7 int64" in words(figure)


def test_fifty_positions_and_long_names_neither_overlap_nor_leave_the_picture() -> None:
    pool = small_pool(48, prefix="transformer_encoder_block_with_a_long_name_")
    names = [candidate.name for candidate in pool.positions[1].candidates]
    figure = drawing(pool, ["stem", *(names[index % 3] for index in range(48)), "head"])
    drawn = boxes(figure)
    assert len(drawn) == 50
    assert len({box.get_x() for box in drawn}) == 3
    figure.draw_without_rendering()
    low, high = np.array([text.get_window_extent().get_points() for text in figure.axes[0].texts]).swapaxes(0, 1)
    assert low.min() >= 0
    assert (high <= [figure.bbox.width, figure.bbox.height]).all()
    overlap = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=-1)
    assert overlap.sum() == len(low), "a text overlaps another"
    pixels = imread(io.BytesIO(png_bytes(figure)))
    assert max(pixels.shape) < 2000
    assert 0.01 < (pixels[..., :3].min(axis=-1) < 0.6).mean() < 0.5  # ink on white


def test_one_position_is_a_drawing_too() -> None:
    pool = LayerPool([Position("only", [Candidate("linear", lambda: nn.Linear(4, 4))])], inputs=TensorSpec((4,)))
    assert len(boxes(drawing(pool, ["linear"]))) == 1


def test_an_architecture_of_another_space_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        architecture_figure(card_of_pool(), Architecture(("stem",)), title="")


def test_what_a_box_reads_from_afar_comes_by_an_arc_and_what_it_does_not_read_by_no_arrow() -> None:
    pool = unet_pool()
    architecture = pool.architecture([p.candidates[0].name for p in pool.positions])
    figure = architecture_figure(card_of_pool(pool), architecture, title="Best: 0.9")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    path = pool.path(architecture)
    reads = {layer.position: names for layer, names in zip(path, pool.flow(path).reads, strict=True)}
    homes = {name: index for index, position in enumerate(pool.positions) for name in position.writes}
    far = [
        (homes[name], index)
        for index, names in reads.items()
        for name in names
        if homes.get(name, -1) != index - 1 and name in homes
    ]
    arcs = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert len(arcs) == len(set(far)) > 0
    for arc in arcs:
        vertices = arc.get_path().vertices
        assert vertices[:, 0].min() >= 0  # within the picture
    words = " ".join(text.get_text() for text in axes.texts)
    assert "\N{LEFTWARDS ARROW}" in words
    assert "A reads what B and C wrote" in words.replace("\n", " ")
