"""What a rank has the others know."""

from __future__ import annotations

import pytest

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
