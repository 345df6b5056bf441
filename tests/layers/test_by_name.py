"""Layers that take keyword arguments, give dicts and dataclasses, and keep tensors in their own dtype."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn

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
from l2l_nas.errors import SpaceError
from l2l_nas.layers import ByName
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network


@dataclass
class Output:
    hidden: Tensor
    extra: Tensor | None = None


class Keyword(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, *, hidden, mask, scale=1.0, kind="tensor"):
        found = torch.tanh(self.linear(hidden)) * mask * scale
        return {"tensor": found, "dict": {"hidden": found, "none": None}, "class": Output(found)}[kind]


def pool_of(block):
    return LayerPool(
        [
            Position("stem", Candidate("linear", partial(nn.Linear, 6, 6)), reads="x"),
            Position("block", Candidate("block", block), reads=("stem", "mask")),
            Position("head", Candidate("linear", partial(nn.Linear, 6, 3))),
        ],
        inputs={"x": TensorSpec((6,)), "mask": TensorSpec((6,))},
    )


def losses(pool, kind, steps=5):
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    runner = kind(server, device="cpu", seed=0)
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(steps):
        x, mask = torch.randn(8, 6, generator=generator), torch.rand(8, 6, generator=generator)
        y = torch.randint(0, 3, (8,), generator=generator)
        path = pool.architecture(["linear", "block", "linear"])
        result = runner.train_step(path, (x, mask), y, objective=Classification(), micro_batch=4, step=step, lr=0.01)
        found.append(result.loss)
    return found, server


def keyword(names, output=None, **constants):
    return ByName(Keyword(), names, output, **constants)


BLOCKS = {
    "tensor": partial(keyword, ("hidden", "mask"), scale=0.5),
    "dict": partial(keyword, ("hidden", "mask"), scale=0.5, kind="dict"),
    "dict, one of it": partial(keyword, ("hidden", "mask"), "hidden", scale=0.5, kind="dict"),
    "dataclass": partial(keyword, ("hidden", "mask"), scale=0.5, kind="class"),
    "dataclass, one of it": partial(keyword, ("hidden", "mask"), "hidden", scale=0.5, kind="class"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_named_inputs_and_outputs_train_as_plain_pytorch_does(name):
    pool = pool_of(BLOCKS[name])
    found, server = losses(pool, Relay)
    assert found == losses(pool, ReferenceTrainer)[0]
    assert found == losses(pool_of(BLOCKS["tensor"]), Relay)[0]
    network = build_network(server, pool.architecture(["linear", "block", "linear"]))
    x, mask = torch.randn(4, 6), torch.rand(4, 6)
    stem, block, head = network
    assert torch.equal(network(x, mask), head(block.module(hidden=stem(x), mask=mask, scale=0.5)))


def test_what_holds_no_tensors_is_refused():
    class Text(nn.Module):
        def forward(self, x, mask):
            return {"hidden": x, "name": "x"}

    with pytest.raises(SpaceError, match="a tuple, dict or dataclass of tensors, got dict of str"):
        check_shapes(pool_of(Text))


class Table(nn.Module):
    """A table that bf16 would round."""

    round_dtype: tuple[str, ...] = ()

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("table", torch.linspace(1, 1.003, 6))

    def forward(self, x, mask):
        return self.linear(x) * (self.table * 1000).to(x.dtype)


class Rounded(Table):
    round_dtype = ("table",)


class Needs(Table):
    def forward(self, x, mask):
        return self.linear(x * self.table)


class Needed(Needs):
    round_dtype = ("table",)


def trained_in_bf16(block):
    pool = pool_of(block)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", seed=0, precision="bf16")
    x, mask = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.ones(8, 6)
    path, targets = pool.architecture(["linear", "block", "linear"]), torch.zeros(8, dtype=torch.int64)
    with closing(relay):
        for step in range(2):
            relay.train_step(path, (x, mask), targets, objective=Classification(), micro_batch=4, step=step, lr=0.01)
        return {one.module.table.dtype for one in relay.bank.templates if isinstance(one.module, Table)}


def test_a_buffer_stays_in_the_dtype_that_it_was_made_in_unless_its_module_asks_otherwise():
    assert trained_in_bf16(Table) == {torch.float32}
    assert trained_in_bf16(Rounded) == {torch.bfloat16}


def test_a_forward_that_mixes_a_float32_buffer_with_low_weights_is_told_what_to_say():
    with pytest.raises(SpaceError, match=r"round_dtype = .* of table"):
        trained_in_bf16(Needs)
    assert trained_in_bf16(Needed) == {torch.bfloat16}


def test_a_name_that_is_no_tensor_is_refused():
    class Wrong(Table):
        round_dtype = ("tabel",)

    with pytest.raises(SpaceError, match="round_dtype names 'tabel', which is neither parameter nor buffer"):
        Relay(ParamServer(pool_of(Wrong), optimizer=AdamW(), seed=0), device="cpu", seed=0)
