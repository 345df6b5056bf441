"""What every storage of layer states must do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.relay.relay import Relay
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.testing.problems import small_data, small_pool
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Classification


def check_storage(build: Callable[[LayerPool], Storage], *, steps: int = 20) -> None:
    """Training with it gives what training in host memory gives, bit by bit; and what is cleared is gone.

    Args:
        build: a new storage for the states of a pool, with two moments each.
        steps: of training, on random paths.

    Raises:
        AssertionError: it does not.
    """
    pool = small_pool()
    storage = build(pool)
    ours, theirs = (_trained(pool, one, steps) for one in (storage, RamStorage()))
    assert set(storage.keys) == set(theirs.storage.keys), "it does not hold the states that were put"
    for key in theirs.storage.keys:
        found, expected = ours.state(key), theirs.state(key)
        assert found.steps.tolist() == expected.steps.tolist(), f"{key}: another number of updates"
        for name, tensor in expected.tensors().items():
            assert torch.equal(found.tensors()[name], tensor), f"{key}: {name} is not what was written"
    storage.clear()
    assert storage.keys == (), "what is cleared is there"


def _trained(pool: LayerPool, storage: Storage, steps: int) -> ParamServer:
    server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=storage)
    relay = Relay(server, device="cpu")
    try:
        trainer = Trainer(relay, Classification(), Batches(small_data().train, batch_size=16, seed=0), 8)
        trainer.fit(UniformPaths(pool, seed=0).path_at, start=0, steps=steps, schedule=Cosine(0.01, steps))
        relay.drain()
    finally:
        relay.close()
    return server
