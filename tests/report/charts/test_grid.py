from __future__ import annotations

from dataclasses import replace

import pytest

from l2l_nas.report.charts.grid import DASH, coverage_grid, importance_grid
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, small_pool, trial
from tests.report.pages import card_of_pool, random_trials, results_of

WARMUP = {
    "layer_00": {"linear": 9, "wide": 9, "skip": 0},
    "layer_01": {"linear": 6, "wide": 6, "skip": 6},
    "layer_02": {"linear": 12, "wide": 6, "skip": 0},
}


def test_every_candidate_of_a_position_with_a_choice_has_a_cell_with_its_steps_and_trials() -> None:
    grid = coverage_grid(results_of([trial(0, {"accuracy": 0.5})], [ACCURACY]), WARMUP)
    assert grid.columns == ("linear", "wide", "skip")
    assert list(grid.rows) == ["layer_00", "layer_01", "layer_02"]
    cells = [[(cell.text, cell.small) for cell in cells if cell] for cells in grid.rows.values()]
    assert cells[0] == [("9", "+1"), ("9", "+0"), ("0", "+0")]
    assert cells[2] == [("12", "+0"), ("6", "+0"), ("0", "+1")]
    assert [cell.heat for cell in grid.rows["layer_02"] if cell] == [1.0, 0.0, -1.0]


def test_candidates_with_less_than_a_third_of_the_mean_are_marked_and_counted() -> None:
    grid = coverage_grid(results_of([], [ACCURACY]), WARMUP)
    scarce = [(name, i) for name, cells in grid.rows.items() for i, cell in enumerate(cells) if cell and cell.is_scarce]
    assert scarce == [("layer_00", 2), ("layer_02", 2)]
    assert grid.caption.endswith("here 2 candidates.")


def test_without_a_warm_up_trials_are_counted_and_none_is_scarce() -> None:
    grid = coverage_grid(results_of([trial(0, {"accuracy": 0.5})], [ACCURACY]), {})
    assert [(cell.text, cell.small) for cell in grid.rows["layer_00"] if cell] == [("1", ""), ("0", ""), ("0", "")]
    assert not any(cell.is_scarce for cells in grid.rows.values() for cell in cells if cell)
    assert "no warm-up was counted" in grid.caption


def test_what_cannot_be_shown_has_a_message() -> None:
    assert "Nothing is counted" in coverage_grid(results_of([], [ACCURACY]), {}).message
    alone = replace(results_of([], [ACCURACY]), card=card_of_pool(small_pool(0)))
    assert coverage_grid(alone, {}).message == "No position has a choice."
    assert "at least 10" in importance_grid(results_of([trial(0, {"accuracy": 0.5})], [ACCURACY])).message


@pytest.mark.parametrize("goal", [ACCURACY, LOSS])
def test_a_mean_that_is_better_is_warm_whichever_way_is_better(goal) -> None:
    card = card_of_pool()
    results = results_of(random_trials(card, 30, (goal, PARAMETERS)), [goal, PARAMETERS])
    grid = importance_grid(results)
    middle = sum(record.values[goal.name] for record in results.scored) / len(results.scored)
    for effect, cells in zip(grid.effects, grid.rows.values(), strict=True):
        for name, cell in zip(grid.columns, cells, strict=True):
            assert cell is not None
            if cell.text != DASH:
                assert cell.heat is not None
                mean = effect.means[name]
                assert (cell.heat >= 0) == (mean == middle or goal.better(mean, middle))
                assert cell.small == str(effect.counts[name])
