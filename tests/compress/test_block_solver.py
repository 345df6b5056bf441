"""The solver's networks are those that trying all of them gives, in their order."""

from __future__ import annotations

import itertools
import random

import pytest
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.compress.block_solver import best_paths, blocks_of, changed, changes_of, key_of
from l2l_nas.errors import ConstraintError


def pool_of(depth=4):
    blocks = [Candidate("whole", lambda: nn.Linear(2, 2)), Candidate("half", lambda: nn.Linear(2, 2)), skip()]
    head = Position("head", Candidate("linear", lambda: nn.Linear(2, 2)))
    return LayerPool([*(Position(f"block_{i}", blocks) for i in range(depth)), head], inputs=TensorSpec((2,)))


def enumerated(pool, scores, limits, pairs):
    found = []
    for names in itertools.product(*([c.name for c in position.candidates] for position in pool.positions)):
        blocks = list(enumerate(names))
        if all(sum(costs[block] for block in blocks) <= most for costs, most in limits):
            together = sum(worse for pair, worse in pairs.items() if {*pair} <= {*blocks})
            found.append((sum(scores[block] for block in blocks) + together, names))
    return sorted(found)


@pytest.mark.parametrize("num_pairs", [0, 12])
@pytest.mark.parametrize("seed", range(3))
def test_the_solver_finds_what_trying_all_of_them_finds(seed, num_pairs):
    pool, generator = pool_of(), random.Random(seed)
    blocks = blocks_of(pool)
    scores = {block: generator.uniform(-1, 1) for block in blocks}
    limits = [({block: generator.uniform(0, 1e6) for block in blocks}, 2.2e6), (dict.fromkeys(blocks, 1.0), 5.0)]
    every = [(one, other) for one, other in itertools.combinations(blocks, 2) if one[0] != other[0]]
    pairs = {pair: generator.uniform(-2, 2) for pair in generator.sample(every, num_pairs)}
    expected = enumerated(pool, scores, limits, pairs)
    found = list(best_paths(pool, scores, limits=limits, pairs=pairs))
    assert [network.choices for network in found] == [names for _, names in expected]
    with pytest.raises(ConstraintError, match="no architecture is within the limits"):
        next(best_paths(pool, scores, limits=[(limits[1][0], 4.0)]))


def test_networks_whose_sums_hardly_differ_are_in_order_too():
    pool, generator = pool_of(), random.Random(0)
    scores = {block: 1000 + generator.uniform(0, 0.05) for block in blocks_of(pool)}
    limits = [({block: generator.uniform(0, 1) for block in blocks_of(pool)}, 2.5)]
    expected = enumerated(pool, scores, limits, {})
    assert [network.choices for network in best_paths(pool, scores, limits=limits)] == [names for _, names in expected]


def test_a_network_is_known_by_its_changes():
    pool = pool_of()
    network = pool.architecture(["whole", "half", "whole", "skip", "linear"])
    changes = changes_of(pool, network)
    assert changes == ((1, "half"), (3, "skip"))
    assert changed(pool, changes) == network
    assert key_of(pool, changes) == "block_1/half block_3/skip"
    assert key_of(pool, ()) == ""
