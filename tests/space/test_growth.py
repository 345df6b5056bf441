from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec, skip
from l2l_nas.errors import SettingError
from l2l_nas.space.growth import frozen, retired
from tests.nas.problems import pool_of
from tests.relay.stress import ORDERS


def names(pool):
    return [[c.name for c in position.candidates] for position in pool.positions]


def test_retired_candidates_are_gone_and_the_rest_is_as_it_was():
    pool = pool_of("tanh", "relu", "skip")
    assert retired(pool, []) is pool
    left = retired(pool, ["p0/tanh", "*/skip"])
    assert names(left) == [["linear"], ["relu"], ["tanh", "relu"], ["linear"]]
    assert left.inputs == pool.inputs
    assert left.positions[2]["tanh"] is pool.positions[2]["tanh"]
    shared = LayerPool.repeated([Candidate("a", nn.Identity), skip()], depth=2, inputs=TensorSpec((2,)))
    assert retired(shared, ["*/skip"]).shared


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (["p0/tnah"], r"search.retire: no candidate 'p0/tnah'; did you mean 'p0/tanh'\?"),
        (["tanh"], "no candidate 'tanh'"),
        (["p0/*"], "would leave position 'p0' without candidates; keep one"),
    ],
)
def test_what_cannot_be_retired_is_refused(patterns, says):
    with pytest.raises(SettingError, match=says):
        retired(pool_of("tanh", "relu"), patterns)


def test_unknown_names_to_freeze_are_refused():
    with pytest.raises(SettingError, match=r"search.freeze: no candidate 'p0/x'"):
        frozen(pool_of("tanh"), ["p0/x"])


def test_frozen_layers_of_one_kind_share_templates_and_a_skip_has_nothing_to_freeze():
    pool, keys = frozen(pool_of("tanh", "relu", "skip"), ["*/tanh", "p1/skip"])
    assert keys == {"p0/tanh", "p1/tanh"}
    first, second = (pool.positions[index]["tanh"] for index in (1, 2))
    assert first.kind == second.kind
    assert first.kind != pool.positions[1]["relu"].kind
    assert pool.positions[2]["skip"].is_skip
    same = pool_of("tanh")
    assert frozen(same, []) == (same, frozenset())


def test_in_a_shared_pool_a_layer_is_frozen_everywhere():
    layers = [Candidate("a", partial(nn.Linear, 2, 2)), Candidate("b", lambda: nn.Linear(2, 2))]
    pool, keys = frozen(LayerPool.repeated(layers, depth=3, inputs=TensorSpec((2,))), ["layer_01/[ab]"])
    assert keys == {"shared/a", "shared/b"}
    assert not any(p.requires_grad for layer in pool.layers for p in pool.build_module(layer).parameters())


def test_tied_parameters_are_not_frozen_with_one_of_their_layers():
    tied = Candidate("tied", partial(nn.Linear, 2, 2), {"weight": "group"})
    plain = Candidate("plain", partial(nn.Linear, 2, 2), {"weight": "group"})
    pool = LayerPool([Position("a", [tied]), Position("b", [plain])], inputs=TensorSpec((2,)))
    fixed, keys = frozen(pool, ["a/tied"])
    assert keys == {"a/tied"}
    module = fixed.build_module(fixed.layers[0])
    assert (module.weight.requires_grad, module.bias.requires_grad) == (True, False)


def tensors(server, key):
    return {name: tensor.clone() for name, tensor in server.state(key).tensors().items()}


def step(relay, pool, number):
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(number))
    y = torch.randint(2, (8,), generator=torch.Generator().manual_seed(number))
    path = pool.architecture(["linear", "normed", "tanh", "linear"])
    return relay.train_step(path, (x,), y, objective=Classification(), micro_batch=4, lr=0.1, step=number).loss


@pytest.mark.parametrize("update", ORDERS)
def test_frozen_layers_stay_to_the_bit_and_the_others_learn_as_beside_layers_that_were_built_frozen(update):
    pool = pool_of("tanh", "normed")
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, update=update)
    for number in range(3):
        step(relay, pool, number)
    before = {key: tensors(server, key) for key in server.visited}

    fixed, keys = frozen(pool, ["p0/normed", "head/linear"])
    other = ParamServer(fixed, optimizer=AdamW(), seed=0, frozen=keys)
    for key in server.visited:
        other.storage.put(key, server.state(key).clone())
    relay = Relay(other, update=update)
    losses = [step(relay, fixed, number) for number in range(3, 6)]
    for key, old in before.items():
        new = tensors(other, key)
        is_same = all(torch.equal(old[name], new[name]) for name in old)
        assert is_same == (key in keys), key
    fork = other.fork(other.visited)
    step(Relay(fork, update=update), fork.pool, 6)
    after = {key: tensors(fork, key) for key in keys}
    assert all(torch.equal(before[key][name], after[key][name]) for key in keys for name in after[key])

    module = nn.Sequential(*(server.build_module(layer, {}) for layer in pool.path(
        pool.architecture(["linear", "normed", "tanh", "linear"]))))  # fmt: skip
    for index in (1, 3):
        module[index].requires_grad_(False)
    plain = []
    for number in range(3, 6):
        x = torch.randn(8, 2, generator=torch.Generator().manual_seed(number))
        y = torch.randint(2, (8,), generator=torch.Generator().manual_seed(number))
        plain.append(sum(nn.functional.cross_entropy(module(x[i : i + 4]), y[i : i + 4]).item() / 2 for i in (0, 4)))
        break  # later steps need the optimizer's moments; the first shows that freezing changes no forward
    assert losses[0] == pytest.approx(plain[0], rel=1e-6)
