"""Candidates: which of them may run in one template; and positions that make no sense."""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

from l2l_nas import Candidate, Position, skip
from l2l_nas.errors import SpaceError


def kind(factory):
    return Candidate("x", factory).kind


def test_partials_of_one_function_and_arguments_are_of_one_kind():
    assert kind(partial(nn.Linear, 3, bias=False)) == kind(partial(nn.Linear, 3, bias=False))


def test_arguments_that_differ_make_another_kind():
    assert kind(partial(nn.Dropout, 1)) != kind(partial(nn.Dropout, 1.0))
    assert kind(partial(nn.Conv2d, 3, 3, 3, stride=1)) != kind(partial(nn.Conv2d, 3, 3, 3, stride=2))


def test_two_lambdas_are_two_kinds():
    assert kind(lambda: nn.Linear(1, 1)) != kind(lambda: nn.Linear(1, 1))


def test_a_position_needs_candidates():
    with pytest.raises(SpaceError, match="position 'p': has no candidates"):
        Position("p", [])


def test_a_position_refuses_two_candidates_of_one_name():
    with pytest.raises(SpaceError, match="two candidates of this name") as caught:
        Position("p", [skip("a"), Candidate("a", nn.Identity)])
    assert (caught.value.position, caught.value.candidate) == ("p", "a")


def test_a_position_refuses_bare_modules():
    with pytest.raises(SpaceError, match="write Candidate"):
        Position("p", [nn.Identity()])


def test_an_unknown_candidate_is_answered_with_the_known_ones():
    with pytest.raises(SpaceError, match="no candidate 'c'; it has a, b"):
        Position("p", [skip("a"), skip("b")])["c"]
