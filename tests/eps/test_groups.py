"""Groups of parameters: who is in them, what is kept and refused."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, LayerPool, ParamServer, Position, Regression, Relay, TensorSpec, skip
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.optimizers.groups import Group, Groups, layer_decay, no_decay, without_retired
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.registry import build_optimizer, in_low_precision, muon_with_adamw
from l2l_nas.eps.optimizers.rules import Adafactor, Muon
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.space.growth import retired
from l2l_nas.training.export import build_network
from tests.toys import SquaredError, dense_pool, language_pool, random_data, repeated_pool


def block():
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


def head():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 3))


def conv_pool():
    stem = Candidate("conv", partial(nn.Conv2d, 1, 4, 3, padding=1))
    return LayerPool(
        [
            Position("stem", stem),
            Position("a", [Candidate("block", block), skip()]),
            Position("head", Candidate("linear", head)),
        ],
        inputs=TensorSpec((1, 8, 8)),
    )


def treated(pool, optimizer):
    """By state and parameter: rule and scale of the rate; what is frozen is missing."""
    server = ParamServer(pool, optimizer=optimizer, seed=0)
    found = {}
    for key in server.pool.states:
        names = [entry.name for entry in server.layout(key).parameters]
        for call in server.rules.of(key).calls:
            found |= {f"{key}/{names[index]}": (call.rule, call.lr_scale) for index in call.indices}
    return found


def test_no_decay_concerns_biases_norms_and_vectors():
    found = treated(conv_pool(), Groups(AdamW(weight_decay=0.1), [no_decay()]))
    decayed = {name for name, (rule, _) in found.items() if rule.weight_decay}
    assert decayed == {"stem/conv/weight", "a/block/0.weight", "head/linear/1.weight"}
    assert len(found) == 8


def test_rates_multiply_and_of_the_rest_the_last_group_counts():
    groups = [
        layer_decay(0.5),
        Group("stem/*", lr_scale=0.1, weight_decay=0.2),
        Group(lambda parameter: parameter.is_bias, weight_decay=0.3),
    ]
    found = treated(conv_pool(), Groups(AdamW(weight_decay=0.1), groups))
    assert found["head/linear/1.weight"] == (AdamW(weight_decay=0.1), 1.0)
    assert found["a/block/0.weight"] == (AdamW(weight_decay=0.1), 0.5)
    assert found["stem/conv/weight"] == (AdamW(weight_decay=0.2), 0.25 * 0.1)
    assert found["stem/conv/bias"] == (AdamW(weight_decay=0.3), 0.25 * 0.1)


def test_muon_has_hidden_matrices_and_convolutions_and_adamw_the_rest():
    found = treated(conv_pool(), muon_with_adamw())
    assert {name for name, (rule, _) in found.items() if isinstance(rule, Muon)} == {
        "stem/conv/weight", "a/block/0.weight",
    }  # fmt: skip
    found = treated(language_pool(), muon_with_adamw())
    of_muon = {name for name, (rule, _) in found.items() if isinstance(rule, Muon)}
    assert of_muon
    assert not [name for name in of_muon if "embed" in name or name.startswith("tied/") or "head" in name]
    assert all(isinstance(rule, Muon | AdamW) for rule, _ in found.values())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8, 6) * 0.1)

    def forward(self, x):
        return torch.einsum("bi,eoi->bo", x, self.weight).square()


class Mixing(Experts):
    """Three dimensions, and no experts."""


def expert_pool(kind=Experts):
    return LayerPool(
        [
            Position("first", Candidate("linear", lambda: nn.Linear(5, 6))),
            Position("mixture", Candidate("own", kind)),
            Position("last", Candidate("linear", lambda: nn.Linear(8, 2))),
        ],
        inputs=TensorSpec((5,)),
    )


@pytest.mark.parametrize("scale", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("moments", ["fp32", "bf16"])
def test_muon_updates_each_expert_as_torchs_muon_does(scale, moments):
    muon = muon_with_adamw(Muon(scale=scale))
    pool, optimizer = expert_pool(), muon if moments == "fp32" else in_low_precision(muon, moments)
    server = ParamServer(pool, optimizer=optimizer, seed=0)
    path = pool.architecture(["linear", "own", "linear"])
    network = build_network(server, path)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(16, 5, generator=generator), torch.randn(16, 2, generator=generator)
    Regression().loss((network(x),), y).div(y.numel()).backward()
    experts = [nn.Parameter(one.detach().clone()) for one in network.mixture.weight]
    for one, gradient in zip(experts, network.mixture.weight.grad, strict=True):
        one.grad = gradient.clone()
    torch.optim.Muon(experts, lr=0.1, adjust_lr_fn=scale).step()
    relay = Relay(server, device="cpu")
    relay.train_step(path, (x,), y, objective=Regression(), micro_batch=16, lr=0.1, step=0)
    relay.drain()
    torch.testing.assert_close(server.state("mixture/own").parameters()["weight"], torch.stack(experts).detach())


@pytest.mark.parametrize("optimizer", [Muon(), Groups(AdamW(), [Group("mixture/*", rule=Muon())])])
def test_muon_does_not_guess_which_dimensions_make_a_matrix(optimizer):
    with pytest.raises(SettingError, match="neither a convolution nor experts"):
        ParamServer(expert_pool(Mixing), optimizer=optimizer, seed=0).state("mixture/own")
    assert all(
        isinstance(rule, AdamW)
        for name, (rule, _) in treated(expert_pool(Mixing), muon_with_adamw()).items()
        if name.startswith("mixture")
    )


def test_low_precision_reaches_the_rules_of_groups_and_keeps_their_decay():
    optimizer = in_low_precision(Groups(muon_with_adamw().rule, (*muon_with_adamw().groups, no_decay())), "bf16")
    found = treated(conv_pool(), optimizer)
    assert all(isinstance(rule, LowPrecision) for rule, _ in found.values())
    assert found["stem/conv/bias"][0].rule == AdamW(weight_decay=0.0)


def test_what_is_frozen_has_no_state_and_leaves_the_pool_as_it_was():
    pool = conv_pool()
    optimizer = Groups(AdamW(), [Group("*/block/*", frozen=True)])
    server = ParamServer(pool, optimizer=optimizer, seed=0)
    assert not server.layout("a/block").is_trainable
    assert server.state("a/block").moments == ()
    assert server.state("stem/conv").layout.is_trainable
    assert ParamServer(server.pool, optimizer=optimizer, seed=0).pool is server.pool
    assert ParamServer(pool, optimizer=AdamW(), seed=0).layout("a/block").is_trainable


def test_a_module_of_the_user_s_own_is_frozen_in_a_copy():
    own = nn.Linear(4, 4)
    pool = LayerPool([Position("p", Candidate("own", own)), Position("q", Candidate("x", partial(nn.Linear, 4, 4)))],
                     inputs=TensorSpec((4,)))  # fmt: skip
    server = ParamServer(pool, optimizer=Groups(AdamW(), [Group("p/*", frozen=True)]), seed=0)
    assert torch.equal(server.state("p/own").parameters()["weight"], own.weight)
    assert own.weight.requires_grad


def test_a_tied_parameter_is_what_it_is_where_it_is_defined():
    pool = language_pool()
    tied = next(key for key in pool.states if key.startswith("tied/"))
    owner = pool.owner(tied)
    position = pool.positions[owner.position].name
    server = ParamServer(pool, optimizer=Groups(AdamW(), [Group(f"{position}/*", frozen=True)]), seed=0)
    assert not server.layout(tied).is_trainable


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda: [Group("stem/con/*", frozen=True)], r"group 'stem/con/\*': match finds no parameter; write a pattern"),
        (lambda: [Group("norms_and_bias")], "did you mean 'norms_and_biases'"),
        (lambda: [Group("*", weight_decay=-1)], "weight_decay must be at least 0"),
        (lambda: [Group("*", lr_scale=-0.1)], r"group '\*': lr_scale must be at least 0"),
        (lambda: [Group("*", lr_scale=lambda p: None)], "at stem/conv/weight: lr_scale takes a number"),
        (lambda: [Group(3)], "match is a pattern or a function"),
        (lambda: [Group(lambda p: p.nope)], "match raised AttributeError"),
        (lambda: [Group("*", lr_scale=lambda p: 1 / 0)], "lr_scale raised ZeroDivisionError"),
        (lambda: [layer_decay(0.0)], r"layer_decay: rate must lie in \(0, 1\]"),
        (lambda: [Group("*", rule=Muon())], "muon updates matrices"),
    ],
)
def test_groups_that_make_no_sense_are_refused_before_anything_runs(groups, words):
    with pytest.raises(SettingError, match=words):
        ParamServer(conv_pool(), optimizer=Groups(AdamW(), groups()), seed=0)


def test_groups_of_retired_candidates_alone_are_left_out():
    groups = [Group("a/block/*", lr_scale=0.5), Group("*.bias", weight_decay=0.0), Group("head/*", frozen=True)]
    before, optimizer = conv_pool(), Groups(AdamW(), groups)
    pool = retired(before, ["a/block"])
    assert without_retired(optimizer, before, pool).groups == groups[1:]
    assert without_retired(optimizer, before, before) is optimizer
    idle = Groups(AdamW(), [*groups, Group("a/blok/*")])
    with pytest.raises(SettingError, match=r"'a/blok/\*': match finds no parameter"):
        ParamServer(pool, optimizer=without_retired(idle, before, pool), seed=0)


def test_an_optimizer_without_decay_says_what_to_do():
    class Plain:
        name = "plain"

        def state(self, shape):
            return ()

        def update(self, weights, gradients, moments, steps, *, lr):
            """Nothing."""

    with pytest.raises(SettingError, match="optimizer plain is no dataclass with a weight_decay"):
        ParamServer(conv_pool(), optimizer=Groups(Plain(), [no_decay()]), seed=0)


def test_a_layer_that_positions_share_is_treated_alike_at_all_of_them():
    with pytest.raises(SettingError, match="are one parameter of a shared pool"):
        ParamServer(repeated_pool(), optimizer=Groups(AdamW(), [layer_decay(0.9)]), seed=0)
    ParamServer(repeated_pool(), optimizer=Groups(AdamW(), [no_decay()]), seed=0)


def test_the_registry_builds_what_settings_say():
    chosen = {
        "name": "sgd", "momentum": 0.8, "moments": "bf16", "no_decay": "norms_and_biases", "layer_decay": 0.5,
        "groups": {"stem": {"match": "stem/*", "lr_scale": 0.1, "weight_decay": 0.2, "frozen": True}},
    }  # fmt: skip
    own = Group("stem/*", lr_scale=0.1, weight_decay=0.2, frozen=True, name="stem")
    expected = Groups(LowPrecision(SGD(momentum=0.8), "bf16"), (no_decay(), layer_decay(0.5), own))
    assert build_optimizer(chosen) == expected
    assert build_optimizer("adafactor") == Adafactor()
    assert build_optimizer(expected) is expected


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"name": "adam"}, "no optimizer 'adam'; did you mean 'adamw'"),
        ({"name": "sgd", "moments": "int8"}, "moments: no 'int8'"),
        ({"name": "sgd", "no_decay": "norms"}, "optimizer.no_decay: no 'norms'"),
        ({"name": "sgd", "groups": {"a": 3}}, "optimizer.groups.a: expected match"),
        ({"name": "sgd", "groups": {"a": {"lr_scale": 2}}}, "optimizer.groups.a.match: write a pattern"),
        ({"name": "sgd", "groups": {"a": {"match": "*", "lr": 2}}}, "optimizer.groups.a takes no 'lr'"),
        ({"name": "sgd", "groups": {"a": {"match": "*", "weight_decay": "x"}}}, "weight_decay must be a number"),
        ({"name": "sgd", "groups": {"a": {"match": "*", "frozen": 1}}}, "frozen must be true or false"),
        (3, "expected a name or an l2l_nas.Optimizer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(chosen, words):
    with pytest.raises(SettingError, match=words):
        build_optimizer(chosen)


# -- what is saved -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        in_low_precision(AdamW(), "bf16"),
        Adafactor(),
        Groups(muon_with_adamw().rule, (*muon_with_adamw().groups, Group("layer0/*", frozen=True))),
    ],
    ids=["bf16", "adafactor", "muon, frozen"],
)
def test_a_save_brings_all_that_was_kept_back(optimizer, tmp_path):
    pool = dense_pool(width=80)
    server = ParamServer(pool, optimizer=optimizer, seed=0)
    generator = torch.Generator().manual_seed(0)
    for key in pool.states:
        state = server.state(key)
        for moment in state.moments:
            moment.copy_(torch.randint(0, 60, moment.shape, generator=generator, dtype=torch.uint8))
        state.mark_changed()
    Checkpoint(tmp_path).save(server)
    other = ParamServer(pool, optimizer=optimizer, seed=0)
    Checkpoint(tmp_path).load(other)
    for key in pool.states:
        expected, found = (one.state(key).tensors() for one in (server, other))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("storage", ["ram", "file"])
def test_training_goes_on_from_a_save_as_if_there_had_been_none(storage, tmp_path):
    pool, optimizer = dense_pool(width=80), in_low_precision(muon_with_adamw(), "bf16")
    path = pool.architecture(["dense", "normed", "twice", "dense", "mlp"])

    def server_of(name):
        kept = FileStorage(tmp_path / name, frames=3) if storage == "file" else None
        return ParamServer(pool, optimizer=optimizer, seed=0, storage=kept)

    def train(server, steps):
        with contextlib.closing(Relay(server, device="cpu", seed=0)) as relay:
            for step in steps:
                inputs, targets = random_data(pool, 6, seed=step)
                relay.train_step(path, inputs, targets, objective=SquaredError(), micro_batch=6, lr=0.01, step=step)

    whole, before, after = (server_of(name) for name in ("whole", "before", "after"))
    train(whole, range(6))
    train(before, range(3))
    Checkpoint(tmp_path / "save").save(before)
    Checkpoint(tmp_path / "save").load(after)
    train(after, range(3, 6))
    for key in whole.visited:
        for name, tensor in whole.state(key).tensors().items():
            assert torch.equal(after.state(key).tensors()[name], tensor), f"{key} {name}"


def test_moments_of_another_precision_are_refused_and_weights_alone_are_not(tmp_path):
    pool = dense_pool()
    server = ParamServer(pool, optimizer=in_low_precision(AdamW(), "bf16"), seed=0)
    server.prepare(pool.states)
    Checkpoint(tmp_path).save(server)
    with pytest.raises(StorageError, match=r"moments in bf16, this run keeps fp32; set optimizer\.moments=bf16"):
        Checkpoint(tmp_path).load(ParamServer(pool, optimizer=AdamW(), seed=0))
    Checkpoint(tmp_path).load(ParamServer(pool, optimizer=SGD(), seed=0), weights_only=True)


def test_what_was_frozen_begins_anew_when_it_is_trained_again(tmp_path):
    pool, frozen = dense_pool(), Groups(AdamW(), [Group("layer0/*", frozen=True)])
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    state = server.state("layer0/dense")
    state.steps.fill_(3)
    for moment in state.moments:
        moment.view(torch.float32).fill_(0.5)
    state.mark_changed()
    Checkpoint(tmp_path).save(server)
    other = ParamServer(pool, optimizer=frozen, seed=0)
    Checkpoint(tmp_path).load(other)
    assert other.state("layer0/dense").moments == ()
    Checkpoint(tmp_path).save(other)
    again = ParamServer(pool, optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path).load(again)
    assert again.state("layer0/dense").steps.tolist() == [0.0, 0.0]
    assert not again.state("layer0/dense").moments[0].any()


def test_groups_within_groups_are_refused():
    inner = muon_with_adamw()
    for build in (lambda: Groups(inner, ()), lambda: Group("*.bias", rule=inner)):
        with pytest.raises(SettingError, match=r"it has groups itself; write one list"):
            build()
    assert Groups(inner.rule, [*inner.groups, Group("*.bias", lr_scale=0.5)]).groups[0] == inner.groups[0]
