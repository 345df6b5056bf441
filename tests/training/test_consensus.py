"""What a rank has the others know."""

from __future__ import annotations

import json

import pytest
import torch

from l2l_nas.errors import TrialError
from l2l_nas.training.consensus import Consensus, Peers


@pytest.fixture
def notes():
    return []


@pytest.fixture
def consensus(notes):
    return Consensus(peers=Peers(notes.append, tell=lambda error: None, rejoin=lambda: None, mesh=lambda tensor: None))


def test_a_rank_says_what_it_does_meanwhile_and_then_what_it_did_before(consensus, notes):
    consensus.note("step 3")
    with consensus.during("the save after 3 steps"), consensus.during("a file"):
        pass
    assert notes == ["step 3", "the save after 3 steps", "a file", "the save after 3 steps", "step 3"]


def test_what_failed_is_what_is_said_then(consensus, notes):
    consensus.note("step 3")
    with pytest.raises(ValueError, match="disk"), consensus.during("the save after 3 steps"):
        raise ValueError("disk")
    assert notes[-1] == "the save after 3 steps"


def test_what_fails_on_the_only_rank_fails_alike_on_all():
    error = TrialError("broken")
    assert Consensus().failure(error, lambda: None) == (error, True)


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
