"""Groups of samples that belong together."""

from __future__ import annotations

import pytest
import torch

from l2l_nas.errors import DataError
from l2l_nas.training.samples import Split, groups_of, num_groups


def test_groups_of_samples_are_whole_numbers_for_each_and_go_with_them():
    rows = Split(torch.arange(6.0)[:, None], torch.arange(6), groups=[7, 7, 3, 3, 9, 9])
    assert groups_of(rows).tolist() == [1, 1, 0, 0, 2, 2]
    assert num_groups(rows) == 3
    assert groups_of(rows.some(torch.tensor([4, 2, 3]))).tolist() == [1, 0, 0]
    assert groups_of(Split(torch.zeros(3, 1), torch.zeros(3))).tolist() == [0, 1, 2]
    assert num_groups(Split(torch.zeros(3, 1), torch.zeros(3), groups=[5, 5, 5])) == 3  # one alone has no error
    for wrong in ([1, 2], [0.5] * 6):
        with pytest.raises(DataError, match=r"groups are .*; expected a whole number for each of 6 samples"):
            groups_of(Split(torch.zeros(6, 1), torch.zeros(6), groups=wrong))
