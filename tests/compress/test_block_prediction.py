"""A prediction from scores of blocks: its factor, the pairs it asks for, and what it says of networks left out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from l2l_nas.compress.block_prediction import SumPrediction, pairs_to_measure

BLOCKS = [(index, "skip") for index in range(10)]
SINGLES = {block: 0.1 * (1 + block[0]) for block in BLOCKS}


def drawn(count, worse, seed=0):
    generator = random.Random(seed)
    networks = [tuple(sorted(generator.sample(BLOCKS, 5))) for _ in range(count)]
    return {changes: worse(changes) for changes in networks}


def test_the_factor_is_that_of_networks_scored_whole_and_1_without_any():
    plain = SumPrediction(SINGLES, {})
    assert plain.fitted({}).factor == 1
    networks = drawn(12, lambda changes: 1.5 * plain.sum(changes))
    assert 1.4 < plain.fitted(networks).factor < 1.5
    assert plain.fitted(dict([*networks.items()][:1])).factor == pytest.approx(1.25, abs=0.01)
    assert plain.fitted(networks).of(()) == 0


def test_one_network_that_fell_apart_does_not_decide_the_factor():
    plain, generator = SumPrediction(SINGLES, {}), random.Random(1)
    networks = drawn(12, lambda changes: plain.sum(changes) * generator.uniform(0.9, 1.1))
    networks[next(iter(networks))] = 100.0
    assert 0.9 < plain.fitted(networks).factor < 1.2


def test_pairs_are_added_as_they_were_measured():
    pairs = {(BLOCKS[0], BLOCKS[1]): 3.0, (BLOCKS[4], BLOCKS[7]): -0.5}
    found = SumPrediction(SINGLES, pairs, factor=2.0)
    assert found.of((BLOCKS[0], BLOCKS[1], BLOCKS[4])) == pytest.approx(2 * 0.8 + 3)
    assert replace(found, pair_factor=0.5).of((BLOCKS[0], BLOCKS[1], BLOCKS[4])) == pytest.approx(2 * 0.8 + 1.5)
    assert found.of((BLOCKS[4], BLOCKS[7])) == pytest.approx(2 * 1.3 - 0.5)
    networks = drawn(20, lambda changes: 1.2 * found.sum(changes) + 0.5 * found.together(changes))
    assert found.fitted(networks).factor == pytest.approx(1.2, abs=0.1)
    assert found.fitted(networks).pair_factor == pytest.approx(0.5, abs=0.1)
    assert SumPrediction(SINGLES, {}).fitted(networks).pair_factor == 1


def test_what_is_predicted_of_a_network_left_out_does_not_know_it():
    plain = SumPrediction(SINGLES, {})
    networks = drawn(6, plain.sum)
    odd = next(iter(networks))
    networks[odd] = plain.sum(odd) + 1
    assert plain.left_out(networks)[odd] == pytest.approx(plain.sum(odd))


def test_the_pairs_measured_are_neighbours_of_what_was_most_wrong():
    a, b, c, d, e = BLOCKS[:5]
    wrong = {(a, b, e): 0.1, (b, c, d): 4.0}
    assert pairs_to_measure(wrong, {}, 2) == [(b, c), (c, d)]
    assert pairs_to_measure(wrong, {(b, c): 0.0}, 2) == [(a, b), (c, d)]
    assert pairs_to_measure(wrong, {}, 9) == [(a, b), (b, c), (b, e), (c, d)]
    assert pairs_to_measure({}, {}, 9) == []
