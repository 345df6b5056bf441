from __future__ import annotations

from l2l_nas.nas.evaluation.segment import run_all


def test_nothing_to_run_asks_nobody():
    assert list(run_all(None, [], after_step=lambda index, loss: None)) == []
