from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.search.simulated.landscape import whitened
from benchmarks.search.simulated.landscapes import LANDSCAPES
from benchmarks.search.simulated.measured import SHARES, TASKS, bent, measured, unbent
from benchmarks.search.simulated.race import pool_of
from l2l_nas.runs.locate import load_problem


@pytest.mark.parametrize("task", TASKS)
def test_columns_are_what_was_measured(task):
    found = measured(task)
    assert found.curves.shape == (3, 100, 7)
    assert not np.isnan(found.curves[:2]).any()
    third = ~np.isnan(found.curves[2, :, 0])
    assert 40 <= third.sum() <= 60
    means = unbent(np.nanmean(found.curves, axis=(0, 1)))
    assert (np.diff(means[:6]) > 0).all(), "networks get better on their way"
    # two trainings of one network are alike
    assert kendalltau(found.curves[0, :, 5], found.curves[1, :, 5]).statistic > 0.55


def test_an_error_is_as_far_bent_as_it_is_unbent():
    assert unbent(bent(np.array([0.1, 0.9]))) == pytest.approx([0.1, 0.9])


def test_components_give_the_measured_columns_back():
    found = measured("cluttered_digits")
    made = whitened(found)
    columns = made.mean + made.values @ made.factor.T
    assert columns[:, 0] == pytest.approx(np.nanmean(found.curves, axis=0)[:, 6])
    assert columns[:, 1] == pytest.approx(np.nanmean(found.curves, axis=0)[:, 5])
    assert (made.noise > 0).all()


@pytest.mark.parametrize("name", ["gaussian", "trees"])
def test_a_landscape_is_one_of_its_repetition_and_its_scores_tell_more_with_more_steps(name):
    make, tasks = LANDSCAPES[name]
    landscape, same, other = make(tasks[0], 0), make(tasks[0], 0), make(tasks[0], 1)
    rng = random.Random(0)
    drawn = [landscape.random(rng) for _ in range(150)]
    truths = [landscape.truth(one) for one in drawn]
    assert truths == [same.truth(one) for one in reversed(drawn)][::-1], "in whatever order they are asked for"
    assert truths != [other.truth(one) for one in drawn]
    assert all(0 < truth < 1 for truth in truths)
    assert landscape.score(drawn[0], 0.3) == same.score(drawn[0], 0.3)
    early, late = (
        kendalltau([landscape.score(one, share) for one in drawn], truths).statistic for share in (SHARES[0], 1.0)
    )
    assert early + 0.1 < late < 1


def test_the_space_is_the_default_one():
    problem = load_problem("image_blocks", {}, source="digits", validation_fraction=0.2, test_fraction=0.2)
    make, tasks = LANDSCAPES["gaussian"]
    space = make(tasks[0], 0).space
    assert {p.name: tuple(sorted(c.name for c in p.candidates)) for p in problem.pool.free} == space
    assert pool_of(tuple(space.items())).size == problem.pool.size
