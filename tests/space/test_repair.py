from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from torch import nn

from l2l_nas import Architecture, Candidate, LayerPool, Position, TensorSpec, UniformPaths
from l2l_nas.errors import ConstraintError
from l2l_nas.space.constraint import Graded, Require, total_excess
from l2l_nas.space.sampling import Repair

NAMES = "abcdef"


class AtMost:
    """A limit on the sum of a path's letters, a = 0."""

    def __init__(self, most: int) -> None:
        self.most = most

    def value(self, architecture: Architecture) -> int:
        return sum(NAMES.index(name) for name in architecture.choices)

    def violation(self, architecture: Architecture) -> str | None:
        return f"{self.value(architecture)}, allowed {self.most}" if self.value(architecture) > self.most else None

    def excess(self, architecture: Architecture) -> float:
        return max(0.0, self.value(architecture) - self.most)


class Distinct(AtMost):
    """A limit on the sum of the letters that a path has, each once: as parameters of a shared pool count."""

    def value(self, architecture: Architecture) -> int:
        return sum(NAMES.index(name) for name in set(architecture.choices))


def pool_of(depth: int, *, shared: bool = False) -> LayerPool:
    candidates = [Candidate(name, nn.Identity) for name in NAMES]
    return LayerPool([Position(f"p{i}", candidates) for i in range(depth)], inputs=TensorSpec((4,)), shared=shared)


def test_a_limit_is_graded_and_a_plain_requirement_is_not():
    assert isinstance(AtMost(3), Graded)
    assert not isinstance(Require("b", lambda a: "b" in a.choices), Graded)
    path = Architecture(("b", "c", "c"))
    assert total_excess(path, [AtMost(3), Require("an f", lambda a: "f" in a.choices)]) == 2 + 1
    assert total_excess(path, [AtMost(5), Require("a b", lambda a: "b" in a.choices)]) == 0


@pytest.mark.parametrize("most", [0, 1, 5, 20])
def test_any_architecture_is_led_to_what_a_limit_allows(most):
    pool = pool_of(8)
    repair = Repair(pool, AtMost(most).excess)
    for seed in range(5):
        start = UniformPaths(pool, seed=seed).path_at(0)
        found, excess = repair.descend(start, random.Random(seed))
        assert excess == 0
        assert AtMost(most).violation(found) is None


def test_where_nothing_is_allowed_the_nearest_is_found():
    found, excess = Repair(pool_of(8), AtMost(-3).excess).descend(Architecture(("f",) * 8), random.Random(0))
    assert found.choices == ("a",) * 8
    assert excess == 3


def test_what_is_used_at_several_places_is_changed_at_all_of_them():
    pool = pool_of(4, shared=True)
    found, excess = Repair(pool, Distinct(0).excess).descend(Architecture(("f", "f", "e", "e")), random.Random(0))
    assert (found.choices, excess) == (("a",) * 4, 0)


def test_a_random_walk_stays_among_what_is_allowed_and_comes_everywhere_alike():
    pool, limit = pool_of(3), AtMost(2)
    repair = Repair(pool, limit.excess)
    allowed = [names for names in product(NAMES, repeat=3) if limit.violation(Architecture(names)) is None]
    generator = random.Random(1)
    counts = Counter()
    current = Architecture(("a", "a", "a"))
    for _ in range(200 * len(allowed)):
        current = repair.wander(current, generator)
        counts[current.choices] += 1
    assert set(counts) == set(allowed)
    assert min(counts.values()) > 100
    assert max(counts.values()) < 300


@pytest.mark.parametrize("most", [4, 6])
def test_uniform_paths_find_what_one_architecture_in_a_hundred_thousand_is(most):
    """Of 6 ** 10 = 60 million, 1,001 have a sum of at most 4, 7,778 one of at most 6."""
    pool, limit = pool_of(10), AtMost(most)
    paths = UniformPaths(pool, seed=0, constraints=[limit])
    drawn = [paths.path_at(step) for step in range(60)]
    assert all(limit.violation(path) is None for path in drawn)
    assert len(set(drawn)) > 40
    assert drawn[7] == UniformPaths(pool, seed=0, constraints=[limit]).path_at(7)
    chosen = Counter(name for path in drawn for name in path.choices)
    assert {"a", "b", "c"} <= set(chosen)


def test_draws_that_are_allowed_at_once_are_as_without_repairs():
    pool, loose = pool_of(4), AtMost(12)
    plain = Require("little", lambda a: loose.violation(a) is None)  # the same, but not graded
    drawn = [[UniformPaths(pool, seed=3, constraints=[c]).path_at(step) for step in range(50)] for c in (loose, plain)]
    assert drawn[0] == drawn[1]


def test_nothing_allowed_raises_with_the_most_frequent_reason():
    with pytest.raises(ConstraintError, match=r"none of 1000 random .* allowed -1; loosen them"):
        UniformPaths(pool_of(2), seed=0, constraints=[AtMost(-1)]).path_at(0)
