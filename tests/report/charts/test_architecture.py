from __future__ import annotations

import json
import random

import pytest

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.charts.architecture import boxes_of
from l2l_nas.space.architecture import Architecture
from tests.report.examples import small_pool
from tests.report.pages import card_of_pool
from tests.toys import cell_pool, decoder_pool, unet_pool

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


def test_equal_neighbours_of_a_deep_network_are_one_box() -> None:
    card = card_of_pool(small_pool(90))
    deep = Architecture(("stem", *["wide"] * 60, *["linear"] * 30, "head"))
    folded = boxes_of(card, deep)
    assert [(box.choice, box.times, box.note) for box in folded] == [
        ("stem", 1, "20"),
        ("wide", 60, f"{60 * 76:,}"),
        ("linear", 30, f"{30 * 20:,}"),
        ("head", 1, "10"),
    ]
    assert folded[1].names == "layer_00 to layer_59"
    card = card_of_pool(small_pool(46))
    assert len(boxes_of(card, Architecture(("stem", *["wide"] * 46, "head")))) == 48


GRAPHS = {"unet": unet_pool(), "cell": cell_pool(), "decoder": decoder_pool()}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_no_chain_is_drawn_as_its_network_reads_it(name: str) -> None:
    pool, draw = GRAPHS[name], random.Random(0)
    card = SpaceSummary.from_json(json.loads(json.dumps(card_of_pool(pool).to_json())))
    for _ in range(20):
        architecture = pool.architecture([draw.choice(p.candidates).name for p in pool.positions])
        path = pool.path(architecture)
        flow, boxes = pool.flow(path), boxes_of(card, architecture)
        named = [tuple(name or "input" for name in reads) for reads in flow.reads]
        wanted = {layer.position: reads for layer, reads in zip(path, named, strict=True)}
        assert {index: box.reads for index, box in enumerate(boxes) if not box.is_skip} == wanted
        assert card.num_parameters(architecture) == num_parameters(pool, architecture)
        for index, box in enumerate(boxes):
            assert box.title == (f"{box.names} \N{LEFTWARDS ARROW} {', '.join(box.reads)}" if box.reads else box.names)
            above = pool.positions[index - 1].writes if index else tuple(pool.sources)
            assert box.follows == bool(set(above) & set(pool.wiring.reads[index]))
    assert all(box.follows for box in boxes) == (name == "unet")


def test_a_chain_s_card_needs_no_values_and_its_boxes_show_none() -> None:
    content = json.loads(json.dumps(card_of_pool().to_json()))
    chain = {name: content[name] for name in ("source", "shared", "ties", "sizes")}
    known = ("name", "candidates", "skips", "output")  # as logs of before values were there have them
    chain["positions"] = [{name: position[name] for name in known} for position in content["positions"]]
    assert SpaceSummary.from_json(chain) == SpaceSummary.from_json(content) == card_of_pool()
    assert all(box.follows and not box.reads and box.title == box.names for box in boxes_of(card_of_pool(), CHOSEN))


def test_a_card_whose_values_cannot_be_is_refused() -> None:
    content = card_of_pool(unet_pool()).to_json()
    content["positions"][1]["reads"] = ["nothing"]
    with pytest.raises(ValueError, match="reads 'nothing', which nothing before it writes"):
        SpaceSummary.from_json(content)
