"""One rank's part of a pool, and what it sums with others that are not there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.ranks import RankLink, summed_bytes
from l2l_nas.cost.split_layers import PaperSplit
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps.agreement import MESSAGE_BYTES
from l2l_nas.eps.exchange import Alone, Mesh, PaperRanks
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.errors import SettingError
from l2l_nas.space.split import Column, Row, Vocabulary

WIDTH, LENGTH, DEPTH = 32, 6, 3


class Feedforward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def pool(is_divided=True) -> LayerPool:
    split = {"up": Column(), "down": Row()} if is_divided else None
    layer = Candidate("feedforward", Feedforward, split=split)
    return LayerPool([Position(f"p{n}", [layer]) for n in range(DEPTH)], inputs=TensorSpec((LENGTH, WIDTH)))


def test_a_layer_sums_once_forward_and_once_backward():
    divided = PaperSplit(pool(), 2)
    layer = divided.pool.parts.layers[1]
    one = 5 * LENGTH * WIDTH
    inputs = (TensorSpec((LENGTH, WIDTH)),)
    assert divided.sums(layer, inputs, 5, dtype=torch.float32) == ((4 * one,), (4 * one,))
    half = (TensorSpec((LENGTH, WIDTH), torch.bfloat16),)
    assert divided.sums(layer, half, 5, dtype=torch.bfloat16) == ((2 * one,), (2 * one,))
    # the norm's weights learn even where the input does not, so that their gradients are summed
    assert divided.sums(layer, inputs, 5, dtype=torch.float32, needs_gradient=False) == ((4 * one,), (4 * one,))


def relay_of(server: ParamServer) -> Relay:
    return Relay(server, device=PaperDevice(1 << 34), slots=2, resident=None)


@pytest.mark.parametrize("sizes", [(4, 4), (4, 1)], ids=["equal", "a rest"])
def test_a_rank_holds_and_computes_its_part_and_exchanges_what_a_ring_sums(sizes):
    whole = pool()
    path = whole.architecture(["feedforward"] * DEPTH)
    divided = PaperSplit(whole, 2)
    mesh = Mesh(PaperRanks(2), Alone(), PaperRanks(2))
    server = ShardedServer(divided.pool, mesh, optimizer=AdamW(), seed=0)
    alone = StepTime(relay_of(ParamServer(whole, optimizer=AdamW(), seed=0)), sizes, PROFILES["h100"]).predict(path)
    one = StepTime(relay_of(server), sizes, PROFILES["h100"], divided=divided).predict(path)
    assert alone.exchanged_bytes == alone.simulation.exposed_s == alone.simulation.busy_s["net"] == 0
    assert 0.5 * alone.host_bytes < one.host_bytes < 0.65 * alone.host_bytes  # norms are whole
    # forward, backward, and the forwards that are run again: of all layers but the last one
    sums = [summed_bytes(4 * size * LENGTH * WIDTH, 2) for size in sizes] * (3 * DEPTH - 1)
    notes = [16] * DEPTH  # of each gradient, what it adds to the norm, and whose it is if it is not finite
    agreed = [MESSAGE_BYTES]
    assert one.exchanged_bytes == sum(sums + notes + agreed)
    link = RankLink.of(PROFILES["h100"], 2)
    assert one.simulation.busy_s["net"] == pytest.approx(link.seconds(sums + notes + agreed))
    assert one.simulation.exposed_s >= link.seconds(sums)  # within layers nothing hides it


def test_what_says_nothing_is_whole_and_named():
    divided = PaperSplit(pool(is_divided=False), 2)
    assert divided.left_whole == tuple(f"p{n}/feedforward" for n in range(DEPTH))


def test_sizes_that_do_not_divide_are_one_line():
    with pytest.raises(SettingError) as raised:
        PaperSplit(pool(), 3)
    assert str(raised.value).startswith(
        "parallel.tensor=3: position 'p0': candidate 'feedforward': 'up.weight' has 128 "
    )
    assert "\n" not in str(raised.value)


class Scores(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, 10 * WIDTH, bias=False)


@pytest.mark.parametrize(("gathers", "sums"), [(True, (4 * 5 * LENGTH * 10 * WIDTH,)), (False, ())])
def test_scores_are_summed_where_they_are_put_together(gathers, sums):
    head = Candidate("head", Scores, split={"": Vocabulary()})
    whole = LayerPool([Position("head", [head])], inputs=TensorSpec((LENGTH, WIDTH)))
    divided = PaperSplit(whole, 2, gather_logits=gathers)
    [layer] = divided.pool.parts.layers
    found = divided.sums(layer, (TensorSpec((LENGTH, WIDTH)),), 5, dtype=torch.float32)
    assert found.forward == sums
    assert found.backward == (4 * 5 * LENGTH * WIDTH,)
