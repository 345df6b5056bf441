"""A network with two heads that learns two targets at once, beside a plain PyTorch loop."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import (
    AdamW,
    Batches,
    Candidate,
    Cosine,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    Split,
    TensorSpec,
    Trainer,
)
from l2l_nas.errors import DataError


class Both:
    """A class and two numbers for each sample."""

    metrics = {"loss": False, "accuracy": True}

    def loss(self, outputs, targets):
        (logits, numbers), (classes, wanted) = outputs, targets
        return functional.cross_entropy(logits, classes, reduction="sum") + functional.mse_loss(
            numbers, wanted, reduction="sum"
        )

    def count(self, targets):
        return len(targets[0])

    def measure(self, outputs, targets):
        hits = outputs[0].argmax(dim=-1) == targets[0]
        return {"loss": float(self.loss(outputs, targets)) / len(hits), "accuracy": float(hits.float().mean())}

    def check(self, targets, outputs):
        assert len(targets) == len(outputs) == 2


def pool():
    trunk = [Candidate("wide", lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh()))]
    return LayerPool(
        [
            Position("trunk", trunk),
            Position("classes", Candidate("linear", partial(nn.Linear, 8, 3)), reads="trunk"),
            Position("numbers", Candidate("linear", partial(nn.Linear, 8, 2)), reads="trunk"),
        ],
        inputs=TensorSpec((5,)),
        outputs=("classes", "numbers"),
    )


def data(samples=22):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(samples, 5, generator=generator)
    return Split(
        (x,), (torch.randint(3, (samples,), generator=generator), torch.randn(samples, 2, generator=generator))
    )


@pytest.mark.parametrize("budget", [None, "all"])
@pytest.mark.parametrize("executor", [Relay, ReferenceTrainer])
def test_two_targets_train_as_plain_pytorch_does(executor, budget):
    space, split = pool(), data()
    server = ParamServer(space, optimizer=AdamW(), seed=1)
    path = space.architecture(["wide", "linear", "linear"])
    layers = [copy.deepcopy(server.build_module(layer, {})) for layer in space.path(path)]
    parameters = [p for layer in layers for p in layer.parameters()]
    plain = torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.05, fused=True)
    rule = server.optimizer
    plain.param_groups[0].update(betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay)
    options = {"device_budget": budget} if executor is Relay else {}
    found: list[float] = []
    train = Trainer(executor(server, device="cpu", **options), Both(), Batches(split, batch_size=11, seed=0), 4)
    train.fit(
        lambda step: path, start=0, steps=6, schedule=Cosine(0.01, 6), after_step=lambda s, loss: found.append(loss)
    )
    for step in range(6):
        (x,), targets = train.batches.at(step)
        total = torch.zeros(())
        for start in (0, 4, 8):
            part = slice(start, start + 4)
            hidden = layers[0](x[part])
            loss = Both().loss((layers[1](hidden), layers[2](hidden)), tuple(t[part] for t in targets)) / 11
            total = total + loss.detach()
            loss.backward()
        plain.param_groups[0]["lr"] = Cosine(0.01, 6).at(step)
        plain.step()
        plain.zero_grad()
        assert found[step] == float(total)
    train.executor.drain() if executor is Relay else train.executor.write_back()
    for layer, module in zip(space.path(path), layers, strict=True):
        weights = server.build_module(layer, {}).state_dict()
        assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())
    values = train.evaluate(path, split)
    with torch.no_grad():
        hidden = layers[0](split.inputs[0])
        wanted = Both().measure((layers[1](hidden), layers[2](hidden)), split.targets)
    assert values == pytest.approx(wanted, rel=1e-6)
    assert set(train.score(path, split).errors) == {"loss", "accuracy"}


def test_targets_of_other_lengths_are_refused():
    space, split = pool(), data()
    relay = Relay(ParamServer(space, optimizer=AdamW(), seed=1), device="cpu")
    short = (split.targets[0], split.targets[1][:-1])
    with pytest.raises(DataError, match="differ in their number of samples: \\[22, 22, 21\\]"):
        relay.train_step(
            space.architecture(["wide", "linear", "linear"]), split.inputs, short,
            objective=Both(), micro_batch=4, lr=0.1, step=0,
        )  # fmt: skip
