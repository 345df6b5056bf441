"""Predictions and recalibration."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from l2l_nas.errors import DataError
from tests.equivalence.plain import Plain
from tests.relay.steps import assert_same, tensors, train
from tests.relay.steps import relay_on_host as relay_of
from tests.toys import dense_pool, random_data, repeated_pool

PATH = ["normed", "dense", "normed", "partial", "mlp"]


def modules_of(server, choices):
    """Plain modules with a server's weights and buffers."""
    plain = Plain(server, seed=0)
    return [plain.module(layer) for layer in server.pool.path(server.pool.architecture(choices))]


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_predict_equals_plain_modules_in_evaluation_mode(slots):
    relay = relay_of(dense_pool(), slots=slots)
    train(relay, PATH)
    inputs, _ = random_data(dense_pool(), 7, seed=1)
    modules = modules_of(relay.server, PATH)
    before = tensors(relay.server)
    outputs = relay.predict(relay.server.pool.architecture(PATH), inputs, micro_batch=3)
    with torch.no_grad():
        parts = [nn.Sequential(*modules).eval()(part) for part in inputs[0].split(3)]
    assert torch.equal(outputs[0], torch.cat(parts))
    assert_same(relay.server, before)


@pytest.mark.parametrize("pool", [dense_pool(), repeated_pool()], ids=["own", "repeated"])
def test_recalibrate_equals_plain_cumulative_averages(pool):
    path = PATH if len(pool) == 5 and not pool.shared else ["normed", "dense", "normed", "skip", "head"]
    relay = relay_of(pool)
    for step in range(3):
        train(relay, path, step=step)
    batches = [random_data(pool, size, seed=size)[0] for size in (4, 6, 3)]
    modules = modules_of(relay.server, path)
    for norm in {part for module in modules for part in module.eval().modules() if isinstance(part, nn.BatchNorm1d)}:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in batches:
            nn.Sequential(*modules)(*batch)
    before = tensors(relay.server)
    relay.recalibrate(pool.architecture(path), batches)
    for layer, module in zip(pool.path(pool.architecture(path)), modules, strict=True):
        for name, value in relay.server.state(layer.key).named_buffers().items():
            assert torch.allclose(value, module.get_buffer(name), atol=1e-6), f"{layer.key} {name}"
            assert not torch.equal(value, before[layer.key, f"buffers.{name}"])
    assert_same(relay.server, {name: t for name, t in before.items() if not name[1].startswith("buffers")})
    momenta = {m.momentum for t in relay.bank._templates.values() for m in t.module.modules() if hasattr(m, "momentum")}
    assert momenta == {0.1}


def test_a_recalibration_within_a_budget_measures_the_same():
    found = []
    batches = [random_data(dense_pool(), size, seed=size)[0] for size in (4, 6, 3, 5)]
    for tight in (False, True):
        relay = relay_of(dense_pool())
        train(relay, PATH, step=0)
        if tight:
            relay._memory = replace(relay._memory, device_budget=relay.bank.num_bytes + 12 * relay.sample_bytes)
        passes, real = [], relay._evaluation.recalibrate
        relay._evaluation.recalibrate = lambda server, path, some, started, passes=passes, real=real: (
            passes.append(len(some)),
            real(server, path, some, started),
        )
        relay.recalibrate(dense_pool().architecture(PATH), batches)
        assert passes == ([2, 2] if tight else [4])
        found.append(tensors(relay.server))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_recalibrate_needs_a_batch():
    with pytest.raises(DataError, match="batches: recalibration needs at least one"):
        relay_of(dense_pool()).recalibrate(dense_pool().architecture(PATH), [])
