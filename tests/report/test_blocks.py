"""What the page tells of a network that was taken apart."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from l2l_nas.report.blocks import TakenApart
from l2l_nas.report.charts.grid import DASH
from l2l_nas.report.html.view import render_page
from tests.report.pages import Reader, random_trials, summary_of
from tests.report.pages import card_of_pool as card


def entry(choices, loss):
    return {
        "trial": 3,
        "architecture": choices,
        "validation": {"loss": loss},
        "test": None,
        "standard_error": {"validation": {"loss": 0.01}},
        "costs": {"parameters": 1234.0},
    }


def block(score, error=0.5):
    return {"score": score, "error": error}


RESULT = {
    "objectives": [{"name": "loss", "maximize": False}, {"name": "parameters", "maximize": False}],
    "best": entry(["own", "skip", "head"], 0.25),
    "blocks": {
        "a/own": block(0.0, 0.0), "a/half": block(-0.04), "a/skip": block(0.16),
        "b/own": block(0.0, 0.0), "b/skip": block(0.01),
        "c/head": block(0.0, 0.0),
    },
    "scored_by": "loss",
    "prediction": {
        "metric": "loss", "factor": 1.25, "pair_factor": 0.75, "error": 0.031, "pairs": {"a/skip b/skip": 0.5},
        "networks": [{"architecture": ["skip", "skip", "head"], "round": 1, "predicted": 0.3, "measured": 0.8}],
    },
}  # fmt: skip
SIZES = [
    {"removed": 0.1, "most": 900.0, "best": entry(["half", "own", "head"], 0.25)},
    {"removed": 0.4, "most": 500.0, "best": entry(["half", "skip", "head"], 0.5)},
    {"removed": 0.9, "most": 100.0, "best": None},
]

ORIGINAL = {"values": {"loss": 0.125}, "costs": {"parameters": 2000.0}}


def texts(found):
    return {row: [cell and (cell.text, cell.small) for cell in cells] for row, cells in found.scores.rows.items()}


def test_each_block_has_its_score_and_the_best_network_is_marked():
    found = TakenApart.from_json(RESULT)
    assert found.sizes is None
    assert found.scores.columns == ("own", "half", "skip")
    assert texts(found) == {
        "a": [(DASH, "\N{BLACK STAR}"), ("-0.04", ""), ("+0.16", "")],
        "b": [(DASH, ""), None, ("+0.01", "\N{BLACK STAR}")],
    }
    assert [cell and cell.heat for cell in found.scores.rows["a"]] == [0.0, 0.5, -1.0]
    assert "how much worse loss is" in found.scores.caption
    assert "1 network and 1 pair of blocks" in found.prediction
    assert "1.25 times" in found.prediction
    assert "0.75 times" in found.prediction
    assert "off by 0.031 loss" in found.prediction


def test_of_sizes_each_cell_names_those_that_took_it():
    found = TakenApart.from_json({**RESULT, "sizes": SIZES})
    assert texts(found)["a"] == [(DASH, ""), ("-0.04", "0.1, 0.4"), ("+0.16", "")]
    assert texts(found)["b"] == [(DASH, "0.1"), None, ("+0.01", "0.4")]
    assert [row.cells for row in found.sizes.rows] == [
        ("0.1", "1,234", "0.2500 ± 0.0100", DASH),
        ("0.4", "1,234", "0.5000 ± 0.0100", DASH),
        ("0.9", DASH, DASH, DASH),
    ]
    assert found.front is None


def test_the_original_stands_before_the_sizes_and_in_their_picture():
    found = TakenApart.from_json({**RESULT, "sizes": SIZES, "original": ORIGINAL})
    assert found.sizes.rows[0].cells == ("0, the original", "2,000", "0.1250", DASH)
    _, whole, networks = found.front.series
    assert [(point.x, point.y) for point in whole.points] == [(2000.0, 0.125)]
    assert [(point.x, point.y, point.reach) for point in networks.points] == [(1234.0, 0.5, (0.49, 0.51))]


def test_scores_that_are_errors_are_called_so_and_other_searches_have_none_of_this():
    errors = {key: block(one["error"], one["error"]) for key, one in RESULT["blocks"].items()}
    found = TakenApart.from_json({**RESULT, "blocks": errors, "scored_by": "error", "prediction": None})
    assert "how far a candidate's outputs are" in found.scores.caption
    assert found.prediction == ""
    far = TakenApart.from_json({**RESULT, "scored_by": "divergence"})
    assert "how far the network's probabilities are from the original's" in far.scores.caption
    assert TakenApart.from_json({"best": RESULT["best"]}) is None


@pytest.mark.parametrize("damage", [{"blocks": {"a": block(1)}}, {"best": entry(["own"], 1)}, {"objectives": []}])
def test_what_is_damaged_is_noticed(damage):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        TakenApart.from_json({**copy.deepcopy(RESULT), **damage})


def test_the_page_shows_it():
    summary = summary_of(card(), random_trials(card(), 12))
    reader = Reader(render_page(replace(summary, apart=TakenApart.from_json({**RESULT, "sizes": SIZES}))))
    reader.refuse_references()
    assert ("section", "id", "blocks") in reader.attributes
    assert "What each block costs" in reader.text
    assert "What each block costs" not in Reader(render_page(summary)).text
