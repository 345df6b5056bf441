"""Candidates that are regions of a larger one's weights."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas import elastic as family_of
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.rules import Adafactor, Lion, Muon
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.training.export import build_network, plain_module

WIDTHS = (16, 8, 4)


def mlp(hidden):
    return nn.Sequential(nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 6))


def pool_of(candidates):
    return LayerPool(
        [Position("block", candidates), Position("head", Candidate("linear", partial(nn.Linear, 6, 3)))],
        inputs=TensorSpec((6,)),
    )


def widths(names=WIDTHS):
    return pool_of(family_of("block", {f"w{hidden}": partial(mlp, hidden) for hidden in names}))


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(12, 6, generator=generator), torch.randint(0, 3, (12,), generator=generator)


def train(server, names):
    relay = Relay(server, device="cpu", seed=0)
    for step, name in enumerate(names):
        x, y = batch(step)
        path = server.pool.architecture([name, "linear"])
        relay.train_step(path, (x,), y, objective=Classification(), micro_batch=12, step=step, lr=0.01)
    relay.close()


@pytest.mark.parametrize("name", ["w16", "w8", "w4"])
def test_one_width_alone_trains_as_a_plain_network_of_that_width(name):
    # a bias before BatchNorm has a gradient of rounding errors alone, which a small eps would make steps of
    server = ParamServer(widths(), optimizer=AdamW(eps=1e-3), seed=3)
    path = server.pool.architecture([name, "linear"])
    network = build_network(server, path).train()
    assert [type(part) for part in network.block] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    optimizer = torch.optim.AdamW(network.parameters(), fused=True, lr=0.01, eps=1e-3)
    for step in range(6):
        x, y = batch(step)
        loss = nn.functional.cross_entropy(network(x), y, reduction="sum") / 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    train(server, [name] * 6)
    trained = build_network(server, path).state_dict()
    assert trained.keys() == network.state_dict().keys()
    # torch's AdamW takes eight numbers at a time and the rest one by one, which round differently: cells end elsewhere
    same = torch.equal if name == "w4" else partial(torch.allclose, rtol=0, atol=1e-6)
    assert all(same(tensor, trained[key]) for key, tensor in network.state_dict().items())


def test_what_a_narrow_step_does_not_use_is_not_touched_and_counts_no_step():
    server = ParamServer(widths(), optimizer=AdamW(weight_decay=0.1), seed=0)
    wide = server.pool.architecture(["w16", "linear"])
    before = build_network(server, wide).block[0].weight.detach()
    train(server, ["w4", "w8", "w4"])
    after = build_network(server, wide).block[0].weight.detach()
    assert torch.equal(after[8:], before[8:])
    assert not torch.equal(after[4:8], before[4:8])
    steps = {key: server.state(key).tensors()["steps"].item() for key in server.visited if "0.weight" in key}
    assert steps == {f"tied/block.0.weight.{cell}-0": count for cell, count in enumerate((3.0, 1.0, 0.0))}


def test_a_narrow_network_is_the_first_rows_and_columns_of_the_wide_one():
    server = ParamServer(widths(), optimizer=AdamW(), seed=0)
    wide, narrow = (build_network(server, server.pool.architecture([name, "linear"])).block for name in ("w16", "w4"))
    assert torch.equal(narrow[0].weight, wide[0].weight[:4])
    assert torch.equal(narrow[3].weight, wide[3].weight[:, :4])
    assert torch.equal(narrow[3].bias, wide[3].bias)


def test_weights_are_stored_once_and_counted_by_region():
    pool = widths()
    apart = pool_of([Candidate(f"w{hidden}", partial(mlp, hidden)) for hidden in WIDTHS])
    for name in ("w16", "w8", "w4"):
        path = pool.architecture([name, "linear"])
        assert num_parameters(pool, path) == num_parameters(apart, path)
        assert plain_module(pool, path).state_dict().keys() == plain_module(apart, path).state_dict().keys()
    stored = {}
    for which, one in (("elastic", pool), ("apart", apart)):
        server = ParamServer(one, optimizer=AdamW(), seed=0)
        train(server, ["w16", "w8", "w4"])
        stored[which] = sum(server.layout(key).num_parameters for key in server.visited)
    assert stored == {
        which: sum(p.numel() for h in hidden for p in mlp(h).parameters()) + 21
        for which, hidden in (("elastic", [16]), ("apart", WIDTHS))
    }


class Attention(nn.Module):
    """Heads of 2 in one packed matrix, as many as there are."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads
        self.packed, self.out = nn.Linear(6, 3 * 2 * heads), nn.Linear(2 * heads, 6)

    def forward(self, x):
        q, k, v = self.packed(x).unflatten(-1, (3, self.heads, 2)).unbind(-3)
        return x + self.out((torch.softmax(q @ k.mT, -1) @ v).flatten(-2))


