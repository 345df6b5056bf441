from __future__ import annotations

from collections import Counter

import pytest
import torch

from l2l_nas import Require
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.warm_up import plan_catch_up
from l2l_nas.space.sampling import UniformPaths
from tests.nas.problems import budget, pool_of, search_on


def covered(pool, *, steps=90):
    """What a warm-up of this pool leaves."""
    coverage = Coverage(pool)
    paths = UniformPaths(pool, seed=0)
    for step in range(steps):
        coverage.add("warmup", paths.path_at(step))
    return coverage.to_json()


def grown(before, now):
    coverage = Coverage(now)
    coverage.load(covered(before))
    return coverage, coverage.new_candidates()


def test_new_candidates_are_those_that_the_counts_do_not_name():
    _, found = grown(pool_of("tanh", "relu", depth=2), pool_of("tanh", "relu", "wide", depth=2))
    assert found == {"p0": {"wide": 45}, "p1": {"wide": 45}}
    assert Coverage(pool_of("tanh")).new_candidates() == {}
    _, found = grown(pool_of("tanh", "relu"), pool_of("tanh"))
    assert found == {}


def test_counts_of_candidates_that_are_gone_come_back_with_them():
    before = covered(pool_of("tanh", "relu", depth=1))
    without = Coverage(pool_of("tanh", depth=1))
    without.load(before)
    without.add("warmup", pool_of("tanh", depth=1).architecture(["linear", "tanh", "linear"]))
    again = Coverage(pool_of("tanh", "relu", depth=1))
    again.load(without.to_json())
    assert again.steps("warmup", "p0")["relu"] == before["warmup"]["p0"]["relu"]
    assert again.steps("warmup", "p0")["tanh"] == before["warmup"]["p0"]["tanh"] + 1
    assert again.new_candidates() == {}


def counts_of(paths, index):
    return Counter(path.choices[index] for path in paths)


def test_a_plan_trains_each_new_candidate_up_to_its_target_those_of_all_positions_at_a_time():
    now = pool_of("tanh", "relu", "wide", "normed", depth=3)
    coverage, targets = grown(pool_of("tanh", "relu", depth=3), now)
    assert targets["p1"] == {"wide": 45, "normed": 45}
    plan = plan_catch_up(now, coverage, targets=targets, seed=0, constraints=(), done=0)
    assert len(plan) == 90
    for index in (1, 2, 3):
        assert counts_of(plan, index) == {"wide": 45, "normed": 45}


def test_a_plan_made_half_way_is_the_rest_of_the_first():
    now = pool_of("tanh", "relu", "wide", depth=4)
    coverage, targets = grown(pool_of("tanh", "relu", depth=4), now)
    targets["p0"] = {"wide": 20}  # its paths are random there once it has enough
    first = plan_catch_up(now, coverage, targets=targets, seed=0, constraints=(), done=0)
    for path in first[:30]:
        coverage.add("warmup", path)
    assert plan_catch_up(now, coverage, targets=targets, seed=0, constraints=(), done=30) == first[30:]
    assert len(set(first[30:])) > 1


def test_constraints_that_refuse_all_new_candidates_at_once_take_them_one_by_one_and_impossible_ones_none():
    now = pool_of("tanh", "relu", "wide", depth=3)
    coverage, targets = grown(pool_of("tanh", "relu", depth=3), now)
    single = Require("one wide", lambda a: a.choices.count("wide") <= 1)
    plan = plan_catch_up(now, coverage, targets=targets, seed=0, constraints=(single,), done=0)
    assert all(path.choices.count("wide") == 1 for path in plan)
    assert all(counts_of(plan, index)["wide"] >= 45 for index in (1, 2, 3))
    none = Require("no wide", lambda a: "wide" not in a.choices)
    assert plan_catch_up(now, coverage, targets=targets, seed=0, constraints=(none,), done=0) == []


def run_and_grow(folder, *, stop_at=-1):
    folder.mkdir()
    spend = budget(warmup_steps=40, trials=3, finalist_steps=0)
    search, _, _, _ = search_on(folder, pool_of("tanh", "relu", depth=3), spend=spend)
    search.run()
    spend = budget(warmup_steps=40, trials=6, finalist_steps=0)
    pool = pool_of("tanh", "relu", "wide", depth=3)
    search, relay, _, observer = search_on(folder, pool, spend=spend, resume=True)
    if stop_at >= 0:
        observer.stop_at, observer.stop = stop_at, Stopped
        with pytest.raises(Stopped):
            search.run()
        assert observer.phases[-1][0] == "catch-up"
        search, relay, _, observer = search_on(folder, pool, spend=spend, resume=True)
    held = {}
    real = observer.phase

    def phase(name, **counts):
        real(name, **counts)
        if name == "search":
            held.update({key: relay.server.state(key).weights.clone() for key in relay.server.visited})

    observer.phase = phase
    search.run()
    return search, observer, held


@pytest.mark.slow
def test_new_candidates_are_trained_before_they_are_judged(tmp_path):
    search, observer, _ = run_and_grow(tmp_path / "run")
    assert [name for name, *_ in observer.phases] == ["warm-up", "catch-up", "search", "finalists"]
    assert observer.phases[1][1] == 20
    for row in ("p0", "p1", "p2"):
        assert search.context.coverage.steps("warmup", row)["wide"] == 20


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 7, 19])
def test_an_interrupted_catch_up_goes_on_as_if_nothing_had_been(tmp_path, stop_at):
    _, _, whole = run_and_grow(tmp_path / "whole")
    search, _, pieces = run_and_grow(tmp_path / "pieces", stop_at=stop_at)
    assert whole.keys() == pieces.keys()
    assert all(torch.equal(whole[key], pieces[key]) for key in whole)
    assert search.context.coverage.steps("warmup", "p0")["wide"] == 20
