"""What `convert` says of models that it cannot take: the cause, in one line, and what helps."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import convert, plain_module
from l2l_nas.errors import SpaceError
from tests.space.convert.test_forwards import Chain, X


def chain():
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))


def test_a_compiled_model_is_the_model_inside():
    model = chain()
    pool = convert(torch.compile(model, backend="eager"), X, blocks="1")
    assert [position.name for position in pool.positions] == ["stem", "1", "head"]
    restored = pool.restore(plain_module(pool, pool.original))
    assert type(restored) is nn.Sequential
    assert torch.equal(restored(X), model(X))


class Dropping(Chain):
    """Drops blocks at random in training."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            if not self.training or self.draw() > 0.5:
                h = block(h)
        return self.head(h)


def by_torch():
    return torch.rand(())


def by_item():
    return torch.rand(1).item()


def by_python():
    return random.random()


def by_numpy():
    return np.random.rand()


@pytest.mark.parametrize("draw", [by_torch, by_item, by_python, by_numpy])
def test_blocks_that_are_dropped_at_random_are_refused_as_such_whatever_was_drawn(draw):
    for seed in range(4):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        with pytest.raises(
            SpaceError,
            match=r"by a random number|in training the model calls other|the model's forward draws from .*random",
        ):
            convert(Dropping(draw), X, blocks="blocks")


class Padded(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, **kwargs), nn.Linear(4, 3)

    def forward(self, x, padding):
        return self.head(self.encoder(x, src_key_padding_mask=padding))


def test_torchs_encoder_with_padding_is_refused_with_the_setting_that_helps():
    example = {"x": torch.randn(3, 5, 4), "padding": torch.arange(5) > torch.tensor([[4], [2], [3]])}
    with pytest.raises(SpaceError, match=r"'encoder' packs padded samples .* enable_nested_tensor=False\)$"):
        convert(Padded(), example, blocks="encoder.layers")
    assert len(convert(Padded(enable_nested_tensor=False), example, blocks="encoder.layers")) == 4


class ByMask(Chain):
    def forward(self, x, mask):
        return super().forward(x if bool(mask.all()) else -x)


def test_what_a_decision_depends_on_is_named():
    with pytest.raises(SpaceError, match=r"reads a number off a tensor .* depends on 'mask'"):
        convert(ByMask(), {"x": X, "mask": X > 0}, blocks="blocks")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda model: model.to("meta"), r"'stem.weight' is on meta and has no values; load the weights first"),
        (lambda model: model.head.bias.data.fill_(float("nan")), "'head.bias' has NaN or inf among its numbers"),
        (lambda model: model.blocks[1].weight.data.fill_(float("inf")), r"'blocks.1.weight' has NaN or inf"),
    ],
)
def test_weights_that_are_none_are_refused_by_the_parameters_name(spoil, says):
    model = Chain()
    spoil(model)
    with pytest.raises(SpaceError, match=says):
        convert(model, X, blocks="blocks")
