from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from benchmarks.search.correlation import Draws, interval, rho, tau


def counted_tau(a, b):
    """Kendall's tau-b by its definition: pairs in the same order minus pairs in another, ties taken out by side."""
    signs = [(np.sign(a[i] - a[j]), np.sign(b[i] - b[j])) for i, j in itertools.combinations(range(len(a)), 2)]
    one, other = (sum(sign != 0 for sign in side) for side in zip(*signs, strict=True))
    return sum(x * y for x, y in signs) / math.sqrt(one * other)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 2, 4, 3], 4 / 6),
        ([1, 1, 2, 3], [1, 2, 2, 4], 4 / 5),
    ],
)
def test_tau_of_lists_that_can_be_counted_by_hand(a, b, expected):
    assert tau(a, b) == pytest.approx(expected)
    assert tau(a, b) == pytest.approx(counted_tau(a, b))


def test_both_statistics_are_scipy_s():
    generator = np.random.default_rng(0)
    a, b = generator.integers(8, size=(2, 30))
    assert tau(a, b) == pytest.approx(kendalltau(a, b).statistic)
    assert tau(a, b) == pytest.approx(counted_tau(a, b))
    assert rho(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert rho([1, 2, 3], [1, 4, 9]) == pytest.approx(1.0)


@pytest.mark.parametrize("statistic", [tau, rho])
def test_a_side_that_is_all_ties_orders_nothing(statistic):
    assert statistic([1, 1, 1], [1, 2, 3]) == statistic([1, 2, 3], [5, 5, 5]) == 0.0


def test_each_draw_gives_what_scipy_gives_for_its_items():
    generator = np.random.default_rng(0)
    a, b = generator.integers(6, size=(2, 12)).astype(float)
    draws = Draws(12, resamples=40)
    expected = [(tau(a[chosen], b[chosen]), rho(a[chosen], b[chosen])) for chosen in draws._chosen]
    taus, rhos = draws.tau(a, b), draws.rho(a, b)
    assert (taus[0], rhos[0]) == (tau(a, b), rho(a, b))
    assert np.allclose(np.stack([taus[1:], rhos[1:]], axis=1), expected, atol=1e-12)
    assert len(set(taus.round(6))) > 20


def test_draws_without_two_different_items_order_nothing():
    draws = Draws(2, resamples=30)
    found = draws.tau([1, 2], [1, 2])
    assert set(found.round(9)) == {0.0, 1.0}
    assert np.allclose(draws.rho([1, 2], [1, 2]), found)


def test_a_difference_is_taken_draw_by_draw():
    a, b = np.random.default_rng(0).random((2, 20))
    draws = Draws(20, resamples=100)
    assert interval(draws.tau(a, b) - draws.tau(2 * a, b)) == {"value": 0.0, "low": 0.0, "high": 0.0}
    # both go up and down with the draw, their difference hardly does
    near = b + 0.01 * a
    width = [interval(values)["high"] - interval(values)["low"] for values in (draws.tau(a, b), draws.tau(a, near))]
    paired = interval(draws.tau(a, b) - draws.tau(a, near))
    assert paired["high"] - paired["low"] < min(width) / 2


@pytest.mark.parametrize(("name", "runs"), [("tau", 300), ("rho", 100)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(name, runs):
    correlation, hits = 0.7, 0
    # of two normal variables (Kruskal, Ordinal measures of association, 1958)
    truth = {"tau": 2 / math.pi * math.asin(correlation), "rho": 6 / math.pi * math.asin(correlation / 2)}[name]
    for run in range(runs):
        a, noise = np.random.default_rng(run).standard_normal((2, 60))
        b = correlation * a + math.sqrt(1 - correlation**2) * noise
        found = interval(getattr(Draws(60, resamples=200, seed=run), name)(a, b))
        hits += found["low"] <= truth <= found["high"]
    assert 0.88 * runs <= hits <= 0.99 * runs
