"""What several parts of a converted model need is computed once, and trains as in the model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, ParamServer, Regression, Relay, convert, plain_module
from l2l_nas.training.export import build_network

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def conv(inside, outside):
    return nn.Conv2d(inside, outside, 3, padding=1)


def features():
    """A part with a BatchNorm, an operation in place, and a dropout."""
    return nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(inplace=True), conv(8, 8), nn.Dropout(0.3))


class Rounds(nn.Module):
    """A cell that reads the same features in each of its rounds; the head reads them, too."""

    def __init__(self):
        super().__init__()
        self.encoder, self.cell, self.head = features(), conv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        shared = self.shared(x)
        h = torch.zeros_like(shared)
        for _ in range(3):
            h = torch.tanh(self.cell(torch.cat([shared, h], 1)))
        return self.head(h + shared).mean((2, 3))

    def shared(self, x):
        return self.encoder(x)


class Wrapped(Rounds):
    """Views of what a module gave, and what two modules around it gave."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Sequential(features(), nn.Flatten(2)))

    def shared(self, x):
        return self.encoder(x).unflatten(2, (6, 6))


class Pairs(Rounds):
    """One module that runs twice, before the blocks."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 8), nn.GELU(), conv(8, 8))

    def shared(self, x):
        return self.encoder(x) * torch.sigmoid(self.encoder(x.flip(0)))


class Several(Rounds):
    """A module that gives several tensors in a dict, one of them for the head alone."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = features(), conv(8, 8)

        def forward(self, x):
            h = self.first(x)
            return {"deep": self.second(h), "flat": h}

    def __init__(self):
        super().__init__()
        self.encoder = self.Two()

    def shared(self, x):
        both = self.encoder(x)
        return both["deep"] + both["flat"]


class TakenAsItIs(nn.Module):
    """A block takes what a module gave, which the head adds."""

    def __init__(self):
        super().__init__()
        self.stem, self.blocks, self.head = features(), nn.ModuleList([conv(8, 8), conv(8, 8)]), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        first = h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h + first).mean((2, 3))


class Detached(TakenAsItIs):
    """A block takes what a module gave, through which no gradient goes; the head adds it, with its gradient."""

    def forward(self, x):
        first = self.stem(x)
        h = self.blocks[1](self.blocks[0](first.detach()))
        return self.head(h + first).mean((2, 3))


class Turned(Rounds):
    """What a module gave has a gradient of another layout, which decides how its bias's gradient is summed."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.shift = conv(3, 8), nn.Parameter(torch.zeros(8, 1, 1))

        def forward(self, x):
            return self.conv(x) + self.shift

    def __init__(self):
        super().__init__()
        self.encoder = self.Shifted()

    def shared(self, x):
        return self.encoder(x).transpose(2, 3)


class Touched(Rounds):
    """What the module gave is changed in place later."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(conv(3, 8), nn.GELU())

    def shared(self, x):
        return self.encoder(x).mul_(2)


class Left(Touched):
    """A module leaves a tensor in an attribute, beside what it gives."""

    class Leaves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv(3, 8)
            self.left = []

        def forward(self, x):
            h = self.conv(x)
            self.left[:] = [h.sigmoid()]
            return h.tanh()

    def __init__(self):
        super().__init__()
        self.encoder = self.Leaves()

    def shared(self, x):
        return self.encoder(x) + self.encoder.left.pop()


class Hooked(Touched):
    """A hook changes what a module gives."""

    def __init__(self):
        super().__init__()
        self.encoder[1].register_forward_hook(lambda module, args, output: output * 2)

    def shared(self, x):
        return self.encoder[1](self.encoder[0](x))


class Table(Touched):
    """What a module gives is the same for all samples."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 8)

    def shared(self, x):
        return self.encoder(torch.eye(6))[:, :, None].expand(6, 8, 6).movedim(0, -1) + x.mean(1, keepdim=True)


def counted(model):
    """Counts of runs of its convolutions that are in no block."""
    calls = []
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and path.rpartition("model.")[2].startswith(("encoder", "stem")):
            module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def assert_exact(model, pool, network):
    """Outputs in both modes, gradients and buffers."""
    for training in (False, True):
        outputs = []
        for one in (model, network):
            torch.manual_seed(1)
            outputs.append(one.train(training)(X))
        torch.testing.assert_close(*outputs, rtol=0, atol=0)
    for output in outputs:
        output.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for layer in network.children():
        own = layer.model if hasattr(layer, "model") else layer.block
        prefix = f"{layer.path}." if hasattr(layer, "path") else ""
        for name, parameter in own.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[prefix + name])
    restored = pool.restore(network).state_dict()
    assert [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, restored[name])] == []


@pytest.mark.parametrize("kind", [Rounds, Wrapped, Pairs, Several, TakenAsItIs, Detached])
def test_what_a_module_gives_to_several_parts_is_computed_once_and_is_exact(kind):
    torch.manual_seed(0)
    model = kind()
    pool = convert(model, X, blocks="blocks" if issubclass(kind, TakenAsItIs) else "cell")
    plain, network = copy.deepcopy(model), plain_module(pool, pool.original)
    runs, expected = counted(network), counted(plain)
    plain.eval()(X), network.eval()(X)
    assert len(runs) == len(expected) > 0
    assert_exact(plain, pool, network)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize("kind", [Touched, Left, Hooked, Table])
def test_what_no_value_can_hand_on_is_computed_again_and_is_exact(kind):
    torch.manual_seed(0)
    model = kind()
    pool = convert(model, X, blocks="cell")
    assert_exact(copy.deepcopy(model), pool, plain_module(pool, pool.original))


@pytest.mark.parametrize("kind", [Rounds, Several, TakenAsItIs, Turned])
def test_a_relay_trains_it_bit_for_bit_as_plain_pytorch(kind):
    torch.manual_seed(0)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    pool = convert(model, X, blocks="blocks" if issubclass(kind, TakenAsItIs) else "cell")
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay, plain = Relay(server, device="cpu"), copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(plain.parameters(), fused=True, lr=0.01, weight_decay=0.01)
    targets = torch.randn(4, 2)
    for step in range(3):
        optimizer.zero_grad()
        Regression().loss((plain(X),), targets).div(Regression().count(targets)).backward()
        optimizer.step()
        relay.train_step(pool.original, (X,), targets, objective=Regression(), micro_batch=4, lr=0.01, step=step)
    relay.drain()
    restored = pool.restore(build_network(server, pool.original)).state_dict()
    assert [name for name, tensor in plain.state_dict().items() if not torch.equal(tensor, restored[name])] == []


class TwoArguments(nn.Module):
    """A block that takes two things of one part, of which a module changes buffers for the second alone."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv(3, 4), nn.Sequential(conv(3, 4), nn.BatchNorm2d(4))
        self.blocks = nn.ModuleList([nn.Bilinear(6, 6, 6)])

    def forward(self, x):
        return self.blocks[0](self.first(x), self.second(x)).mean((2, 3))


def test_a_part_keeps_the_buffers_of_all_that_it_makes():
    pool = convert(TwoArguments(), X, blocks="blocks")
    (stem,) = (layer for layer in pool.path(pool.original) if pool.positions[layer.position].name == "stem")
    buffers = [name for name, _ in pool.build_module(stem).named_buffers()]
    assert [name.rpartition(".")[2] for name in buffers] == ["running_mean", "running_var", "num_batches_tracked"]
