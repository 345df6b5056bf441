"""Tensors in files: where they must lie, and that weights are numbers."""

from __future__ import annotations

import math
import re

import pytest
import torch

from l2l_nas.contents.tensors import refuse_misplaced, refuse_non_finite
from l2l_nas.errors import StorageError

SPANS = {"a": (64, 10), "b": (96, 32), "c": (128, 5)}


@pytest.mark.parametrize("end", [133, 160])
def test_tensors_that_lie_one_behind_the_other_are_right(end):
    refuse_misplaced(SPANS, begin=64, end=end, alignment=32)


@pytest.mark.parametrize(
    ("change", "end", "says"),
    [
        ({"a": (32, 10)}, 160, "a begins at byte 32, expected 64"),
        ({"b": (64, 32)}, 160, "b begins at byte 64, expected 96"),
        ({"b": (97, 31)}, 160, "b begins at byte 97, expected 96"),
        ({"b": (128, 32)}, 160, "b begins at byte 128, expected 96"),
        ({"b": (96, 33)}, 160, "c begins at byte 128, expected 160"),
        ({"b": (-96, 32)}, 160, "b begins at byte -96"),
        ({}, 132, "c does not lie within the file: 133 bytes of 132"),
        ({}, 161, "1 bytes lie behind the last tensor"),
        ({"c": (128, 1 << 70)}, 160, "c does not lie within the file"),
    ],
)
def test_another_place_is_refused_by_name(change, end, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        refuse_misplaced({**SPANS, **change}, begin=64, end=end, alignment=32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(dtype, value):
    weights = torch.full((3, 1 << 19), torch.finfo(dtype).max, dtype=dtype)
    refuse_non_finite(weights, "x.weight", "f")
    weights[2, -1] = value
    with pytest.raises(StorageError, match=r"f: x\.weight holds NaN or infinity"):
        refuse_non_finite(weights, "x.weight", "f")


def test_whole_numbers_and_no_numbers_at_all_are_finite():
    for weights in (torch.ones(3, dtype=torch.int64), torch.empty(0), torch.tensor(1.0)):
        refuse_non_finite(weights, "x", "f")
