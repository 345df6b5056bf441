"""Mini-batches are cut into micro-batches."""

from __future__ import annotations

import pytest

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import cut_sizes


@pytest.mark.parametrize(("samples", "micro_batch", "sizes"), [(6, 2, (2, 2, 2)), (5, 2, (2, 2, 1)), (3, 9, (3,))])
def test_the_last_micro_batch_may_be_short(samples, micro_batch, sizes):
    assert cut_sizes(samples, micro_batch) == sizes


def test_no_samples_and_no_micro_batch_are_refused():
    with pytest.raises(SettingError, match="at least 1 sample, got 0"):
        cut_sizes(5, 0)
    with pytest.raises(DataError, match="at least 1 sample"):
        cut_sizes(0, 5)
