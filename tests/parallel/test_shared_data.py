"""Ranks load and compute parts of mini-batches and of evaluations; what comes of them are the bits of one process."""

from __future__ import annotations

import json

import pytest

from tests.parallel.shared_data import SAMPLES
from tests.parallel.test_sharded import started


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_ranks_share_mini_batches_and_evaluations_to_the_bits_of_one_process(tmp_path, size):
    found = {}
    for count in (1, size):
        folder = tmp_path / str(count)
        folder.mkdir()
        ended = started(count, "shared_data", folder)
        assert [code for code, *_ in ended] == [0] * count, ended
        found[count] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
    [expected] = found[1]
    assert expected["trained"] == 9 * 24
    assert expected["evaluated"] == 3 * SAMPLES  # three evaluations
    assert "sample 90 is broken" in expected["problems"][0]
    assert "a loss of" in expected["problems"][1]
    for rank in found[size]:
        assert {**rank, "trained": 0, "evaluated": 0} == {**expected, "trained": 0, "evaluated": 0}
        assert rank["trained"] <= expected["trained"] // size + 9 * 4  # 6 micro-batches of 4, of four chunks
        assert rank["evaluated"] <= expected["evaluated"] // size + 3 * 2 * 4  # two chunks
    assert sum(rank["trained"] for rank in found[size]) == expected["trained"]
