from __future__ import annotations

from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.space.architecture import Architecture
from tests.report.examples import small_pool
from tests.report.pages import card_of_pool

CHOSEN = Architecture(("stem", "wide", "linear", "skip", "head"))


def test_every_position_is_a_box_that_says_what_was_chosen_and_what_was_not() -> None:
    boxes = boxes_of(card_of_pool(), CHOSEN)
    assert [(box.choice, box.note, box.names, box.output, box.is_skip) for box in boxes] == [
        ("stem", "20", "stem", "4", False),
        ("wide", "76", "layer_00", "4", False),
        ("linear", "20", "layer_01", "4", False),
        ("skip", "", "layer_02", "4", True),
        ("head", "10", "head", "2", False),
    ]
    assert boxes[1].tip == "layer_00: wide\n76 parameters, output 4\nnot chosen: linear, skip"
    assert boxes[3].tip == "layer_02: skip\nleft out\nnot chosen: linear, wide"


def test_what_differs_from_the_first_is_marked() -> None:
    boxes = boxes_of(card_of_pool(), CHOSEN, first=Architecture(("stem", "wide", "wide", "skip", "head")))
    assert [box.differs for box in boxes] == [False, False, True, False, False]
    assert boxes[2].tip.endswith("differs from the first")
    assert not any(box.differs for box in boxes_of(card_of_pool(), CHOSEN))


def test_equal_neighbours_of_a_deep_network_are_one_box_where_that_is_asked() -> None:
    card = card_of_pool(small_pool(90))
    deep = Architecture(("stem", *["wide"] * 60, *["linear"] * 30, "head"))
    folded = boxes_of(card, deep, is_folded=True)
    assert [(box.choice, box.times, box.note) for box in folded] == [
        ("stem", 1, "20"),
        ("wide", 60, f"{60 * 76:,}"),
        ("linear", 30, f"{30 * 20:,}"),
        ("head", 1, "10"),
    ]
    assert folded[1].names == "layer_00 to layer_59"
    assert len(boxes_of(card, deep)) == 92
