"""Changing the architecture allocates nothing, neither in the slots nor in the stash, and many steps leak nothing."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec, UniformPaths, skip
from tests.relay.counting import tensors_of
from tests.relay.steps import copying
from tests.toys import SquaredError, dense_pool, random_data


@pytest.mark.slow
def test_hundreds_of_architectures_in_a_row_use_the_memory_of_the_first_twenty():
    pool = dense_pool(width=4, depth=5)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=copying())
    inputs, targets = random_data(pool, 3, seed=0)
    sampler = UniformPaths(pool, seed=0)

    def memory():
        owned = [*tensors_of(relay.bank), relay.stash.arena]
        frames = [tensor for value in relay.stash.lay_out((2, 1)).own.values() for batch in value for tensor in batch]
        storages = {tensor.untyped_storage().data_ptr() for tensor in [*owned, *frames]}
        blocks = [t.data_ptr() for slot in relay.bank.slots for t in slot.blocks]
        return (
            len(owned),
            storages,
            blocks,
            relay.bank.num_bytes,
            relay.stash.arena.data_ptr(),
        )

    for layer in (layer for layer in pool.layers if not layer.candidate.is_skip):
        for slot in range(2):
            relay.bank.build(layer, slot)  # paths come to the last of them late
    seen = set()
    for step in range(520):
        if step == 20:
            warm = memory()
        architecture = sampler.path_at(step)
        seen.add(architecture)
        relay.train_step(architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.001, step=step)
    assert memory() == warm
    assert len(seen) > 450


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_thousands_of_steps_leave_no_memory_thread_or_file_behind():
    choices = [
        Candidate("narrow", partial(nn.Linear, 4, 4)),
        Candidate("plain", partial(nn.Linear, 4, 4, bias=False)),
        Candidate("normed", partial(nn.BatchNorm1d, 3)),
        skip(),
    ]
    head = Position("head", [Candidate("head", partial(nn.Linear, 4, 2))])
    pool = LayerPool([*(Position(f"p{index}", choices) for index in range(3)), head], inputs=TensorSpec((3, 4)))
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", update="exact", lanes="threads")
    sampler = UniformPaths(pool, seed=0)
    inputs, targets = torch.ones(2, 3, 4), torch.ones(2, 3, 2)

    def used():
        gc.collect()
        return resident_bytes(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    for step in range(2_000):
        if step == 500:
            warm = used()
        relay.train_step(
            sampler.path_at(step), (inputs,), targets, objective=SquaredError(),
            micro_batch=1, lr=0.001, step=step, upcoming=sampler.path_at(step + 1),
        )  # fmt: skip
    resident, threads, files = used()
    relay.close()
    assert (threads, files) == warm[1:]
    assert resident - warm[0] < 2 << 20  # little more than a kilobyte a step
