from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, TensorSpec
from l2l_nas.cost.flops import Flops
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network
from search_spaces.digits_conv import build as digits_conv
from search_spaces.digits_shared import build as digits_shared
from search_spaces.encoder_decoder import EncoderBlock
from tests.toys import language_pool


class Recurrent(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(3, 5, batch_first=True)

    def forward(self, x):
        return super().forward(x)[0]


def of_one(factory, *shape: int) -> float:
    pool = LayerPool([Position("a", [Candidate("c", factory)])], inputs=TensorSpec(shape))
    return Flops(pool, check_shapes(pool)).of_layer(pool.layers[0])


@pytest.mark.parametrize(
    ("factory", "shape", "expected"),
    [
        (partial(nn.Linear, 7, 5), (7,), 2 * 7 * 5),
        (partial(nn.Linear, 7, 5), (3, 7), 3 * 2 * 7 * 5),
        (partial(nn.Conv2d, 3, 4, 3, padding=1), (3, 8, 8), 8 * 8 * 2 * 3 * 3 * 3 * 4),
        (partial(nn.Conv2d, 4, 4, 3, stride=2, groups=4), (4, 9, 9), 4 * 4 * 4 * 2 * 3 * 3),
        (nn.ReLU, (9,), 0),
        (partial(nn.BatchNorm1d, 9), (9,), 0),
        (Recurrent, (4, 3), 4 * 2 * 4 * 5 * (3 + 5)),  # which the CPU's own kernel would hide
        (  # four projections of the width, two products over the sequence, up and down
            partial(EncoderBlock, 16, heads=2, feedforward=32),
            (8, 16),
            8 * 2 * 16 * 16 * 4 + 2 * 2 * 8 * 8 * 16 + 2 * 8 * 2 * 16 * 32,
        ),
    ],
)
def test_a_layer_s_operations_are_those_of_its_formula(factory, shape, expected):
    assert of_one(factory, *shape) == expected


def test_an_architecture_costs_what_its_plain_network_really_does():
    pool = digits_conv()
    flops = Flops(pool, check_shapes(pool))
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    for middle in (["conv3", "skip", "sep5", "mlp"], ["conv5", "sep3", "skip", "skip"]):
        architecture = pool.architecture(["conv", *middle, "conv", *reversed(middle), "linear"])
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            build_network(server, architecture)(torch.rand(1, 1, 8, 8))
        assert flops(architecture) == counter.get_total_flops() > 0


def test_a_layer_used_twice_counts_twice_and_a_skip_nothing():
    pool = digits_shared(depth=3)
    flops = Flops(pool, check_shapes(pool))

    def of(*middle):
        return flops(pool.architecture(["stem", *middle, "head"]))

    once = of("conv5", "skip", "skip") - of("skip", "skip", "skip")
    assert once > 0
    assert of("conv5", "conv5", "skip") - of("skip", "skip", "skip") == 2 * once


def test_token_numbers_and_side_inputs_are_no_hindrance():
    pool = language_pool(width=8, vocabulary=11)
    flops = Flops(pool, check_shapes(pool))
    assert flops(pool.architecture(["embed", "skip", "skip", "skip", "head"])) == 4 * 2 * 8 * 11


def test_each_kind_of_layer_is_run_once():
    built = []

    def factory():
        built.append(True)
        return nn.Linear(4, 4)

    pool = LayerPool([Position(f"p{i}", [Candidate("c", factory)]) for i in range(5)], inputs=TensorSpec((4,)))
    flops = Flops(pool, check_shapes(pool))
    assert flops(pool.architecture(["c"] * 5)) == flops(pool.architecture(["c"] * 5)) == 5 * 32
    assert len(built) == 2  # for its shapes, and for this
