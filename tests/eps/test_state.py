"""First weights: from the seed and the key, whatever else happens."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, TensorSpec
from l2l_nas.eps.state import seed_of
from tests.toys import dense_pool, language_pool


def weights(server, key):
    return server.state(key).weights.clone()


def test_first_weights_do_not_depend_on_the_order_of_visits():
    pool = language_pool()
    one, other = (ParamServer(pool, optimizer=AdamW(), seed=3) for _ in range(2))
    first = {key: weights(one, key) for key in pool.states}
    torch.manual_seed(1)
    for key in reversed(pool.states):
        assert torch.equal(weights(other, key), first[key])


def test_first_weights_do_not_depend_on_what_else_is_in_the_pool():
    linear = Candidate("linear", partial(nn.Linear, 4, 4))
    small = LayerPool([Position("p", [linear])], inputs=TensorSpec((4,)))
    more = [Candidate("other", partial(nn.Linear, 4, 4, bias=False)), linear]
    large = LayerPool([Position("o", more), Position("p", more)], inputs=TensorSpec((4,)))
    first, second = (weights(ParamServer(pool, optimizer=AdamW(), seed=0), "p/linear") for pool in (small, large))
    assert torch.equal(first, second)


def test_first_weights_are_the_factory_s_own_under_the_seed_of_the_key():
    pool = dense_pool()
    state = ParamServer(pool, optimizer=AdamW(), seed=5).state("layer1/normed")
    torch.manual_seed(seed_of(5, "layer1/normed"))
    module = pool.owner("layer1/normed").candidate.factory()
    assert all(torch.equal(state.parameters()[name], p) for name, p in module.named_parameters())
    assert all(torch.equal(state.named_buffers()[name], b) for name, b in module.named_buffers())


def test_seeds_and_positions_have_other_weights():
    pool = dense_pool()
    one, other = (ParamServer(pool, optimizer=AdamW(), seed=seed) for seed in (0, 1))
    assert not torch.equal(weights(one, "layer0/dense"), weights(other, "layer0/dense"))
    assert not torch.equal(weights(one, "layer0/dense"), weights(one, "layer1/dense"))


def test_creating_a_state_leaves_the_user_s_random_numbers_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ParamServer(dense_pool(), optimizer=AdamW(), seed=0).state("layer0/dense")
    assert torch.equal(torch.rand(3), expected)
