"""A converted model trains as the model itself does in plain PyTorch, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch

import l2l_nas
from l2l_nas import AdamW, ParamServer, Relay, skip
from l2l_nas.training.export import build_network
from tests.converted import CASES, ManyClasses, batch

STEPS = 3


def plain_steps(model, case, pool):
    """Losses of the model itself; it is trained."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True, lr=0.01)
    losses, objective = [], ManyClasses()
    for step in range(STEPS):
        inputs, targets = batch(case, pool, step)
        outputs = call(model.train(), case, pool, inputs)
        loss = objective.loss((outputs,), targets) / objective.count(targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def call(model, case, pool, inputs):
    if not isinstance(case.example, dict):
        return model(*inputs)
    return model(**{**case.example, **dict(zip(pool.sources, inputs, strict=True))}).logits


@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_trains_as_the_model_itself(name):
    torch.manual_seed(0)
    case = CASES[name]()
    before = copy.deepcopy(case.model.state_dict())
    pool = l2l_nas.convert(case.model, case.example, blocks=case.blocks, candidates={"skip": skip()})
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay = Relay(server, device="cpu")
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(case, pool, step)
        result = relay.train_step(
            pool.original, inputs, targets, objective=ManyClasses(), micro_batch=len(targets), lr=0.01, step=step
        )
        losses.append(result.loss)
    relay.drain()
    plain = copy.deepcopy(case.model)
    assert losses == plain_steps(plain, case, pool)
    restored = pool.restore(build_network(server, pool.original))
    assert type(restored) is type(case.model)
    for key, tensor in plain.state_dict().items():
        assert torch.equal(restored.state_dict()[key], tensor), key
    for key, tensor in case.model.state_dict().items():
        assert torch.equal(tensor, before[key]), key
