"""What is told of the data of a run."""

from __future__ import annotations

from dataclasses import replace

import torch

from l2l_nas.runs.origin import describe_data, rows_chosen_by, sizes
from l2l_nas.training.data import Data
from l2l_nas.training.overlap import chosen_by
from l2l_nas.training.samples import Split


def test_samples_that_belong_together_are_told():
    x, y = torch.rand(40, 2), torch.arange(40) % 2
    data = Data(Split(x, y), Split(x[:8], y[:8]), Split(x[:12], y[:12]))
    assert sizes(data) == "40 training, 8 validation, 12 test"
    assert "groups" not in describe_data(data)
    grouped = replace(data, test=Split(x[:12], y[:12], groups=torch.arange(12) // 4))
    assert sizes(grouped) == "40 training, 8 validation, 12 test (in 3 groups)"
    assert describe_data(grouped) == {**describe_data(data), "groups": {"test": 3}}
    assert chosen_by({"data": rows_chosen_by(data)}).samples == 8