def heads(name, shape, whole):
    """The first heads of queries, keys and values."""
    rest = [[slice(size)] for size in shape[1:]]
    if not name.startswith("packed"):
        return [[slice(shape[0])], *rest]
    part, full = shape[0] // 3, whole[0] // 3
    return [[slice(start, start + part) for start in range(0, whole[0], full)], *rest]


def test_a_rule_of_one_s_own_says_where_heads_lie():
    pool = pool_of(family_of("heads", {f"h{count}": partial(Attention, count) for count in (4, 2)}, regions=heads))
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    many, few = (build_network(server, pool.architecture([name, "linear"])).block for name in ("h4", "h2"))
    rows = [*range(4), *range(8, 12), *range(16, 20)]
    assert torch.equal(few.packed.weight, many.packed.weight[rows])
    assert torch.equal(few.packed.bias, many.packed.bias[rows])
    train(server, ["h2", "h4", "h2"])


def test_a_smaller_kernel_is_the_middle_of_a_larger_one():
    kernels = {f"k{size}": partial(nn.Conv2d, 2, 2, size, padding=size // 2) for size in (5, 3, 1)}
    pool = LayerPool(
        [Position("conv", family_of("conv", kernels)), Position("head", Candidate("flat", nn.Flatten))],
        inputs=TensorSpec((2, 5, 5)),
    )
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    large, small = (build_network(server, pool.architecture([name, "flat"])).conv for name in ("k5", "k3"))
    assert torch.equal(small.weight, large.weight[:, :, 1:4, 1:4])


@pytest.mark.parametrize(
    ("family", "regions", "says"),
    [
        (
            {"w4": partial(mlp, 4), "w8": partial(mlp, 8)},
            None,
            r"w8.*'0.weight' \[8, 6\] is no region",
        ),
        (
            {"w8": partial(mlp, 8), "flat": partial(nn.Linear, 6, 6)},
            None,
            r"flat.*'weight' that 'w8' lacks",
        ),
        (
            {"w8": partial(mlp, 8), "w4": partial(mlp, 4)},
            lambda name, shape, whole: [[slice(1, size)] for size in shape],
            r"w8.*regions= gave .* expected slices in order that make up its shape",
        ),
        (
            {"w8": partial(mlp, 8), "w4": partial(mlp, 4)},
            lambda name, shape, whole: [slice(size) for size in shape],
            "expected a list of slices for each of its 2 dimensions",
        ),
        ({}, None, "family names no candidates"),
    ],
)
def test_what_is_no_region_is_refused(family, regions, says):
    with pytest.raises(SpaceError, match=says):
        family_of("block", family, **({"regions": regions} if regions else {}))


@pytest.mark.parametrize("rule", [Adafactor(), LowPrecision(Adafactor(), "bf16"), Muon()])
def test_rules_for_whole_matrices_are_refused(rule):
    with pytest.raises(SettingError, match="candidates of 'block' are regions of one; take adamw, sgd or lion"):
        ParamServer(widths(), optimizer=rule, seed=0)


@pytest.mark.parametrize("rule", [SGD(), Lion(), LowPrecision(AdamW(), "bf16")])
def test_elementwise_rules_train(rule):
    server = ParamServer(widths(), optimizer=rule, seed=0)
    before = build_network(server, server.pool.architecture(["w16", "linear"])).block[0].weight.detach()
    train(server, ["w8", "w4"])
    after = build_network(server, server.pool.architecture(["w16", "linear"])).block[0].weight.detach()
    assert [torch.equal(before[a:b], after[a:b]) for a, b in ((0, 4), (4, 8), (8, 16))] == [False, False, True]
