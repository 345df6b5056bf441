from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.report.charts.diagram import Diagram, lay_out
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool
from tests.report.examples import small_pool
from tests.report.pages import card_of_pool
from tests.toys import unet_pool

CHOICES = ["stem", "wide", "linear", "skip", "head"]


def diagram_of(pool: LayerPool, choices: list[str], *, num_positions: int = 5) -> Diagram:
    card = card_of_pool(pool)
    boxes = boxes_of(card, pool.architecture(choices))
    return lay_out(boxes, source=card.source, label="Best: 0.9", num_positions=num_positions)


def words_in(diagram: Diagram) -> list[list[str]]:
    return [[words.text for words in box.words] for box in diagram.boxes]


def test_every_position_is_a_box_that_says_what_was_chosen() -> None:
    diagram = diagram_of(small_pool(), CHOICES)
    assert words_in(diagram) == [
        ["stem", "20", "stem", "4"],
        ["wide", "76", "layer_00", "4"],
        ["linear", "20", "layer_01", "4"],
        ["skip", "layer_02"],
        ["head", "10", "head", "2"],
    ]
    assert diagram.source.text == "input 4"


def test_of_many_positions_a_box_has_one_line() -> None:
    plain, dense = diagram_of(small_pool(), CHOICES), diagram_of(small_pool(), CHOICES, num_positions=25)
    assert words_in(dense)[1] == ["wide", "76"]
    assert dense.height < plain.height


def test_a_skip_is_thin_and_every_box_has_a_wire_from_the_one_above() -> None:
    diagram = diagram_of(small_pool(), CHOICES)
    assert diagram.boxes[3].height < diagram.boxes[2].height
    for above, below, wire in zip(diagram.boxes[:-1], diagram.boxes[1:], diagram.wires[1:], strict=True):
        assert wire[0] == (above.middle, above.top + above.height)
        assert wire[-1][0] == below.middle
        assert above.top + above.height < wire[-1][1] < below.top
    assert not diagram.arcs


def test_what_a_box_reads_from_afar_comes_by_an_arc_and_what_it_does_not_read_by_no_wire() -> None:
    pool = unet_pool()
    architecture = pool.architecture([p.candidates[0].name for p in pool.positions])
    path = pool.path(architecture)
    reads = {layer.position: names for layer, names in zip(path, pool.flow(path).reads, strict=True)}
    homes = {name: index for index, position in enumerate(pool.positions) for name in position.writes}
    far = {
        (homes[name], index)
        for index, names in reads.items()
        for name in names
        if name in homes and homes[name] != index - 1
    }
    plain, diagram = (diagram_of(small_pool(), CHOICES), diagram_of(pool, list(architecture.choices)))
    assert len(diagram.arcs) == len(far) > 0
    assert all(x >= diagram.bulge for start, end in diagram.arcs for x, _ in (start, end))  # within the drawing
    assert diagram.width == plain.width
    assert len(diagram.wires) == sum(box.follows for box in boxes_of(card_of_pool(pool), architecture))


def test_weights_used_again_and_tied_ones_are_named() -> None:
    pool = small_pool(shared=True)
    choices = ["stem", "wide", "linear", "wide", "head"]
    assert words_in(diagram_of(pool, choices))[3] == ["wide", "as layer_00", "layer_02", "4"]
    tied = LayerPool(
        [
            Position("embed", Candidate("embed", lambda: nn.Embedding(9, 4), tied={"weight": "tokens"})),
            Position("head", Candidate("head", lambda: nn.Linear(4, 9), tied={"weight": "tokens"})),
        ],
        inputs=TensorSpec((7,), torch.int64),
    )
    diagram = diagram_of(tied, ["embed", "head"])
    assert words_in(diagram)[1] == ["head", "9 + tied", "head", "7\N{MULTIPLICATION SIGN}9"]
    assert diagram.source.text == "input 7 int64"


def test_one_position_is_a_drawing_too() -> None:
    pool = LayerPool([Position("only", [Candidate("linear", lambda: nn.Linear(4, 4))])], inputs=TensorSpec((4,)))
    assert len(diagram_of(pool, ["linear"]).boxes) == 1


def test_an_architecture_of_another_space_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        boxes_of(card_of_pool(), Architecture(("stem",)))
