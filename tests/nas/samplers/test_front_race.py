"""Trials of a race with a metric and costs that are known: what adds most to the front comes next."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from l2l_nas.nas.front import reach
from l2l_nas.nas.samplers import hamming_gp
from l2l_nas.nas.samplers.base import History, Scored
from l2l_nas.nas.samplers.hamming_gp import HammingGP

SPACE = {f"p{index}": tuple("abcdef") for index in range(6)}
WORTH = dict(zip("abcdef", (0.0, 1.0, 1.5, 2.0, 2.2, 2.3), strict=True))
SIZES = dict(zip("abcdef", (1, 2, 4, 8, 16, 32), strict=True))


def size(genotype):
    return float(sum(SIZES[one] for one in genotype))


def score(genotype):
    """Of the first half of the positions alone: the others only cost."""
    return sum(WORTH[one] for one in genotype[:3])


def raced(trials=30, *, seed=0, is_random=False):
    sampler = HammingGP(seed=seed)
    sampler.is_raced = True
    rng, noise = random.Random(seed), random.Random(seed)
    scored, seen = [], set()
    for _ in range(trials):
        history = History(scored, seen, known={1: lambda one: -size(one)})
        genotype = tuple(map(rng.choice, SPACE.values())) if is_random else sampler.propose(SPACE, history, rng)
        assert is_random or genotype not in seen
        seen.add(genotype)
        scored.append(Scored(genotype, (score(genotype) + noise.gauss(0, 0.3), -size(genotype))))
    return [one.genotype for one in scored]


def worth(*searches):
    """Hypervolumes of what searches tried, by true scores, on one scale."""
    every = [one for search in searches for one in search]
    draws = np.array([[[score(one)], [size(one)]] for one in every])
    far = reach(draws, (True, False), directions=4096)
    ends = np.cumsum([0, *map(len, searches)])
    return [far[start:end].max(axis=0).mean() for start, end in itertools.pairwise(ends)]


@pytest.mark.slow
def test_the_front_is_better_than_that_of_random_trials():
    found = [worth(raced(seed=seed), raced(seed=seed, is_random=True)) for seed in range(4)]
    ours, chance = np.mean(found, axis=0)
    assert ours > 1.05 * chance


def test_a_seed_gives_one_search_and_what_comes_next_is_one_of_many_random_ones(monkeypatch):
    assert raced(14) == raced(14)
    monkeypatch.setattr(hamming_gp, "_around_the_best", None)  # near copies of the best are no candidates
    assert raced(14) != raced(14, seed=1)


def test_limits_that_chance_does_not_meet_are_met_among_the_neighbours_of_the_best():
    space = {f"p{index}": tuple("abcd") for index in range(10)}

    def is_allowed(genotype):
        return genotype.count("a") >= 8

    sampler = HammingGP(seed=0, start=4)
    sampler.is_raced = True
    some = [tuple("a" * 8 + one + other) for one in "abc" for other in "abc"]
    scored = [Scored(one, (float(index), -size(one))) for index, one in enumerate(some)]
    for seed in range(8):
        history = History(scored, set(some), is_allowed, {1: lambda one: -size(one)})
        found = sampler.propose(space, history, random.Random(seed))
        assert is_allowed(found)
        assert found not in some
