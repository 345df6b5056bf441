"""Kinds of layers that once trained wrongly, or not at all: the relay trains them as plain PyTorch does, to the bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from l2l_nas import (
    AdamW,
    Candidate,
    Classification,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    TensorSpec,
)
from l2l_nas.training.export import build_network
from tests.equivalence.plain import Plain
from tests.equivalence.test_relay_equals_plain import assert_same

W, T = 4, 3
EMBEDDED = TensorSpec((T, W))
TABLE = nn.Module()
TABLE.register_buffer("angles", torch.eye(W))


class Spectrum(nn.Module):
    """Gives complex numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)

    def forward(self, x):
        return torch.fft.fft(self.linear(x))


class Filter(nn.Module):
    """Complex in, complex out, with a lazy conjugate."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(W))

    def forward(self, x):
        return (x * self.gain).conj()


class Back(nn.Module):
    """Real numbers again."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)

    def forward(self, x):
        return self.linear(torch.fft.ifft(x).real)


class Transposed(nn.Module):
    """Mixes along time: its output is a transposed view."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(T, T)

    def forward(self, x):
        return self.linear(x.transpose(1, 2)).transpose(1, 2)


class Recurrent(nn.Module):
    """An LSTM whose output is a transposed view."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(W, W, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


class OverTime(nn.Module):
    """BatchNorm over [batch, time, width], which makes the gradients that come to it tiny."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(W)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Viewing(nn.Module):
    """Takes its input as contiguous."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(T * W, 2)

    def forward(self, x):
        return self.linear(x.view(len(x), -1))


class Routed(nn.Module):
    """Two experts; which samples go to which is found by `nonzero`."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(W, 2), nn.ModuleList(nn.Linear(W, W) for _ in range(2))

    def forward(self, x):
        weight, choice = self.router(x).softmax(-1).max(-1)
        out = x.clone()
        for number, expert in enumerate(self.experts):
            chosen = (choice == number).nonzero()[:, 0]
            out = out.index_add(0, chosen, expert(x[chosen]) * weight[chosen, None])
        return out


class TwoNames(nn.Module):
    """One buffer under two names, changed by the first, read by the second."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W)
        shared = torch.ones(W)
        self.a.register_buffer("scale", shared)
        self.b.register_buffer("scale", shared)

    def forward(self, x):
        if self.training:
            self.a.scale.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.b(self.a(x)) * self.b.scale


class Rotated(nn.Module):
    """Uses a table that all layers share."""

    def __init__(self):
        super().__init__()
        self.table, self.linear = TABLE, nn.Linear(W, W)

    def forward(self, x):
        return self.linear(x @ self.table.angles)


class Permuted(nn.Module):
    """Its output is a permuted view, and its input need not be contiguous."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(T, T)

    def forward(self, x):
        return self.linear(x.permute(0, 2, 1)).permute(0, 2, 1)


class ChannelsLast(nn.Module):
    """A convolution whose weights and outputs have their channels last."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, x):
        return x + self.conv(x.unsqueeze(1).to(memory_format=torch.channels_last)).squeeze(1)


class Waves(nn.Module):
    """Gives what `irfft` made, whose strides are its own."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(W))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x, dim=1), n=T, dim=1) * self.gain


class InDict(nn.Module):
    """Gives two tensors by name, and nothing for a third."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)

    def forward(self, x):
        return {"hidden": self.linear(x), "loss": None, "gate": x.sigmoid()}


@dataclass
class Given:
    hidden: torch.Tensor
    gate: torch.Tensor
    cache: object = None


class InDataclass(InDict):
    def forward(self, x):
        return Given(self.linear(x), x.sigmoid())


