"""The probe: what would train wrongly without a word is refused before anything runs, by name, with what to write."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, add_loss
from l2l_nas.errors import SpaceError
from l2l_nas.space.candidate import describe
from l2l_nas.space.shapes import check_shapes, runs_on
from tests.space.probing import Layer, Nonzero, W, check, layer, pool_of


def hooked(how):
    module = nn.Linear(W, W)
    getattr(module.weight, how)(lambda gradient: None)
    return module


def clamp(self, x):
    with torch.no_grad():
        self.linear.weight.clamp_(-1, 1)
    return self.linear(x)


def running_parameter(self, x):
    self.frozen.data.lerp_(x.detach().mean(0), 0.1)
    return self.linear(x - self.frozen)


def make_buffer(self, x):
    self.mean = x.detach().mean(0)
    return self.linear(x) - self.mean


def keep_tensor(self, x):
    self.last.append(x.detach())
    return self.linear(x)


def count(self, x):
    self.calls += 1
    return self.linear(x) / self.calls


def count_in_evaluation(self, x):
    if not self.training:
        self.calls.add_(1)
    return self.linear(x)


def watch_gradient(self):
    self.register_buffer("norm", torch.zeros(()))
    self.linear.register_full_backward_hook(lambda module, gi, go: self.norm.copy_(go[0].norm()) and None)


def count_gradients(self):
    self.calls = 0

    def hook(module, gi, go):
        self.calls += 1

    self.linear.register_full_backward_hook(hook)


def made_here():
    table = torch.eye(W)
    return Layer(run=lambda self, x: self.linear(x) @ table)


def chosen_here():
    order = torch.tensor([3, 2, 1, 0])
    return Layer(run=lambda self, x: self.linear(x)[:, order])


def sliced_here():
    count = torch.tensor(2)
    return Layer(run=lambda self, x: self.linear(x)[:, :count].repeat(1, 2) + count)


def put(self, x):
    found = torch.zeros_like(x)
    found[:, [0, 2]] = self.linear(x)[:, [True, False, True, False]]
    return found


def keep_buffer(self):
    self.register_buffer("mean", torch.zeros(W))
    self.again = [self.mean]


def keep_product(self):
    weight = self.linear.weight
    self.run = lambda self, x: x @ weight


def keep_product_on_host(self):
    weight = self.linear.weight
    self.run = lambda self, x: x @ weight if bool(x.sum() > 0) else -x @ weight


def generator(self):
    self.generator = torch.Generator().manual_seed(0)


def own_numbers(self, x):
    return self.linear(x) + torch.rand(len(x), 1, generator=self.generator)


def own_numpy(self, x):
    return self.linear(x) * float(self.rng.random())


def checkpointed(self, x):
    return checkpoint(self.norm, x, use_reentrant=False)


REFUSED = {
    "hook": (lambda: hooked("register_hook"), "'weight' has a hook"),
    "accumulation hook": (lambda: hooked("register_post_accumulate_grad_hook"), "'weight' has a hook"),
    "max_norm": (partial(nn.Embedding, 9, W, max_norm=0.5), "changes the parameter 'weight'"),
    "clamp": (layer(run=clamp), r"changes the parameter 'linear\.weight' \(clamp_\)"),
    "frozen parameter": (
        layer(
            lambda self: setattr(self, "frozen", nn.Parameter(torch.zeros(W), requires_grad=False)), running_parameter
        ),
        "changes the parameter 'frozen'",
    ),
    "buffer made": (layer(lambda self: self.register_buffer("mean", None), make_buffer), r"replaces the buffer 'mean'"),
    "attribute made": (layer(run=make_buffer), r"changes 'self\.mean'.*register_buffer\('mean'"),
    "list grows": (layer(lambda self: setattr(self, "last", []), keep_tensor), r"changes 'self\.last"),
    "counter": (layer(lambda self: setattr(self, "calls", 0), count), r"changes 'self\.calls'"),
    "counter of a backward": (layer(count_gradients), r"changes 'self\.calls'"),
    "evaluation": (
        layer(lambda self: self.register_buffer("calls", torch.zeros(())), count_in_evaluation),
        "changes the buffer 'calls' in evaluation",
    ),
    "backward hook": (layer(watch_gradient), "backward changes the buffer 'norm'"),
    "checkpoint": (
        layer(lambda self: setattr(self, "norm", nn.BatchNorm1d(W)), checkpointed),
        r"backward changes the buffer 'norm\.\w+'.*checkpoint",
    ),
    "random": (layer(run=lambda self, x: self.linear(x) * random.random()), "draws from Python's random"),
    "numpy": (layer(run=lambda self, x: self.linear(x) * float(np.random.rand())), "draws from numpy.random"),
    "own generator": (layer(generator, own_numbers), "Generator of its own"),
    "own numpy": (
        layer(lambda self: setattr(self, "rng", np.random.default_rng(0)), own_numpy),
        r"changes 'self\.rng'",
    ),
    "own python": (
        layer(lambda self: setattr(self, "rng", random.Random(0)), own_numpy),
        r"changes 'self\.rng'",
    ),
    "list": (layer(lambda self: setattr(self, "mats", [torch.eye(W)])), r"the tensor 'mats\[0\]' as a plain attribute"),
    "dict": (layer(lambda self: setattr(self, "mats", {"a": (torch.eye(W),)})), r"the tensor 'mats\['a'\]\[0\]'"),
    "closure": (made_here, r"uses a tensor \[4, 4\] that its factory made"),
    "own parameter in a list": (
        layer(lambda self: setattr(self, "again", [self.linear.weight]), lambda self, x: x @ self.again[0]),
        r"its forward uses 'linear\.weight' \(\w+\) from a second place, such as a list or a function",
    ),
    "own buffer in a list": (layer(keep_buffer, lambda self, x: self.linear(x) + self.again[0]), "uses 'mean'"),
    "own parameter in a function": (layer(keep_product), r"uses 'linear\.weight'"),
    "own parameter in a function, on the host": (layer(keep_product_on_host), r"uses 'linear\.weight'"),
    "closure of a slice": (sliced_here, r"uses a tensor \[\] that its factory made"),
    "closure of an index": (chosen_here, r"uses a tensor \[4\] that its factory made \(index\)"),
    "list of layers": (layer(lambda self: setattr(self, "parts", [nn.Linear(W, W)])), r"'parts\[0\]'.*ModuleList"),
    "lazy": (partial(nn.LazyLinear, W), r"'weight' gets its shape in the first forward.*nn\.Linear"),
    "sparse": (
        layer(lambda self: setattr(self, "table", nn.Embedding(3, W, sparse=True))),
        "table gives sparse gradients, which no slot holds; write sparse=False",
    ),
    "shared memory": (
        layer(lambda self: self.register_buffer("row", self.linear.weight.detach()[0])),
        "'row' and 'linear.weight' share memory",
    ),
    "more in training": (
        layer(run=lambda self, x: (self.linear(x), x) if self.training else self.linear(x)),
        r"gives \[batch, 4\] float32, \[batch, 4\] float32 in training and \[batch, 4\] float32 in evaluation",
    ),
    "old weight_norm": (
        layer(lambda self: torch.nn.utils.weight_norm(self.linear)),
        r"'linear\.weight' as a plain attribute.*parametrizations",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning", "ignore:Full backward hook")
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_train_wrongly_is_refused_with_its_place_and_what_to_write(name):
    factory, message = REFUSED[name]
    inputs = TensorSpec((), torch.int64) if name == "max_norm" else TensorSpec((W,))
    # behind a layer that can be trained: only then do backward hooks see gradients of inputs
    with pytest.raises(SpaceError, match=message) as caught:
        check(factory, inputs=inputs)
    assert (caught.value.position, caught.value.candidate) == ("p0", "c")
    assert "\n" not in str(caught.value)


def with_numpy():
    return Layer(lambda self: self.register_buffer("table", torch.from_numpy(np.eye(W, dtype=np.float32))))


HOST = {
    "momentum": partial(nn.BatchNorm1d, W, momentum=None),
    "nonzero": partial(Nonzero, W, W),
    "branch": layer(run=lambda self, x: self.linear(x) if bool(x.sum() > 0) else x),
    # a kernel of Triton's would take the null of a meta tensor for an address
    "address": layer(run=lambda self, x: self.linear(x) if x.data_ptr() else x),
}
BUILT_ON_HOST = {
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(W, W)),
    "linspace": lambda: nn.Sequential(nn.Linear(W, W), nn.Dropout(torch.linspace(0, 0.1, 3)[1].item())),
    "numpy": with_numpy,
    "old constructor": layer(lambda self: setattr(self, "w", nn.Parameter(torch.Tensor(W, W)))),
}


@pytest.mark.parametrize("name", HOST)
def test_what_meta_cannot_decide_runs_on_the_host(name):
    pool = pool_of(HOST[name], partial(nn.Linear, W, 2))
    assert describe(check_shapes(pool).outputs) == "[batch, 2] float32"
    assert [runs_on(pool, one) for one in pool.layers] == ["cpu", "meta"]


@pytest.mark.parametrize("name", BUILT_ON_HOST)
def test_what_cannot_be_built_on_meta_is_built_on_the_host(name):
    pool = pool_of(BUILT_ON_HOST[name])
    check_shapes(pool)
    module = pool.build_module(pool.layers[0], device="meta")
    assert all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
    assert not any(t.is_meta for t in pool.build_module(pool.layers[0]).state_dict().values())


FINE = {
    "lstm": lambda: First(nn.LSTM(W, W, batch_first=True)),
    "batch norm": partial(nn.BatchNorm1d, W),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(W, W)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(W, W)),
    "dropout": partial(nn.Dropout, 0.5),
    "constant": layer(run=lambda self, x: self.linear(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)),
    "list of numbers": layer(run=lambda self, x: self.linear(x)[:, [3, 2, 1, 0]]),
    "lists of numbers": layer(run=lambda self, x: self.linear(x)[:, [[3, 2], [1, 0]]].flatten(1)),
    "array of numbers": layer(run=lambda self, x: self.linear(x)[:, np.array([3, 2, 1, 0])]),
    "list of choices": layer(run=put),
    "checkpoint without state": layer(run=lambda self, x: checkpoint(self.linear, x, use_reentrant=False)),
    "own parameter held and not used": layer(lambda self: setattr(self, "again", [self.linear.weight])),
    "rnn": lambda: First(nn.RNN(W, W, batch_first=True)),
    "settings": layer(lambda self: setattr(self, "settings", {"heads": [1, 2], "name": "a"})),
}


@pytest.mark.parametrize("name", FINE)
def test_what_trains_right_passes(name):
    assert len(check(partial(nn.Linear, W, W), FINE[name]).gives) == 2


def test_a_backward_is_probed_though_the_caller_wants_no_gradients():
    with torch.no_grad(), pytest.raises(SpaceError, match="backward changes the buffer 'norm'"):
        check(layer(watch_gradient))


class First(nn.Module):
    """The first of what another layer gives."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x[:, None])[0]


