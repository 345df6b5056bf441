"""Uniform paths: by (seed, step) alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from torch import nn

from l2l_nas import LayerPool, Position, Require, TensorSpec, UniformPaths, skip
from l2l_nas.errors import ConstraintError
from l2l_nas.space.candidate import Candidate

POOL = LayerPool(
    [Position(f"p{index}", [Candidate("a", nn.Identity), Candidate("b", nn.Identity), skip()]) for index in range(3)],
    inputs=TensorSpec((4,)),
)


def test_a_path_depends_on_seed_and_step_alone():
    forward = [UniformPaths(POOL, seed=1).path_at(step) for step in range(20)]
    random.seed(5)
    sampler = UniformPaths(POOL, seed=1)
    assert [sampler.path_at(step) for step in reversed(range(20))] == forward[::-1]
    assert [UniformPaths(POOL, seed=2).path_at(step) for step in range(20)] != forward


def test_constraints_are_respected():
    two_b = Require("two b", lambda architecture: architecture.choices.count("b") == 2)
    sampler = UniformPaths(POOL, seed=0, constraints=[two_b])
    assert all(sampler.path_at(step).choices.count("b") == 2 for step in range(30))


def test_an_impossible_constraint_raises_with_the_reason():
    sampler = UniformPaths(POOL, seed=0, constraints=[Require("a miracle", lambda architecture: False)])
    with pytest.raises(ConstraintError, match="requires a miracle"):
        sampler.path_at(0)


def test_every_candidate_is_drawn_about_as_often():
    sampler = UniformPaths(POOL, seed=3)
    counts = Counter(sampler.path_at(step) for step in range(2700))
    assert len(counts) == 27
    chi_square = sum((count - 100) ** 2 / 100 for count in counts.values())
    assert chi_square < 54  # 99.9 % of fair draws, 26 degrees of freedom
