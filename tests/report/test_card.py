from __future__ import annotations

import itertools
import json
from functools import partial

import pytest
from torch import nn

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.report.card import SpaceSummary, space_summary
from l2l_nas.report.styles import GREY_HUE, hue_class
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes
from tests.report.examples import small_pool


def tied_pool() -> LayerPool:
    tie, linear = {"weight": "matrix"}, partial(nn.Linear, 4, 4)
    return LayerPool(
        [
            Position("a", [Candidate("x", linear, tied=tie), Candidate("y", linear)]),
            Position("b", [Candidate("x", linear, tied=tie)]),
        ],
        inputs=TensorSpec((4,)),
    )  # fmt: skip


@pytest.mark.parametrize("pool", [small_pool(), small_pool(shared=True), tied_pool()], ids=["own", "shared", "tied"])
def test_a_card_counts_weights_as_the_pool_does(pool: LayerPool) -> None:
    card = SpaceSummary.from_json(json.loads(json.dumps(space_summary(pool, check_shapes(pool)).to_json())))
    assert card == space_summary(pool, check_shapes(pool))
    assert card.size == pool.size
    for names in itertools.product(*([c.name for c in p.candidates] for p in pool.positions)):
        architecture = pool.architecture(names)
        assert card.offers(architecture)
        assert card.num_parameters(architecture) == num_parameters(pool, architecture)


def test_notes_name_where_weights_were_used_before() -> None:
    pool = small_pool(shared=True)
    card = space_summary(pool, check_shapes(pool))
    notes = [weights.note for weights in card.weights(Architecture(("stem", "wide", "wide", "skip", "head")))]
    assert notes == ["20", "76", "as layer_00", "", "10"]
    tied = tied_pool()
    notes = [weights.note for weights in space_summary(tied, check_shapes(tied)).weights(Architecture(("x", "x")))]
    assert notes == ["20", "4 + tied"]


def test_names_that_are_a_choice_have_colours_and_all_others_are_grey() -> None:
    card = space_summary(small_pool(), check_shapes(small_pool()))
    hues = card.hue_numbers
    assert {name for name, number in hues.items() if number == GREY_HUE} == {"stem", "skip", "head"}
    assert hues["linear"] != hues["wide"]


def test_after_seven_names_colours_come_again_and_are_resolved() -> None:
    pool = LayerPool([Position("p", [Candidate(f"c{i}", nn.Identity) for i in range(20)])], inputs=TensorSpec((4,)))
    numbers = list(space_summary(pool, check_shapes(pool)).hue_numbers.values())
    assert len(set(numbers[:14])) == 14
    assert numbers[7] == numbers[14]
    assert [hue_class(number) for number in (*numbers[6:9], 7)] == ["hue6", "hue0 again", "hue1 again", "hue7"]


def test_shapes_are_told_without_the_batch() -> None:
    card = space_summary(small_pool(), check_shapes(small_pool()))
    assert (card.source, card.positions[0].output, card.positions[-1].output) == ("4", "4", "2")


def test_an_architecture_of_another_space_is_not_offered() -> None:
    card = space_summary(small_pool(), check_shapes(small_pool()))
    for choices in (("stem", "head"), ("stem", "wide", "wide", "other", "head")):
        assert not card.offers(Architecture(choices))


@pytest.mark.parametrize(
    "harm",
    [
        lambda content: content.pop("sizes"),
        lambda content: content["sizes"].pop("stem/stem"),
        lambda content: content.update(positions=[]),
        lambda content: content["positions"][0].update(candidates=[]),
        lambda content: content["sizes"].update({"stem/stem": "many"}),
    ],
)
def test_what_is_no_card_is_refused(harm) -> None:
    content = space_summary(small_pool(), check_shapes(small_pool())).to_json()
    harm(content)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        SpaceSummary.from_json(content)


def test_a_tie_without_its_size_is_refused() -> None:
    content = space_summary(tied_pool(), check_shapes(tied_pool())).to_json()
    del content["sizes"]["tied/matrix"]
    with pytest.raises(KeyError):
        SpaceSummary.from_json(content)