class Gated(nn.Module):
    """Takes both."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)

    def forward(self, hidden, gate):
        return self.linear(hidden) * gate


def pretrained():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(W, 6, bias=False), nn.SiLU(), nn.Linear(6, W, bias=False))


PRETRAINED = pretrained()
KINDS = {
    "complex": [Spectrum, Filter, Back],
    "momentum": [lambda: nn.Sequential(nn.Linear(W, W), nn.BatchNorm1d(W, momentum=None))] * 2,
    "orthogonal": [lambda: nn.utils.parametrizations.orthogonal(nn.Linear(W, W))] * 2,
    "routed": [Routed] * 2,
    "deepcopy": [lambda: copy.deepcopy(PRETRAINED)] * 2,
    "existing": [lambda: PRETRAINED] * 2,
    "two names": [TwoNames] * 2,
    "shared table": [Rotated] * 3,
    "dict": [InDict, Gated, InDict, Gated],
    "dataclass": [InDataclass, Gated, InDataclass, Gated],
    "transposed": [Transposed] * 3,
    "permuted": [Permuted] * 3,
    "channels last": [ChannelsLast, Transposed, ChannelsLast],
    "irfft": [Waves, Transposed, Waves],
    "lstm": [Recurrent, OverTime, Recurrent, OverTime, Recurrent],
}
STRIDED = ("transposed", "permuted", "channels last", "irfft", "lstm")


def pool_of(name):
    positions = [Position(f"p{i}", Candidate("c", factory)) for i, factory in enumerate(KINDS[name])]
    head = Viewing if name in STRIDED else partial(nn.Linear, W, 2)
    inputs = EMBEDDED if name in STRIDED else TensorSpec((W,))
    return LayerPool([*positions, Position("head", Candidate("c", head))], inputs=inputs)


def run(pool, step_of, steps=6):
    architecture = pool.architecture(["c"] * len(pool))
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(5, *pool.inputs[0].shape, generator=generator)
        y = torch.randint(0, 2, (5,), generator=generator)
        result = step_of(architecture, (x,), y, objective=Classification(), micro_batch=3, lr=0.01, step=step)
        losses.append(result if isinstance(result, float) else result.loss)
    return losses


@pytest.mark.parametrize("budget", [None, "all"])
@pytest.mark.parametrize("name", KINDS)
def test_it_trains_as_plain_pytorch_does(name, budget):
    pool = pool_of(name)
    server, other = (ParamServer(pool, optimizer=AdamW(), seed=1) for _ in range(2))
    relay, plain = Relay(server, device="cpu", device_budget=budget), Plain(CopiedModules(other), seed=0)
    assert run(pool, relay.train_step) == run(pool, plain.step)
    relay.drain()
    assert_same(server, plain)
    resident = ReferenceTrainer(ParamServer(pool, optimizer=AdamW(), seed=1), device="cpu")
    assert run(pool, resident.train_step) == run(pool, plain_of(pool).step)
    resident.write_back()
    architecture = pool.architecture(["c"] * len(pool))
    x = torch.randn(7, *pool.inputs[0].shape)
    expected = relay.predict(architecture, (x,), micro_batch=3)[0]
    assert torch.equal(expected, resident.predict(architecture, (x,), micro_batch=3)[0])
    network = build_network(server, architecture)
    with torch.no_grad():
        assert torch.equal(expected, torch.cat([network(part) for part in x.split(3)]))


class CopiedModules:
    """A server for `Plain` whose factories give modules of their own, as a loop in plain PyTorch copies them."""

    def __init__(self, server):
        self.server, self.optimizer, self.state = server, server.optimizer, server.state
        self.pool = Copies(server.pool)


class Copies:
    """The paths of a pool, whose candidates are built by deepcopy."""

    def __init__(self, pool):
        self.pool = pool

    def path(self, architecture):
        return [Copied(layer) for layer in self.pool.path(architecture)]

    def __getattr__(self, name):
        return getattr(self.pool, name)


class Copied:
    """A layer whose factory copies."""

    def __init__(self, layer):
        factory = layer.candidate.factory
        self.key, self.position = layer.key, layer.position
        self.candidate = Candidate(layer.candidate.name, lambda: copy.deepcopy(factory()))


def plain_of(pool):
    return Plain(CopiedModules(ParamServer(pool, optimizer=AdamW(), seed=1)), seed=0)


def test_a_module_that_exists_gives_its_weights_and_is_never_changed():
    module = pretrained().eval()
    before = copy.deepcopy(module.state_dict())
    candidates = [Candidate("c", lambda: module), Candidate("c", module)]
    positions = [Position(f"p{i}", one) for i, one in enumerate(candidates)]
    pool = LayerPool([*positions, Position("head", Candidate("c", partial(nn.Linear, W, 2)))], inputs=TensorSpec((W,)))
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu", slots=3)
    for key in ("p0/c", "p1/c"):
        for name, value in server.state(key).parameters().items():
            assert torch.equal(value, before[name])
    run(pool, relay.train_step)
    relay.drain()
    build_network(server, pool.architecture(["c"] * 3)).train()
    ReferenceTrainer(server, device="cpu").predict(pool.architecture(["c"] * 3), (torch.zeros(2, W),), micro_batch=2)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not any(part.training for part in module.modules())
    assert all(p.grad is None for p in module.parameters())
    own, other = (server.state(key).parameters()["0.weight"] for key in ("p0/c", "p1/c"))
    assert not torch.equal(own, other)  # two layers
    assert not torch.equal(own, before["0.weight"])


def test_the_docs_say_of_which_kernel_training_is_bit_for_bit():
    text = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    assert "`torch.optim.AdamW(fused=True)`. With the unfused kernel the loss differs by 4e-7." in text
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(100, generator=generator)
    gradients = [torch.randn(100, generator=generator) for _ in range(20)]
    trained = {}
    for fused in (True, False):
        weight = nn.Parameter(first.clone())
        optimizer = torch.optim.AdamW([weight], lr=0.01, fused=fused)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
        trained[fused] = weight.detach()
    assert 0 < float((trained[True] - trained[False]).abs().max()) < 1e-5  # why that has to be said
