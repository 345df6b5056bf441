"""What ranks exchange equals what plain tensors say."""

from __future__ import annotations

import pytest

from tests.parallel.ranked import Ranks, errors_of


@pytest.mark.timeout(90)
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_gather_and_swap_equal_plain_tensors(size, tmp_path):
    with Ranks(tmp_path, size, "exchanges") as ranks:
        results = ranks.ended()
    assert [(one.code, one.out, one.err) for one in results] == [(0, "equal\n", "")] * size


@pytest.mark.timeout(90)
def test_ranks_that_exchange_different_shapes_are_told_so(tmp_path):
    with Ranks(tmp_path, 2, "steps", 1, 9, "shape") as ranks:
        results = ranks.ended()
    assert errors_of(results) == [
        "error: in load, rank 0 gathers (100,) torch.float32, and rank 1 gathers (7,) torch.float32"
    ]
    assert [one.code for one in results] == [2, 2]
