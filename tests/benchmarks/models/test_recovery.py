"""The plain fine-tuning is that of the library's searches."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.models.recovery import fine_tune
from l2l_nas import AdamW, Cosine, ParamServer, PrecisionConfig, Relay, Split, Tokens
from l2l_nas.training.data import Batches
from l2l_nas.training.export import build_network
from l2l_nas.training.metrics import measured
from l2l_nas.training.teach import TaughtBatches, TaughtTask
from tests.text.networks import WHOLE, pool_of

STEPS, RATE = 4, 1e-3


@pytest.fixture
def batches() -> Batches:
    tokens = torch.randint(257, (20, 13), generator=torch.Generator().manual_seed(0))
    return Batches(Split((tokens[:, :-1],), tokens[:, 1:]), batch_size=4, seed=0)


@pytest.fixture
def server() -> ParamServer:
    return ParamServer(pool_of(), optimizer=AdamW(), seed=3)


@pytest.fixture
def teacher():
    return build_network(ParamServer(pool_of(), optimizer=AdamW(), seed=4), WHOLE)


@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-7), ("bf16", 2e-4)])
def test_weights_become_those_that_the_relay_trains(batches, server, teacher, precision, within):
    network = build_network(server, WHOLE)
    before = copy.deepcopy(network.state_dict())
    losses = fine_tune(network, teacher, batches, steps=STEPS, rate=RATE, precision=precision)
    relay = Relay(server, device="cpu", precision=PrecisionConfig(precision))
    task, schedule = TaughtTask(measured(Tokens()), share=0.5), Cosine(RATE, STEPS)
    teacher = teacher.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    with torch.no_grad():
        taught = list(TaughtBatches(batches, lambda inputs: (teacher(*inputs),)).ahead(0, STEPS))
    for step, (inputs, targets) in enumerate(taught):
        rate = schedule.at(step)
        done = relay.train_step(WHOLE, inputs, targets, objective=task, micro_batch=4, lr=rate, step=step)
        assert done.loss == pytest.approx(losses[step], rel=1e-6 if precision == "fp32" else 5e-3)
    relay.drain()
    for name, value in build_network(server, WHOLE).state_dict().items():
        assert network.state_dict()[name].dtype == torch.float32
        assert (network.state_dict()[name] - value).abs().mean() < within
        assert (value - before[name]).abs().max() > 1e-3


def test_no_steps_change_nothing(batches, server, teacher):
    network = build_network(server, WHOLE)
    before = copy.deepcopy(network.state_dict())
    assert fine_tune(network, teacher, batches, steps=0, rate=RATE, precision="fp32") == []
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
