"""Path samplers: by (seed, step) alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from torch import nn

from l2l_nas import LayerPool, Position, Require, TensorSpec, UniformPaths, skip
from l2l_nas.errors import ConstraintError, SettingError
from l2l_nas.space.candidate import Candidate
from l2l_nas.space.sampling import PATH_SAMPLERS, FairPaths, build_paths

POOL = LayerPool(
    [Position(f"p{index}", [Candidate("a", nn.Identity), Candidate("b", nn.Identity), skip()]) for index in range(3)],
    inputs=TensorSpec((4,)),
)


# of different sizes: 3, 2, 4 and 1 candidates
UNEVEN = LayerPool(
    [
        Position(f"p{index}", [Candidate(name, nn.Identity) for name in names])
        for index, names in enumerate(("abc", "ab", "abcd", "a"))
    ],
    inputs=TensorSpec((4,)),
)


def paths_of(name, pool=POOL, seed=0, constraints=()):
    return build_paths(name, pool, seed=seed, constraints=constraints)


def steps_by_candidate(paths):
    """For every position, how often each candidate was chosen."""
    return [Counter(names) for names in zip(*(path.choices for path in paths), strict=True)]


@pytest.mark.parametrize("name", PATH_SAMPLERS)
def test_a_path_depends_on_seed_and_step_alone(name):
    forward = [paths_of(name, seed=1).path_at(step) for step in range(20)]
    random.seed(5)
    sampler = paths_of(name, seed=1)
    assert [sampler.path_at(step) for step in reversed(range(20))] == forward[::-1]
    assert [paths_of(name, seed=2).path_at(step) for step in range(20)] != forward


@pytest.mark.parametrize("name", PATH_SAMPLERS)
def test_constraints_are_respected(name):
    two_b = Require("two b", lambda architecture: architecture.choices.count("b") == 2)
    sampler = paths_of(name, constraints=[two_b])
    assert all(sampler.path_at(step).choices.count("b") == 2 for step in range(30))


@pytest.mark.parametrize("name", PATH_SAMPLERS)
def test_an_impossible_constraint_raises_with_the_reason(name):
    with pytest.raises(ConstraintError, match="requires a miracle"):
        paths_of(name, constraints=[Require("a miracle", lambda architecture: False)]).path_at(0)


@pytest.mark.parametrize("name", PATH_SAMPLERS)
def test_a_pool_without_a_choice_has_one_path(name):
    pool = LayerPool([Position("p", [Candidate("a", nn.Identity)])], inputs=TensorSpec((4,)))
    assert {paths_of(name, pool).path_at(step).choices for step in range(4)} == {("a",)}


def test_a_name_that_does_not_exist_gets_a_hint():
    with pytest.raises(SettingError, match=r"search\.warmup_paths: .*'fiar'.*'fair'"):
        paths_of("fiar")


def test_every_candidate_is_drawn_about_as_often():
    sampler = UniformPaths(POOL, seed=3)
    counts = Counter(sampler.path_at(step) for step in range(2700))
    assert len(counts) == 27
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 54  # 99.9 % of fair draws, 26 degrees of freedom


def test_in_a_fair_round_every_candidate_of_every_position_is_trained_once():
    sampler = FairPaths(POOL, seed=4)
    assert sampler.round_steps == 3
    rounds = [tuple(sampler.path_at(3 * number + turn) for turn in range(3)) for number in range(40)]
    for paths in rounds:
        assert all(set(names) == {"a", "b", "skip"} for names in zip(*(p.choices for p in paths), strict=True))
    assert len(set(rounds)) > 30  # and paths are mixed anew


def test_positions_with_fewer_candidates_go_round_again_and_stay_within_one_step():
    sampler = FairPaths(UNEVEN, seed=0)
    counts = [Counter() for _ in UNEVEN.positions]
    for number in range(25):
        paths = [sampler.path_at(4 * number + turn) for turn in range(4)]
        for position, found, total in zip(UNEVEN.positions, steps_by_candidate(paths), counts, strict=True):
            names = {candidate.name for candidate in position.candidates}
            assert set(found) == names  # each at least once
            assert max(found.values()) <= -(-4 // len(names))  # and none more often than it must
            total.update(found)
            assert max(total.values()) - min(total[name] for name in names) <= 1
    assert counts[2] == dict.fromkeys("abcd", 25)
    assert counts[1] == dict.fromkeys("ab", 50)
    assert counts[3] == {"a": 100}


@pytest.mark.parametrize("seed", range(5))
def test_where_a_constraint_refuses_paths_of_a_round_it_stays_fair_if_it_can(seed):
    one_b = Require("one b", lambda architecture: architecture.choices.count("b") == 1)
    sampler = FairPaths(POOL, seed=seed, constraints=[one_b])
    paths = [sampler.path_at(step) for step in range(30)]
    assert all(path.choices.count("b") == 1 for path in paths)
    assert steps_by_candidate(paths) == [{"a": 10, "b": 10, "skip": 10}] * 3


def test_where_no_fair_round_exists_the_paths_refused_are_uniform_draws():
    little_b = Require("at most one b", lambda architecture: architecture.choices[1:].count("b") == 0)
    sampler = FairPaths(POOL, seed=0, constraints=[little_b])
    paths = [sampler.path_at(step) for step in range(90)]
    assert all(little_b.violation(path) is None for path in paths)
    first, second, _ = steps_by_candidate(paths)
    assert second.keys() == {"a", "skip"}  # what is never allowed is never trained
    assert all(step > 20 for step in first.values())
    uniform = UniformPaths(POOL, seed=0, constraints=[little_b])
    assert sum(path == uniform.path_at(step) for step, path in enumerate(paths)) >= 30


def test_a_fair_path_is_the_canonical_one_in_a_shared_pool():
    pool = LayerPool.repeated(
        [Candidate("a", nn.Identity), Candidate("b", nn.Identity), skip()], depth=4, inputs=TensorSpec((4,))
    )
    sampler = FairPaths(pool, seed=0)
    for number in range(10):
        paths = [sampler.path_at(3 * number + turn) for turn in range(3)]
        assert all(pool.canonical(path) == path for path in paths)
        assert Counter(name for path in paths for name in path.choices) == {"a": 4, "b": 4, "skip": 4}
