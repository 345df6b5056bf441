"""Models with recurrent layers, hooks, assignments, several heads and the like train as in plain PyTorch.

Each is trained for three steps: without dropout as the model itself, and with dropout as the layers of its pool by
plain PyTorch, whose random numbers are the relay's.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import AdamW, ParamServer, Relay, convert, skip
from l2l_nas.space.values import as_tuple
from l2l_nas.training.export import build_network
from tests.converted import Case, ManyClasses
from tests.equivalence.test_converted_models import Networks, first_server, relay_steps

LR = 0.01
X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))


class Chain(nn.Module):
    """Blocks with something before, between and behind them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem, self.blocks = nn.Linear(8, 8), nn.ModuleList(block(dropout) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, -1])


def block(dropout):
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout))


class Recurrent(Chain):
    """A recurrent layer in each place: before the blocks, between them, and behind them."""

    kind: type[nn.RNNBase] = nn.LSTM

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.before, self.between, self.behind = (
            self.kind(8, 4, 2, batch_first=True, bidirectional=True, dropout=dropout) for _ in range(3)
        )

    def forward(self, x):
        h = self.blocks[0](self.before(self.stem(x))[0])
        h, _ = self.between(h)
        h = self.behind(self.blocks[2](self.blocks[1](h)))[0]
        return self.head(h[:, -1])


class Gated(Recurrent):
    kind = nn.GRU


class Elman(Recurrent):
    kind = nn.RNN


class RecurrentBlocks(Chain):
    """Blocks that are recurrent layers, of which one gives its state to the next."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout) for _ in range(3))

    def forward(self, x):
        h, state = self.stem(x), None
        for block in self.blocks[1:]:
            h, state = block(self.blocks[0](h)[0] if state is None else h, state)
        return self.head(h[:, -1])


class Assigned(Chain):
    """The forward assigns what it reads, as code does that moves a table to the input's device."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.register_buffer("table", torch.randn(8), persistent=False)

    def forward(self, x):
        self.table = self.table.to(x.device)
        return super().forward(x + self.table)


class Hooked(Chain):
    """Hooks of a user's own on three blocks: on what they take, what they give, and gradients."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        first, middle, last = self.blocks
        first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        middle.register_forward_hook(lambda module, args, output: output.sin())
        middle.register_full_backward_hook(lambda module, inside, outside: (inside[0] * 3,))
        last.register_forward_hook(lambda module, args, output: output + args[0])


class Table(Chain):
    """Blocks in a ModuleDict that holds a ModuleList."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.blocks = nn.ModuleDict({"a": block(dropout), "b": nn.ModuleList(block(dropout) for _ in range(2))})

    def forward(self, x):
        h = self.blocks["a"](self.stem(x))
        for one in self.blocks["b"]:
            h = one(h)
        return self.head(h[:, -1])


class InPlace(Chain):
    """Blocks that change their argument, and return it."""

    def __init__(self, dropout=0.0):
        super().__init__()
        drops = [nn.Dropout(dropout, inplace=True)] if dropout else []  # without, it is no block: it does nothing
        self.blocks = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), *drops, nn.Hardtanh(inplace=True))


KINDS = [Recurrent, Gated, Elman, RecurrentBlocks, Assigned, Hooked, Table, InPlace]


@pytest.fixture(autouse=True)
def _of_a_device_that_has_its_kernels(request):
    kind = request.node.callspec.params.get("kind") if hasattr(request.node, "callspec") else None
    if request.config.getoption("--device") == "simulated" and kind in (Gated, Elman):
        pytest.skip("torch has other kernels of these for an accelerator, which the simulated one lacks")


def converted(kind, **settings):
    torch.manual_seed(0)
    model = kind(**settings)
    return model, convert(model, X, blocks="blocks", candidates={} if kind is RecurrentBlocks else {"skip": skip()})


def plain_losses(model, loss_of, targets):
    optimizer = torch.optim.AdamW(model.train().parameters(), fused=True, lr=LR, weight_decay=0.01)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(as_tuple(model(X + step)), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def relay_losses(server, objective, targets):
    relay = Relay(server, device="cpu")
    losses = [
        relay.train_step(
            server.pool.original, (X + step,), targets, objective=objective, micro_batch=4, lr=LR, step=step
        ).loss
        for step in range(3)
    ]
    relay.drain()
    return losses


def assert_same_weights(model, restored):
    own = model.state_dict()
    assert [name for name, tensor in own.items() if not torch.equal(tensor, restored.state_dict()[name])] == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_trains_as_the_model_itself(kind):
    model, pool = converted(kind)
    plain, targets = copy.deepcopy(model), torch.arange(4)
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    objective = ManyClasses()
    losses = relay_losses(server, objective, targets)
    assert losses == plain_losses(plain, lambda outputs, y: objective.loss(outputs, y) / objective.count(y), targets)
    restored = pool.restore(build_network(server, pool.original))
    assert type(restored) is kind
    assert_same_weights(plain, restored)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_with_dropout_its_layers_train_as_plain_modules_do(kind):
    model, pool = converted(kind, dropout=0.3)
    case, architectures = Case(model, X, "blocks"), [pool.original] * 3
    plain = Networks(first_server(pool), seed=7)
    losses = plain.steps(case, architectures, micro_batch=2)
    server = first_server(pool)
    relay = Relay(server, device="cpu", seed=7)
    assert relay_steps(relay, case, architectures, micro_batch=2) == losses
    plain.assert_same(server)


class TwoHeads(Chain):
    """Two heads, whose losses are added."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.other = nn.Linear(8, 3)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return {"class": self.head(h[:, -1]), "place": self.other(h.mean(1)), "hidden": h}


class SumOfTwo(ManyClasses):
    """Cross entropy of the first output, and the squared error of the second."""

    def loss(self, outputs, targets):
        classes, places = outputs
        wanted = functional.one_hot(targets % 3, 3).float()
        return functional.cross_entropy(classes, targets, reduction="sum") + (places - wanted).square().sum()


def test_two_heads_with_one_loss_train_as_the_model_itself():
    torch.manual_seed(0)
    model, targets, objective = TwoHeads(), torch.arange(4), SumOfTwo()
    pool = convert(model, X, blocks="blocks", candidates={"skip": skip()}, output=["class", "place"])
    plain = copy.deepcopy(model)
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    losses = relay_losses(server, objective, targets)
    assert losses == plain_losses(
        plain, lambda outputs, y: objective.loss(outputs[:2], y) / objective.count(y), targets
    )
    assert_same_weights(plain, pool.restore(build_network(server, pool.original)))
