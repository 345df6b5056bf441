"""When numbers that were computed in two ways count as the same."""

from __future__ import annotations

import math

import pytest
import torch

from l2l_nas.space.tolerance import is_near, is_same

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], True),
        ([NAN], [0.0], False),
        ([0.0], [NAN], False),
        ([INF], [torch.finfo(torch.float32).max], False),
        ([1, 2], [1, 2], True),
        ([1, 2], [1, 3], False),
        ([1], [1.0], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_outputs_are_the_same_where_every_number_is(one, other, expected):
    assert is_same(torch.tensor(one), torch.tensor(other)) is expected


@pytest.mark.parametrize(
    ("got", "wanted", "expected"),
    [
        ([1.0, 100.0], [1.5, 100.0], True),
        ([1.0, 100.0], [3.0, 100.0], False),
        ([NAN, 2.0], [1.0, 2.0], False),
        ([1.0, 2.0], [NAN, 2.0], False),
        ([NAN, 2.0], [NAN, 2.0001], True),
        ([NAN, 5.0], [NAN, 1.0], False),  # what is no number hides nothing beside it
        ([-INF, 5.0], [-INF, 1.0], False),
        ([1, 2], [1, 3], False),
        ([1], [1.0], False),
    ],
)
def test_numbers_are_near_where_they_differ_by_rounding_alone(got, wanted, expected):
    assert is_near(torch.tensor(got), torch.tensor(wanted)) is expected
