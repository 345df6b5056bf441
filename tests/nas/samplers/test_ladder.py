from __future__ import annotations

import random

import pytest

from l2l_nas.nas.samplers.base import History, Scored
from l2l_nas.nas.samplers.hamming_gp import HammingGP
from l2l_nas.nas.samplers.ladder import ladder
from tests.nas.samplers.wide_space import percent_above_the_grid

SPACE = {f"p{index}": ("b", "c", "a") for index in range(20)}


def size(genotype):
    return float(sum("abc".index(value) for value in genotype))


def test_a_ladder_begins_with_all_small_and_all_large_and_halves_what_is_between():
    found = ladder(SPACE, size, 5)
    assert found[:2] == [("a",) * 20, ("c",) * 20]
    assert [size(one) for one in found] == pytest.approx([0, 40, 20, 10, 30], abs=1)
    assert found[2] == ("b",) * 20


def test_a_rung_between_two_has_the_larger_candidate_at_places_that_lie_evenly():
    rung = ladder(SPACE, size, 4)[3]
    assert set(rung) == {"a", "b"}
    for begin in range(0, 20, 5):
        assert 2 <= rung[begin : begin + 5].count("b") <= 3


def test_a_small_space_has_every_rung_once():
    found = ladder({"p": ("a", "b")}, size, 9)
    assert found == [("a",), ("b",)]


def proposal(*, goals=2, is_raced=False, size=size, known=None, seen=()):
    sampler = HammingGP(seed=0, start=5)
    sampler.is_raced = is_raced
    first = ("a",) * 19 + ("b",)
    history = History([Scored(first, (1.0, -1.0)[:goals])], {first, *seen}, known=known or {}, size=size)
    return sampler.propose(SPACE, history, random.Random(0))


def test_several_goals_begin_with_the_ladder_where_trials_are_whole_evaluations():
    assert proposal() == ("a",) * 20
    assert proposal(seen=[("a",) * 20]) == ("c",) * 20
    assert proposal(size=None, known={1: lambda genotype: -size(genotype)}) == ("a",) * 20
    uniform = [("a",) * 20, ("c",) * 20]
    others = [proposal(goals=1), proposal(is_raced=True), proposal(size=None)]
    assert not any(one in uniform for one in others)


@pytest.mark.slow
@pytest.mark.parametrize(("is_known", "least"), [(True, 0), (False, -3)])
def test_the_front_of_a_wide_space_is_beside_that_of_uniform_architectures(is_known, least):
    # without the ladder it is 16 % and 21 % below
    assert percent_above_the_grid(50, is_known=is_known, seeds=(0, 1)) > least
