from __future__ import annotations

import json

from l2l_nas import UniformPaths
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.space.sampling import FairPaths
from tests.nas.problems import pool_of
from tests.report.examples import small_pool

POOL = pool_of("tanh", "relu", "skip", depth=2)


def path(*middle):
    return POOL.architecture(["linear", *middle, "linear"])


def counted(*paths):
    coverage = Coverage(POOL)
    for chosen in paths:
        coverage.add("warmup", chosen)
    return coverage


def test_skips_are_counted_like_layers():
    coverage = counted(path("tanh", "skip"), path("tanh", "relu"), path("skip", "skip"))
    assert coverage.steps("warmup", "p0") == {"tanh": 2, "relu": 0, "skip": 1}
    assert coverage.steps("warmup", "p1") == {"tanh": 0, "relu": 1, "skip": 2}
    assert coverage.steps("warmup", "stem") == {"linear": 3}
    assert coverage.steps("trials", "p0") == {"tanh": 0, "relu": 0, "skip": 0}


def test_what_was_counted_reads_back_from_json():
    coverage = counted(path("tanh", "skip"))
    coverage.add("trials", path("relu", "relu"))
    again = Coverage(POOL)
    again.load(json.loads(json.dumps(coverage.to_json())))
    assert again.to_json() == coverage.to_json()


def test_counts_of_another_time_leave_what_they_do_not_know_at_zero():
    coverage = Coverage(POOL)
    coverage.load({"warmup": {"p0": {"tanh": 3, "retired": 9}, "gone": {}}})
    assert coverage.steps("warmup", "p0") == {"tanh": 3, "relu": 0, "skip": 0}
    coverage.load({})
    assert coverage.steps("warmup", "p0") == {"tanh": 0, "relu": 0, "skip": 0}


def test_candidates_below_a_third_of_their_position_s_mean_are_named():
    coverage = counted(
        *[path("tanh", "tanh")] * 4, *[path("relu", "relu")] * 4, path("skip", "tanh"), path("tanh", "skip")
    )
    assert [(s.position, s.candidate, s.steps) for s in coverage.under_trained()] == [
        ("p0", "skip", 1),
        ("p1", "skip", 1),
    ]
    assert "2 candidates" in coverage.warning()
    assert "p0/skip (1 of mean 3.3), p1/skip (1 of mean 3.3);" in coverage.warning()
    assert [s.candidate for s in coverage.under_trained(0.2)] == []


def test_exactly_a_third_is_enough():
    coverage = counted(*[path("tanh", "tanh")] * 4, *[path("relu", "relu")] * 4, path("skip", "skip"))
    assert coverage.under_trained() == ()
    assert coverage.warning() == ""


def test_of_many_candidates_the_rest_is_counted():
    pool = small_pool(9)
    coverage = Coverage(pool)
    for _ in range(10):
        coverage.add("warmup", pool.architecture(["stem", *["wide"] * 9, "head"]))
    assert "18 candidates" in coverage.warning()
    assert " and 14 more; " in coverage.warning()


def test_without_warm_up_there_is_nothing_to_warn_of():
    coverage = Coverage(POOL)
    coverage.add("trials", path("tanh", "tanh"))
    assert coverage.warning() == ""


def test_a_shared_pool_is_counted_by_name_over_its_like_positions():
    pool = small_pool(4, shared=True)
    coverage = Coverage(pool)
    assert list(coverage.rows) == ["stem", "layer_00 to layer_03", "head"]
    coverage.add("warmup", pool.architecture(["stem", "skip", "wide", "wide", "linear", "head"]))
    assert coverage.steps("warmup", "layer_00 to layer_03") == {"linear": 1, "wide": 2, "skip": 1}


def test_in_a_shared_pool_fair_paths_are_fair_by_name():
    pool = small_pool(4, shared=True)
    fair, uniform = Coverage(pool), Coverage(pool)
    for step in range(30):
        fair.add("warmup", FairPaths(pool, seed=0).path_at(step))
        uniform.add("warmup", UniformPaths(pool, seed=0).path_at(step))
    assert fair.steps("warmup", "layer_00 to layer_03") == {"linear": 40, "wide": 40, "skip": 40}
    assert len(set(uniform.steps("warmup", "layer_00 to layer_03").values())) > 1
