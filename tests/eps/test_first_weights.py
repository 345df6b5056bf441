"""First weights that exist somewhere are read when a layer is first needed, and never before."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, FirstWeights, LayerPool, ParamServer, Position, TensorSpec, plain_module, skip
from l2l_nas.eps.identity import difference, fingerprint, space_of
from l2l_nas.errors import SettingError, SpaceError, UserCodeError
from l2l_nas.relay.relay import Relay
from l2l_nas.space.shapes import check_shapes


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.linear(x))


@pytest.fixture
def source():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), Normed(), Normed(), nn.Linear(4, 2)).eval()


def pool_of(source, reads, *, fingerprint="a", shape=None):
    def weights(place):
        def read(name):
            reads.append((place, name))
            tensor = dict(source[place].named_parameters())[name]
            return tensor.half() if shape is None else tensor.new_zeros(shape)

        return FirstWeights(read, fingerprint)

    factories = [partial(nn.Linear, 3, 4), Normed, Normed, partial(nn.Linear, 4, 2)]
    return LayerPool(
        [
            Position(f"p{place}", [Candidate("original", factory, weights=weights(place)), *([skip()] * (place == 1))])
            for place, factory in enumerate(factories)
        ],
        inputs=TensorSpec((3,)),
    )


def test_a_pool_is_checked_without_reading_and_each_layer_is_read_at_its_first_visit(source):
    reads: list = []
    pool = pool_of(source, reads)
    check_shapes(pool)
    fingerprint(pool), space_of(pool)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    assert reads == []
    x = torch.randn(5, 3)
    relay.predict(pool.architecture(["original", "skip", "original", "original"]), (x,), micro_batch=5)
    assert {place for place, _ in reads} == {0, 2, 3}
    everything = pool.architecture(["original"] * 4)
    got = relay.predict(everything, (x,), micro_batch=5)
    assert len(reads) == len(set(reads)) == 2 + 4 + 4 + 2
    for parameter in source.parameters():
        parameter.data = parameter.data.half().float()
    with torch.no_grad():
        assert torch.equal(got[0], source(x))
        assert torch.equal(plain_module(pool, everything)(x), source(x))


def test_first_weights_of_another_shape_are_refused_by_position(source):
    pool = pool_of(source, [], shape=(4, 5))
    with pytest.raises(SpaceError, match=r"first weights 'weight' are \[4, 5\] float32, expected \[4, 3\]") as raised:
        ParamServer(pool, optimizer=AdamW(), seed=0).prepare(["p0/original"])
    assert (raised.value.position, raised.value.candidate) == ("p0", "original")


def test_a_pool_of_other_weights_is_another_pool(source):
    one, same, other = (pool_of(source, [], fingerprint=text) for text in "aab")
    assert difference(space_of(one), space_of(same)) == ""
    assert "another layer by the name p0/original" in difference(space_of(one), space_of(other))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def visited(candidate):
    server = ParamServer(LayerPool([Position("p", candidate)], inputs=TensorSpec((2,))), optimizer=AdamW(), seed=0)
    return server.state("p/a")


def test_first_weights_that_are_not_finite_are_refused_whether_read_or_of_a_module():
    bad = nn.Linear(2, 2)
    with torch.no_grad():
        bad.weight[0, 1] = float("nan")
    read = FirstWeights(lambda name: dict(bad.named_parameters())[name], "x")
    for candidate in (Candidate("a", bad), Candidate("a", partial(nn.Linear, 2, 2), weights=read)):
        with pytest.raises(SettingError, match=r"'weight' of 'p/a' holds NaN or inf"):
            visited(candidate)
    with pytest.raises(SettingError, match="holds NaN or inf"):
        plain_module(LayerPool([Position("p", candidate)], inputs=TensorSpec((2,))), ["a"])


def test_a_frozen_parameter_may_hold_infinities_such_as_those_of_a_mask():
    masked = nn.Linear(2, 2)
    masked.mask = nn.Parameter(torch.full((2,), float("-inf")), requires_grad=False)
    assert bool(visited(Candidate("a", masked)).parameters()["mask"].isinf().all())


def test_what_reading_first_weights_raises_names_them():
    def read(name):
        raise KeyError(name)

    with pytest.raises(UserCodeError, match=r"reading the first weights 'weight' of 'p/a' raised KeyError"):
        visited(Candidate("a", partial(nn.Linear, 2, 2), weights=FirstWeights(read, "x")))
    with pytest.raises(SettingError, match=r"takes a tensor, got None"):
        visited(Candidate("a", partial(nn.Linear, 2, 2), weights=FirstWeights(lambda name: None, "x")))
