"""What is predicted of a rank without any other is what two ranks count."""

from __future__ import annotations

import json

import pytest

from l2l_nas.eps.exchange import PaperRanks
from tests.parallel.predicted import CASES, counted, predicted
from tests.parallel.test_sharded import started


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_a_rank_of_four_are_those_that_its_program_counts(name, monkeypatch):
    monkeypatch.setattr("l2l_nas.eps.cut.SMALL_BYTES", 0)
    ranks = PaperRanks(4, 3)
    assert predicted(ranks, name) == counted(ranks, name)


@pytest.mark.slow
def test_two_ranks_exchange_and_hold_the_bytes_that_were_predicted(tmp_path):
    ended = started(2, "predicted", tmp_path)
    assert [code for code, *_ in ended] == [0, 0], ended
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.keys() == {*CASES, "divided"}
        for name, one in found.items():
            assert one["counted"] == one["predicted"], (rank, name)
            assert one["counted"]["exchanged"] > 0
