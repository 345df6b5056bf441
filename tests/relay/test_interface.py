"""Mini-batches are tensors, cut into micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import as_samples, cut_sizes


@pytest.mark.parametrize(("samples", "micro_batch", "sizes"), [(6, 2, (2, 2, 2)), (5, 2, (2, 2, 1)), (3, 9, (3,))])
def test_the_last_micro_batch_may_be_short(samples, micro_batch, sizes):
    assert cut_sizes(samples, micro_batch) == sizes


def test_no_samples_and_no_micro_batch_are_refused():
    with pytest.raises(SettingError, match="at least 1 sample, got 0"):
        cut_sizes(5, 0)
    with pytest.raises(DataError, match="at least 1 sample"):
        cut_sizes(0, 5)


def test_arrays_are_samples_in_whatever_order_they_lie():
    x = np.arange(12.0).reshape(3, 4)
    for array in (x, x[::-1], x[:, ::-1], x.T, x[::2, 1:], x[:1][::-1], x.astype(">f4")):
        assert torch.equal(as_samples("inputs", array).double(), torch.tensor(array.tolist(), dtype=torch.float64))
