"""Pools: what they refuse, and the canonical form."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from l2l_nas import Architecture, Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.errors import SpaceError
from l2l_nas.space.pool import PerPool

LINEAR = partial(nn.Linear, 4, 4)
SPEC = TensorSpec((4,))


def pool_of(*positions, shared=False):
    return LayerPool(positions, inputs=SPEC, shared=shared)


def test_a_pool_needs_positions():
    with pytest.raises(SpaceError, match="no positions"):
        pool_of()


def test_two_positions_of_one_name_are_refused():
    with pytest.raises(SpaceError, match="two positions of this name"):
        pool_of(Position("p", [skip()]), Position("p", [skip()]))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "é"])
def test_unusual_letters_are_refused_in_every_name(name):
    with pytest.raises(SpaceError, match="letters"):
        pool_of(Position(name, [skip()]))
    with pytest.raises(SpaceError, match="letters"):
        pool_of(Position("p", [skip(name)]))
    with pytest.raises(SpaceError, match="letters"):
        pool_of(Position("p", [Candidate("c", LINEAR, tied={"weight": name})]))


def test_the_name_of_the_tied_states_is_taken():
    with pytest.raises(SpaceError, match="reserved for tied parameters"):
        pool_of(Position("tied", [Candidate("c", LINEAR)]))


def test_in_a_shared_pool_one_name_is_one_factory():
    with pytest.raises(SpaceError, match="another factory") as caught:
        pool_of(
            Position("p", [Candidate("c", LINEAR)]),
            Position("q", [Candidate("c", partial(nn.Linear, 4, 4, bias=False))]),
            shared=True,
        )
    assert (caught.value.position, caught.value.candidate) == ("q", "c")


def test_in_a_shared_pool_one_name_has_the_same_ties():
    with pytest.raises(SpaceError, match="ties"):
        pool_of(
            Position("p", [Candidate("c", LINEAR)]),
            Position("q", [Candidate("c", LINEAR, tied={"weight": "w"})]),
            shared=True,
        )


def test_a_tied_parameter_must_exist():
    pool = pool_of(Position("p", [Candidate("c", LINEAR, tied={"wight": "w"})]))
    with pytest.raises(SpaceError, match="ties 'wight', but has only weight, bias"):
        pool.build_module(pool.layers[0])


def test_a_factory_must_return_a_module():
    pool = pool_of(Position("p", [Candidate("c", lambda: 3)]))
    with pytest.raises(SpaceError, match="returned int"):
        pool.build_module(pool.layers[0])


def test_an_architecture_of_another_length_is_refused():
    with pytest.raises(SpaceError, match="has 1 choices, got 2"):
        pool_of(Position("p", [skip()])).architecture(["skip", "skip"])


def test_layers_of_a_shared_pool_have_one_key_and_others_their_own():
    candidates = [Candidate("c", LINEAR), skip()]
    shared = LayerPool.repeated(candidates, depth=2, inputs=SPEC)
    assert shared.states == ("shared/c",)
    own = pool_of(Position("p", candidates), Position("q", candidates))
    assert own.states == ("p/c", "q/c")
    assert own.size == 4


SHARED = LayerPool.repeated(
    [Candidate("a", LINEAR), Candidate("b", LINEAR), skip()],
    depth=6,
    inputs=SPEC,
    first=Candidate("stem", LINEAR),
    last=Candidate("head", LINEAR),
)


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(st.lists(st.sampled_from(["a", "b", "skip"]), min_size=6, max_size=6))
def test_the_canonical_form_keeps_the_layers_and_is_canonical(middle):
    raw = Architecture(("stem", *middle, "head"))
    canonical = SHARED.canonical(raw)
    assert SHARED.canonical(canonical) == canonical
    assert [layer.key for layer in SHARED.path(canonical)] == [layer.key for layer in SHARED.path(raw)]
    named = [name for name in middle if name != "skip"]
    assert canonical == SHARED.architecture(["stem", *["skip"] * (6 - len(named)), *named, "head"])


def test_a_pool_that_is_not_shared_has_one_form_for_each_choice():
    candidates = [Candidate("c", LINEAR), skip()]
    pool = pool_of(Position("p", candidates), Position("q", candidates))
    assert pool.architecture(["skip", "c"]) != pool.architecture(["c", "skip"])


def test_what_is_remembered_of_a_pool_goes_with_it_though_it_leads_back_and_stays_behind_in_a_copy():
    remembered = PerPool()
    pool = pool_of(Position("p", [Candidate("linear", LINEAR)]))
    remembered[pool] = [pool]
    assert copy.deepcopy(pool) not in remembered
    alive = weakref.ref(pool)
    del pool
    gc.collect()
    assert alive() is None
