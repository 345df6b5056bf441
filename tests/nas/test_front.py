"""Which networks make the best front, and that a race with several goals keeps it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from l2l_nas.nas.front import best_front, reach
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.finalists import choose, going_on
from l2l_nas.report.network import Network, front
from l2l_nas.training.score import Score
from tests.nas.problems import GOALS, budget
from tests.nas.strategies.test_finalists import numbers, records, trained
from tests.nas.strategies.test_race import raced

BOTH = (True, False)


def certain(*points):
    return np.array(points, dtype=np.float64)[:, :, None]


def hypervolume(points):
    """Of two goals between 0 and 1, more is better, over the point (-0.1, -0.1)."""
    edges = sorted({-0.1, *(x for x, _ in points)})
    heights = [max(y for x, y in points if x >= right) + 0.1 for right in edges[1:]]
    return sum(
        (right - left) * height for (left, right), height in zip(itertools.pairwise(edges), heights, strict=True)
    )


def test_the_greedy_front_has_nearly_the_largest_hypervolume_of_all_subsets():
    rng = np.random.default_rng(1)
    for _ in range(10):
        points = rng.random((9, 2))
        points = (points - points.min(axis=0)) / np.ptp(points, axis=0)
        chosen = [tuple(points[index]) for index in best_front(certain(*points), (True, True), 4)]
        best = max(hypervolume(some) for some in itertools.combinations(map(tuple, points), 4))
        assert hypervolume(chosen) >= 0.95 * best


def test_the_mean_reach_is_the_hypervolume_but_for_a_factor():
    points = ((1.0, 0.0), (0.0, 1.0), (0.6, 0.7), (0.2, 0.3))
    far = reach(certain(*points), (True, True), directions=4096)
    worth = [far[:2].max(axis=0).mean(), far.max(axis=0).mean(), far[2].mean(), far[3].mean()]
    exact = [hypervolume(points[:2]), hypervolume(points), hypervolume(points[2:3]), hypervolume(points[3:])]
    assert np.array(worth) / worth[1] == pytest.approx(np.array(exact) / exact[1], rel=0.06)


def test_the_best_by_the_first_goal_is_the_first_and_what_is_dominated_is_left_out():
    points = certain((0.9, 1000.0), (0.8, 100.0), (0.79, 110.0), (0.6, 10.0), (0.5, 900.0))
    found = best_front(points, BOTH, 5)
    assert found[0] == 0
    assert sorted(found) == [0, 1, 3]
    assert best_front(points[:, ::-1], (False, True), 5)[0] == 3  # less is better


def test_what_is_behind_within_its_error_stays():
    normal = np.random.default_rng(0).normal(size=(3, 1, 500))
    values = certain((0.9, 1000.0), (0.8, 100.0), (0.79, 110.0))
    for error, expected in ((0.001, [0, 1]), (0.02, [0, 1, 2])):
        draws = values + normal * np.array([[error], [0.0]])
        assert sorted(best_front(draws, BOTH, 3)) == expected


def test_as_much_of_a_small_network_counts_as_of_a_large_one():
    # in plain numbers 40 and 1 would be nearly the same, and 1200 add more
    points = certain((0.9, 1600.0), (0.88, 1200.0), (0.7, 40.0), (0.5, 1.0))
    assert sorted(best_front(points, BOTH, 3)) == [0, 2, 3]


def test_three_goals_and_equal_values_are_no_matter():
    points = certain((0.9, 10.0, 1.0), (0.8, 5.0, 1.0), (0.8, 10.0, 0.5), (0.7, 10.0, 1.0))
    assert sorted(best_front(points, (True, False, False), 4)) == [0, 1, 2]
    same = certain((0.5, 3.0, 0.1), (0.5, 3.0, 0.1))
    assert best_front(same, (True, False, False), 2) == [0]
    assert sorted(best_front(certain((0.9, -1.0, 0.0), (0.8, -2.0, 0.0)), (True, False, False), 2)) == [0, 1]


def test_finalists_are_the_front_that_the_model_believes_in_and_others_fill_it_up():
    some = records((0.9, 100.0), (0.8, 10.0), (0.7, 50.0), (0.6, 200.0))
    draws = {
        one.architecture: np.array([[accuracy], [parameters]]) + np.zeros((1, 16))
        for one, accuracy, parameters in zip(some, (0.9, 0.5, 0.85, 0.3), (100.0, 10.0, 50.0, 200.0), strict=True)
    }
    assert numbers(choose(some, GOALS, count=3, posterior=draws)) == [0, 2, 1]
    assert numbers(choose(some, GOALS, count=4, posterior=draws)) == [0, 2, 1, 3]
    del draws[some[1].architecture]  # of what nothing is believed its score counts
    assert numbers(choose(some, GOALS, count=2, posterior=draws)) in ([0, 1], [0, 2])


def finalist(record, accuracy, error):
    one = trained(record, accuracy)
    score = Score({"accuracy": accuracy}, {"accuracy": error})
    return type(one)(one.record, {"parameters": record.values["parameters"]}, {"validation": score})


def test_who_goes_on_does_not_depend_on_who_was_done_first():
    some = records((0.9, 100.0), (0.8, 10.0), (0.7, 11.0), (0.6, 200.0))
    for error, expected in ((0.05, {0, 1, 2}), (0.001, {0, 1})):  # the third may be as good as the second, or not
        found = [finalist(record, record.values["accuracy"], error) for record in some]
        for order in (found, found[::-1]):
            assert {one.record.number for one in going_on(order, GOALS, 4)} == expected
    assert [one.record.number for one in going_on(found, GOALS[:1], 2)] == [0, 1]


def test_three_quarters_go_on_and_rounds_end_where_halving_ends_them():
    spend = budget(finalists=8, finalist_steps=700, finalist_rounds=3, num_goals=2)
    assert [(one.finalists, one.steps, one.going_on) for one in spend.rounds] == [(8, 100, 6), (6, 200, 4), (4, 400, 1)]
    assert spend.steps == spend.steps_before_finalists + 8 * 100 + 6 * 200 + 4 * 400
    few = budget(finalists=2, finalist_steps=30, finalist_rounds=2, num_goals=3)
    assert [one.finalists for one in few.rounds] == [2, 2]


@pytest.mark.parametrize("cost", ["parameters"])
def test_all_of_the_final_front_were_trained_to_the_end(tmp_path, cost):
    goals = (GOALS[0], Goal(cost, False))
    search, best, observer = raced(
        tmp_path, goals=goals, trials=12, finalists=6, finalist_steps=24, finalist_rounds=3, num_goals=2
    )
    finalists = search.context.finalists
    steps = [one.steps for one in finalists]
    assert steps.count(24) in (2, 3)
    assert min(steps) < 24
    networks = [Network.from_json(one.entry()) for one in finalists]
    final = front(networks, goals)
    assert {network.steps for network in final} == {24}
    assert all(network.test is not None for network in final)
    assert best.steps == 24
    assert best.compared_values["accuracy"] == max(
        one.compared_values["accuracy"] for one in finalists if one.steps == 24
    )
    assert sorted(one.record.number for one in observer.finalists) == sorted(one.record.number for one in finalists)
    assert sum(steps) - 6 * 3 <= sum(one.finalists * one.steps for one in search.context.budget.rounds)
