"""Pairs beside frozen matrices: what is trained, what is kept of it, and what it becomes when it is merged."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

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
    skip,
)
from l2l_nas.compress.low_rank import merge, paired_server, with_pairs
from l2l_nas.errors import SettingError

WIDTH, RANK = 6, 2


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


PRETRAINED = nn.Linear(WIDTH, 3)


def pool_of():
    blocks = [Candidate("whole", partial(Block, 8)), Candidate("half", partial(Block, 4)), skip()]
    return LayerPool(
        [*(Position(f"block_{i}", blocks) for i in range(3)), Position("head", Candidate("linear", PRETRAINED))],
        inputs=TensorSpec((WIDTH,)),
    )


PATH = ("whole", "half", "skip", "linear")
KEYS = ("block_0/whole", "block_1/half", "head/linear")


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(10, WIDTH, generator=generator)
    return (x,), x[:, :3].argmax(dim=1)


def train(executor, steps=5):
    for step in range(steps):
        executor.train_step(PATH, *batch(step), objective=Classification(), micro_batch=4, lr=0.05, step=step)


def outputs(executor):
    return executor.predict(PATH, batch(9)[0], micro_batch=10)[0]


def servers():
    base = ParamServer(pool_of(), optimizer=AdamW(), seed=3)
    train(Relay(base, device="cpu"), 2)  # weights that are not the first ones, and statistics
    base.drain()
    return base, paired_server(base, with_pairs(base.pool, RANK), KEYS)


def test_pairs_alone_have_moments_and_change():
    _, paired = servers()
    before = {key: {n: t.clone() for n, t in paired.state(key).parameters().items()} for key in KEYS}
    relay = Relay(paired, device="cpu")
    train(relay)
    relay.drain()
    for key in KEYS:
        changed = {n for n, t in paired.state(key).parameters().items() if not t.equal(before[key][n])}
        pairs = {n for n in before[key] if n.endswith(("0.up", "0.down"))}
        assert changed == pairs
        assert pairs
        moments = sum(moment.num_bytes for moment in paired.held_layout(key).moments)
        count = sum(before[key][name].numel() for name in pairs)
        assert 8 * count <= moments < 8 * count + 256 * 2 * len(pairs)


def test_pairs_begin_as_the_network_and_merged_weights_give_what_they_gave():
    base, paired = servers()
    (x,), _ = batch(9)
    relay = Relay(paired, device="cpu")
    assert relay.predict(PATH, (x,), micro_batch=10)[0].equal(
        Relay(base, device="cpu").predict(PATH, (x,), micro_batch=10)[0]
    )
    train(relay)
    given = relay.predict(PATH, (x,), micro_batch=10)[0]
    before = base.state("block_0/whole").weights.clone()
    merged = merge(paired, base.fork(KEYS), KEYS)
    assert set(merged.pool.states) == set(base.pool.states)
    assert outputs(Relay(merged, device="cpu")).equal(given)
    assert base.state("block_0/whole").weights.equal(before)
    assert not merged.state("block_0/whole").weights.equal(before)
    assert not hasattr(PRETRAINED, "parametrizations")


@pytest.mark.parametrize("update", ["eager", "exact"])
def test_the_relay_trains_pairs_as_plain_training_does(update):
    _, paired = servers()
    _, again = servers()
    relay = Relay(paired, device="cpu", update=update, slots=2, keep=1)
    train(relay)
    relay.drain()
    reference = ReferenceTrainer(again, device="cpu")
    train(reference)
    reference.write_back()
    for key in KEYS:
        for name, tensor in paired.state(key).parameters().items():
            torch.testing.assert_close(tensor, again.state(key).parameters()[name], rtol=0, atol=1e-6)


def test_a_step_on_pairs_is_the_one_by_hand():
    _, paired = servers()
    state = paired.state("head/linear").parameters()
    weight, bias = state["parametrizations.weight.original"].clone(), state["bias"].clone()
    down = state["parametrizations.weight.0.down"].clone()
    x, targets = torch.randn(5, WIDTH), torch.tensor([0, 1, 2, 1, 0])
    alone = ("skip", "skip", "skip", "linear")
    relay = Relay(paired, device="cpu")
    relay.train_step(alone, (x,), targets, objective=Classification(), micro_batch=5, lr=0.01, step=0)
    relay.drain()
    up = torch.zeros(3, RANK, requires_grad=True)
    functional.cross_entropy(x @ (weight + up @ down).T + bias, targets).backward()
    # AdamW's first step goes by the sign
    found = paired.state("head/linear").parameters()["parametrizations.weight.0.up"]
    torch.testing.assert_close(found, -0.01 * up.grad.sign(), rtol=1e-3, atol=1e-5)
    down = paired.state("head/linear").parameters()["parametrizations.weight.0.down"]
    given = relay.predict(alone, (x,), micro_batch=5)[0]
    torch.testing.assert_close(given, x @ (weight + found @ down).T + bias)


def test_shared_weights_have_no_pairs_and_pools_without_linear_layers_are_refused():
    class Head(nn.Linear):
        pass

    tied = LayerPool(
        [
            Position("first", Candidate("one", partial(nn.Linear, WIDTH, WIDTH, bias=False), tied={"weight": "w"})),
            Position("last", Candidate("one", partial(Head, WIDTH, WIDTH, bias=False), tied={"weight": "w"})),
        ],
        inputs=TensorSpec((WIDTH,)),
    )
    with pytest.raises(SettingError, match=r"strategy\.lora: no layer has an nn\.Linear of its own"):
        with_pairs(tied, RANK)
    mixed = with_pairs(LayerPool([*tied.positions, *pool_of().positions[:1]], inputs=TensorSpec((WIDTH,))), RANK)
    names = [name for name, _ in mixed.build_module(mixed.layers[0]).named_parameters()]
    assert names == ["weight"]


@pytest.mark.parametrize("normed", [weight_norm, spectral_norm])
def test_a_weight_that_is_computed_has_no_pair_and_stays(normed):
    layers = [Candidate("l", lambda: nn.Sequential(normed(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, WIDTH)))]
    pool = LayerPool([Position("block", layers)], inputs=TensorSpec((WIDTH,)))
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    server.prepare(["block/l"])
    paired = paired_server(server, with_pairs(pool, RANK), ["block/l"])
    assert sum(name.endswith(".up") for name in paired.state("block/l").parameters()) == 1
    merged = merge(paired, server.fork(["block/l"]), ["block/l"]).state("block/l").parameters()
    assert all(torch.equal(merged[name], value) for name, value in server.state("block/l").parameters().items())
