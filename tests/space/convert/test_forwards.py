"""Forwards as people write them: any number of arguments, work in place, other layouts, state of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Classification, ParamServer, Relay, convert
from l2l_nas.errors import SpaceError
from l2l_nas.training.export import build_network

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Chain(nn.Module):
    """A stem, two blocks and a head."""

    def __init__(self, block=None):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList((block or (lambda: nn.Linear(4, 4)))() for _ in range(2))
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = self.between(block(h))
        return self.head(h)

    def between(self, h):
        return h


def trained(model, pool, inputs, steps=3):
    """The model trained by the relay, and by plain PyTorch; on a copy of the inputs each step."""
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay, plain = Relay(server, device="cpu"), copy.deepcopy(model)
    plain.train()
    optimizer = torch.optim.AdamW(plain.parameters(), fused=True, lr=0.1, weight_decay=0.01)
    for step in range(steps):
        targets = torch.tensor([step % 2, 1, 0])
        given = tuple(tensor + step for tensor in inputs)
        nn.functional.cross_entropy(plain(*(tensor.clone() for tensor in given)), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        relay.train_step(pool.original, given, targets, objective=Classification(), micro_batch=3, lr=0.1, step=step)
    relay.drain()
    return pool.restore(build_network(server, pool.original)), plain


def assert_trains_alike(model, pool, inputs):
    restored, plain = trained(model, pool, inputs)
    for key, tensor in plain.state_dict().items():
        assert torch.equal(restored.state_dict()[key], tensor), key


class AnyNumber(Chain):
    def forward(self, first, *rest):
        return super().forward(first + sum(rest))


class Stars(Chain):
    def forward(self, *xs):
        return super().forward(sum(xs))


@pytest.mark.parametrize(
    ("model", "count", "names"),
    [(Stars, 1, ["xs0"]), (Stars, 2, ["xs0", "xs1"]), (AnyNumber, 3, ["first", "rest0", "rest1"])],
)
def test_a_forward_takes_any_number_of_arguments(model, count, names):
    model = model()
    pool = convert(model, (X,) * count, blocks="blocks")
    assert list(pool.sources) == names
    assert_trains_alike(model, pool, (X, X.flip(0), X * 2)[:count])


def test_more_arguments_than_the_forward_takes_are_refused():
    with pytest.raises(SpaceError, match=r"the example has 2 positional arguments, but the model's forward takes x$"):
        convert(Chain(), (X, X), blocks="blocks")


class Repeats(Chain):
    """A module around a block runs twice, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.group, self.blocks = nn.Sequential(nn.Linear(4, 4)), nn.ModuleList()

    def forward(self, x):
        return self.head(self.group(self.group(self.stem(x))))


def test_a_module_around_a_block_may_run_again():
    model = Repeats()
    pool = convert(model, X, blocks="group.0")
    assert [position.name for position in pool.positions] == ["stem", "group.0", "group.0-2", "head"]
    assert_trains_alike(model, pool, (X,))


class Replaces(Chain):
    def between(self, h):
        self.count = self.count + 1
        return h


class Counts(Chain):
    def between(self, h):
        self.calls += 1
        return h


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Replaces, r"the model's forward replaces the buffer 'count'; change it in place: self.count.copy_\(...\)$"),
        (Counts, r"its forward changes 'self.model.calls'; .* register_buffer\('calls', ...\) in __init__"),
    ],
)
def test_state_that_a_forward_assigns_is_refused(model, says):
    with pytest.raises(SpaceError, match=says) as caught:
        convert(model(), X, blocks="blocks")
    assert "\n" not in str(caught.value)


class Doubles(Chain):
    def between(self, h):
        h *= 2
        return torch.relu_(h)


class DoublesInput(Chain):
    def forward(self, x):
        x *= 2
        return super().forward(x)


class Scaled(Chain):
    def between(self, h):
        return h * 3


def block_in_place():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))


@pytest.mark.parametrize(
    "model", [lambda: Chain(block_in_place), Doubles, DoublesInput, lambda: Scaled(lambda: nn.ReLU(inplace=True))]
)
def test_what_a_model_changes_in_place_is_a_copy(model):
    model = model()
    pool = convert(model, X, blocks="blocks")
    assert_trains_alike(model, pool, (X,))
    assert_that_the_value_is_as_it_was(pool)


def assert_that_the_value_is_as_it_was(pool):
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    given = X.clone()
    Relay(server, device="cpu").predict(pool.original, (given,), micro_batch=3)
    assert torch.equal(given, X)


class Strides(nn.Module):
    """Remembers the layout that it is given."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, groups=3)

    def forward(self, x):
        SEEN.append((x.shape, x.stride()))
        return self.conv(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))


SEEN: list[object] = []


def test_a_block_takes_a_tensor_in_the_layout_that_it_has_in_the_model():
    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Strides() for _ in range(2))

        def forward(self, x):
            for block in self.blocks:
                x = block(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
            return x.mean((2, 3))

    model, x = Images(), torch.randn(2, 3, 4, 5)
    pool = convert(model, x, blocks="blocks")
    SEEN.clear()
    model.eval()(x)
    expected = SEEN[:]
    SEEN.clear()
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    (got,) = Relay(server, device="cpu").predict(pool.original, (x,), micro_batch=2)
    assert [item for item in SEEN if item in expected] == expected
    assert expected[0] == ((2, 3, 4, 5), (60, 1, 15, 3))
    with torch.no_grad():
        assert torch.equal(got, model(x))


def test_a_head_that_is_there_in_training_alone_is_left_out_by_the_number_of_the_output():
    class Auxiliary(Chain):
        def __init__(self):
            super().__init__()
            self.side = nn.Linear(4, 2)

        def forward(self, x):
            out = super().forward(x)
            return (out, self.side(self.stem(x))) if self.training else out

    model = Auxiliary()
    with pytest.raises(SpaceError, match="output: the model gives no single tensor; write output=0 or output=1"):
        convert(model, X, blocks="blocks")
    pool = convert(model, X, blocks="blocks", output=0)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    (got,) = Relay(server, device="cpu").predict(pool.original, (X,), micro_batch=3)
    with torch.no_grad():
        assert torch.equal(got, model.eval()(X))
