"""What a rank has the others know."""

from __future__ import annotations

import json

import pytest
import torch

from l2l_nas.training.consensus import Consensus


class Other:
    """The exchange of rank 0 with one that is not there: what each gives is given."""

    rank, size, members = 0, 2, (0, 1)

    def __init__(self, rows):
        self.rows = rows

    def all_gather(self, part, whole, channel, of=""):
        whole[0].copy_(part)
        whole[1].copy_(self.rows.pop(0)(whole[0]))


@pytest.mark.parametrize("others", [[], "a longer text than this rank's"])
def test_every_rank_s_value_is_there_however_long(others):
    data = torch.frombuffer(bytearray(json.dumps(others).encode()), dtype=torch.uint8)

    def agreed(row):
        return torch.cat([row[:-1], torch.tensor([-len(data)])])

    def told(row):
        length = torch.tensor([len(data)]).view(torch.uint8)
        return torch.nn.functional.pad(torch.cat([length, data]), (0, len(row) - 8 - len(data)))

    rows = [agreed, told]
    assert Consensus(Other(rows)).every({"own": 3}) == [{"own": 3}, others]
    assert rows == []
