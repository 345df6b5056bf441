"""Weights in files are numbers."""

from __future__ import annotations

import math

import pytest
import torch

from l2l_nas.contents.tensors import refuse_non_finite
from l2l_nas.errors import StorageError


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
