"""Taking a network apart on a device with memory of its own: its table of embeddings never comes there."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from l2l_nas import AdamW, Architecture, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.compress.imitation import BlockDistillation, BlockSettings
from l2l_nas.cost.closed_form import num_parameters

VOCABULARY, LENGTH, WIDTH = 4096, 8, 16


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, WIDTH))


POOL = LayerPool(
    [
        Position("embedding", Candidate("table", partial(nn.Embedding, VOCABULARY, WIDTH))),
        Position("block", [Candidate(name, partial(network, size)) for name, size in (("whole", 64), ("half", 32))]),
        Position("head", Candidate("linear", partial(nn.Linear, WIDTH, VOCABULARY))),
    ],
    inputs=TensorSpec((LENGTH,), dtype=torch.int64),
)


def test_a_distillation_takes_a_small_share_of_the_network_s_bytes():
    server = ParamServer(POOL, optimizer=AdamW(), seed=0)
    whole = Relay(server, update="exact")  # as a search has one: it takes nothing before it runs
    before, original = torch.accelerator.memory_allocated(), Architecture(("table", "whole", "linear"))
    torch.accelerator.reset_peak_memory_stats()
    inputs = (torch.randint(VOCABULARY, (64, LENGTH), generator=torch.Generator().manual_seed(0)),)
    settings = BlockSettings(steps=3, batch_size=8, micro_batch=4)
    relay_of = partial(Relay, slots=1, update="exact")
    errors = dict(BlockDistillation(server, original, relay_of, settings).run(inputs))
    assert set(errors) == {"embedding/table", "block/whole", "block/half", "head/linear"}
    peak = torch.accelerator.max_memory_allocated() - before
    assert 0 < peak < 0.15 * 4 * num_parameters(POOL, original)
    whole.close()