def test_a_kind_is_probed_once_and_a_pool_is_checked_once():
    calls = []

    def factory():
        calls.append(1)
        return nn.Linear(W, W)

    pool = pool_of(*[factory] * 5)
    check_shapes(pool)
    check_shapes(pool)
    assert len(calls) == 1


def test_a_shared_part_with_weights_must_be_tied():
    table = nn.Linear(W, W)
    build = lambda: nn.Sequential(table, nn.Linear(W, W))  # noqa: E731
    with pytest.raises(SpaceError, match=r"position 'p1'.*'0\.weight' is part of 'p0/c' too.*tied="):
        check(build, build)
    check(build)
    tied = {"0.weight": "w", "0.bias": "b"}
    check_shapes(LayerPool([Position(n, [Candidate("c", build, tied=tied)]) for n in "pq"], inputs=TensorSpec((W,))))


def test_a_module_that_holds_itself_in_a_function_cannot_be_copied():
    module = nn.Linear(W, W)
    module.register_forward_hook(lambda m, inputs, output: output + module.bias)
    with pytest.raises(SpaceError, match="holds a part of the layer itself"):
        check(lambda: module)


ADDED = {
    "no tensor": (lambda y: 0.5, r"adds a loss that is no tensor but float; call add_loss\(value\) with a tensor"),
    "many": (lambda y: y.square(), r"adds a loss of shape \[2, 4\]; a loss is one number: add_loss\(value.mean\(\)\)"),
    "one of a shape": (lambda y: y.sum().view(1), r"adds a loss of shape \[1\]"),
    "whole": (lambda y: (y > 0).sum(), r"adds a loss of int64; .*add_loss\(value.float\(\).mean\(\)\)"),
    "complex": (lambda y: torch.complex(y, y).sum(), "adds a loss of complex64"),
}


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("on_host", [False, True])
def test_an_auxiliary_loss_that_is_none_is_refused_with_what_to_write(name, on_host):
    loss_of, message = ADDED[name]

    def run(self, x):
        y = self.linear(x)
        if on_host:
            float(y.detach().sum())  # which meta cannot
        add_loss(loss_of(y))
        return y

    with pytest.raises(SpaceError, match=message) as caught:
        check(layer(), layer(run=run))
    assert (caught.value.position, caught.value.candidate) == ("p1", "c")
    assert str(caught.value).count("p1") == 1


def test_an_auxiliary_loss_is_probed_too():
    def changes_a_buffer(self, x):
        y = self.linear(x)
        loss = y.square().mean()
        loss.register_hook(lambda gradient: self.count.add_(1))
        add_loss(loss)
        return x

    def fine(self, x):
        add_loss(self.linear(x).square().mean())
        return x

    check(layer(run=fine))
    with pytest.raises(SpaceError, match="its backward changes the buffer 'count'"):
        check(layer(lambda module: module.register_buffer("count", torch.zeros(())), changes_a_buffer))
