"""A held step on shared memory computes on copies, and updates the states as they are by then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas import SGD
from l2l_nas.eps.shared_storage import SharedStorage
from l2l_nas.errors import LaneError
from tests.relay.steps import chain_pool, is_same, tensors, train
from tests.relay.test_held import Raising, held


def test_an_update_that_ends_half_way_in_shared_memory_is_undone():
    pool = chain_pool(lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 2), lambda: nn.Linear(2, 2))
    relay = held(pool, optimizer=Raising(), storage=SharedStorage(pool, optimizer=Raising()))
    train(relay, ["c"] * 3)
    before = tensors(relay.server)
    with pytest.raises(LaneError, match=r"update of 'p2/c' failed: RuntimeError: half-way"):
        train(relay, ["c"] * 3, step=1)
    assert is_same(relay.server, before)


def other_process(storage):
    """The same states, as another process has them."""
    pool = chain_pool(Meddled, lambda: nn.Linear(6, 2))
    return SharedStorage(pool, optimizer=SGD(), workers=2, address=storage.address)


class Meddled(nn.Module):
    """Meanwhile another process changes its state."""

    meanwhile = staticmethod(lambda: None)

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(3)

    def forward(self, x):
        y = self.linear(self.norm(x))
        type(self).meanwhile()
        return y


def test_a_step_computes_on_one_copy_and_updates_what_another_process_made_of_the_state(monkeypatch):
    pool = chain_pool(Meddled, lambda: nn.Linear(6, 2))
    alone = held(pool, optimizer=SGD())
    storage = SharedStorage(pool, optimizer=SGD(), workers=2)
    relay, other = held(pool, optimizer=SGD(), storage=storage), other_process(storage)
    for one in (relay, alone):
        train(one, ["c"] * 2, batch=6)
    before = alone.server.state("p0/c").clone()

    def change():
        with other.writing("p0/c") as state:
            state.parameters()["linear.weight"].add_(8)
            state.named_buffers()["norm.num_batches_tracked"].add_(40)
            state.mark_updated()

    monkeypatch.setattr(Meddled, "meanwhile", staticmethod(change))
    result = train(relay, ["c"] * 2, batch=6, step=1)  # three micro-batches
    monkeypatch.undo()
    assert result == train(alone, ["c"] * 2, batch=6, step=1)
    ours, after = relay.server.state("p0/c"), alone.server.state("p0/c")
    assert ours.visits == 2 + 3
    moved = after.parameters()["linear.weight"] - before.parameters()["linear.weight"]
    expected = before.parameters()["linear.weight"] + 24 + moved
    assert torch.allclose(ours.parameters()["linear.weight"], expected, atol=1e-5)
    # of the last writer
    assert torch.equal(ours.buffers, after.buffers)
    train(relay, ["c"] * 2, batch=6, step=2)
    other.close()
