"""Searches against random search: means, Student's interval, and the sentence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.comparison import Comparison
from l2l_nas.report.interval import Estimate
from tests.report.examples import ACCURACY

LOSS = Goal("loss", maximize=False)


@pytest.mark.parametrize("num_seeds", [2, 3, 10])
def test_the_interval_is_that_of_a_paired_t_test(num_seeds) -> None:
    draws = np.random.default_rng(num_seeds).normal(0.9, 0.01, (2, num_seeds))
    found = Comparison.of(list(zip(*draws.tolist(), strict=True)), ACCURACY)
    assert found is not None
    low, high = ttest_rel(*draws).confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx((low, high))
    assert found.difference.mean == pytest.approx((draws[0] - draws[1]).mean())
    assert found.search.standard_error == pytest.approx(draws[0].std(ddof=1) / num_seeds**0.5)
    assert found.ahead == (draws[0] > draws[1]).sum()


def test_the_interval_has_the_true_mean_in_95_of_100_experiments() -> None:
    draws = np.random.default_rng(0).normal(0.3, 1.0, (4000, 5)).tolist()
    covered = sum(found.low <= 0.3 <= found.high for found in map(Estimate.of, draws))
    assert 0.94 < covered / len(draws) < 0.96
    assert Estimate.of([0.5, 0.5]) == Estimate(0.5, 0.0, 0.5, 0.5)
    assert Estimate.of([0.0, 1.0]).high == pytest.approx(0.5 + 0.5 * t.ppf(0.975, 1))


def test_a_search_is_called_ahead_only_where_the_interval_says_so() -> None:
    ahead = Comparison.of([(0.92, 0.90), (0.93, 0.90), (0.94, 0.90)], ACCURACY)
    assert ahead is not None
    assert ahead.sentence() == (
        "Over 3 seeds the search is ahead of random search by 0.0300 accuracy: on the test part it is better by 0.0300 "
        "in the mean (95 % interval over seeds 0.0052 to 0.0548), and better in 3 of 3."
    )
    behind = Comparison.of([(0.90, 0.92), (0.90, 0.93), (0.90, 0.94)], ACCURACY)
    assert behind is not None
    assert behind.sentence() == (
        "Over 3 seeds the search is behind random search by 0.0300 accuracy: on the test part it is worse by 0.0300 in "
        "the mean (95 % interval over seeds 0.0052 to 0.0548), and better in 0 of 3."
    )
    level = Comparison.of([(0.92, 0.90), (0.90, 0.91), (0.94, 0.90)], ACCURACY)
    assert level is not None
    assert level.verdict == "Over 3 seeds no difference between the search and random search is shown"
    assert "(95 % interval over seeds -0.0458 to 0.0792), and better in 2 of 3." in level.sentence()
    assert "ahead" not in level.sentence()
    equal = Comparison.of([(0.92, 0.90), (0.93, 0.91)], ACCURACY)  # no spread, or one of rounding
    assert equal is not None
    assert equal.verdict == "Over 2 seeds no difference between the search and random search is shown"


def test_less_is_better_of_a_loss() -> None:
    found = Comparison.of([(0.2, 0.30), (0.2, 0.31), (0.2, 0.32)], LOSS)
    assert found is not None
    assert found.difference.mean == pytest.approx(0.11)
    assert (found.ahead, found.search.mean) == (3, pytest.approx(0.2))
    assert "ahead of random search by 0.1100 loss" in found.sentence()


def test_seeds_without_both_figures_are_left_out_and_said() -> None:
    some = [(0.92, 0.90), None, None, (0.93, 0.90)]
    found = Comparison.of(some, ACCURACY)
    assert found is not None
    assert (found.pairs, found.left_out) == (2, 2)
    assert "2 more ended without a figure of both" in found.sentence()
    assert Comparison.of(some[:3], ACCURACY) is None
    assert Comparison.of([], ACCURACY) is None
