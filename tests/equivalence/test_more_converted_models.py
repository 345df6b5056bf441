"""More models, each by its original path as the model itself in plain PyTorch; what a router's loss adds."""

from __future__ import annotations

import copy

import pytest
import torch

import l2l_nas
from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.training.export import build_network
from tests.converted import ManyClasses, batch
from tests.more_converted import MORE_CASES

STEPS = 5
LR = 0.01


def converted(name):
    torch.manual_seed(0)
    case = MORE_CASES[name]()
    return case, l2l_nas.convert(case.model, case.example, blocks=case.blocks, **case.settings)


def plain_output(model, case, pool, inputs):
    """The output, and the weighted sum of the losses."""
    if not isinstance(case.example, dict):
        return model(*inputs), 0.0
    outputs = model(**{**case.example, **dict(zip(pool.sources, inputs, strict=True))})
    losses = case.settings.get("losses", {})
    return outputs[case.settings.get("output", "logits")], sum(outputs[name] * w for name, w in losses.items())


def trained_both(case, pool):
    """The relay's model and losses, and those of plain PyTorch."""
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay, plain, objective = Relay(server, device="cpu"), copy.deepcopy(case.model).train(), ManyClasses()
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], fused=True, lr=LR)
    losses = []
    for step in range(STEPS):
        inputs, _ = batch(case, pool, step)
        output, extra = plain_output(plain, case, pool, inputs)
        targets = torch.randint(0, output.shape[-1], output.shape[:-1])
        loss = objective.loss((output,), targets) / objective.count(targets)
        (loss + extra).backward()
        optimizer.step()
        optimizer.zero_grad()
        done = relay.train_step(pool.original, inputs, targets, objective=objective, micro_batch=4, lr=LR, step=step)
        losses.append((done.loss, float(loss.detach())))
    relay.drain()
    return pool.restore(build_network(server, pool.original)), plain, losses


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_CASES)
def test_a_converted_model_trains_as_the_model_itself(name):
    case, pool = converted(name)
    restored, plain, losses = trained_both(case, pool)
    assert type(restored) is type(case.model)
    for key, tensor in plain.state_dict().items():
        assert torch.equal(restored.state_dict()[key], tensor), key
    assert [one for one, _ in losses] == [other for _, other in losses]
    assert any(not torch.equal(plain.state_dict()[key], tensor) for key, tensor in case.model.state_dict().items())


@pytest.mark.slow
def test_a_routers_loss_trains_the_router():
    case, pool = converted("mixtral_with_its_router_loss")
    with_loss, *_ = trained_both(case, pool)
    case.settings.clear()
    pool = l2l_nas.convert(case.model, case.example, blocks=case.blocks)
    without_loss, *_ = trained_both(case, pool)
    name = "model.layers.0.mlp.gate.weight"
    assert not torch.equal(with_loss.state_dict()[name], without_loss.state_dict()[name])
