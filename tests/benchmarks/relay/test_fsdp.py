from __future__ import annotations

import warnings

import torch
from torch import nn

from benchmarks.relay.fsdp import shard
from benchmarks.relay.group import join_world_of_one


def test_a_sharded_model_computes_what_it_did_and_keeps_its_parameters_on_the_host():
    cpu = torch.device("cpu")
    join_world_of_one(cpu)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    before = model(x).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sharded = shard(model, [model[0], model[2]], cpu)
        assert sharded is model
        torch.testing.assert_close(sharded(x).detach(), before)
        sharded(x).sum().backward()
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
