"""Changing the architecture allocates nothing: not in the slots, not in the stash."""

from __future__ import annotations

from l2l_nas import AdamW, ParamServer, Relay, UniformPaths
from tests.toys import SquaredError, dense_pool, random_data


def test_a_thousand_architectures_in_a_row_use_the_memory_of_the_first_twenty():
    pool = dense_pool(width=4, depth=5)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    inputs, targets = random_data(pool, 3, seed=0)
    sampler = UniformPaths(pool, seed=0)

    def memory():
        owned = [*relay.bank.tensors(), relay.stash.arena]
        rooms = [tensor for position in relay.stash.cut((2, 1)).own for batch in position for tensor in batch]
        storages = {tensor.untyped_storage().data_ptr() for tensor in [*owned, *rooms]}
        blocks = [t.data_ptr() for slot in relay.bank.slots for t in (slot.weights, slot.gradients, slot.buffers)]
        return (
            len(owned),
            storages,
            blocks,
            relay.bank.num_templates,
            relay.bank.num_bytes,
            relay.stash.arena.data_ptr(),
        )

    seen = set()
    for step in range(1020):
        if step == 20:
            warm = memory()
        architecture = sampler.path_at(step)
        seen.add(architecture)
        relay.train_step(architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.001, step=step)
    assert memory() == warm
    assert len(seen) > 900
