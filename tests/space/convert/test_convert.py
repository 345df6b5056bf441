"""A model becomes a pool: what becomes a position, what a value, and what is refused."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import AdamW, Candidate, Classification, Data, ParamServer, Problem, Relay, convert, plain_module, skip
from l2l_nas.errors import SpaceError
from l2l_nas.training.export import build_network


class Gate(nn.Module):
    """Takes a table that all samples share, by name, and a flag; gives the stream, a number a sample, the table."""

    def __init__(self, width=8):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, *, table, flag=None):
        return x + self.linear(x) * table * (2 if flag else 1), torch.sigmoid(x).mean((1, 2)), table


class Model(nn.Module):
    """Tied embedding and head, a table beside the stream, BatchNorm between the blocks, dropout before them."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.table = nn.Parameter(torch.randn(1, 5, 1))
        self.dropout = nn.Dropout(dropout)
        self.first = nn.ModuleList([Gate(), Gate()])
        self.between = nn.BatchNorm1d(5)
        self.second = nn.ModuleList([Gate(), Gate()])
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, weights=None):
        x, scales = self.dropout(self.embed(ids)), []
        table = self.table.tanh()
        for gate in self.first:
            x, scale, table = gate(x, table=table, flag=True)
            scales.append(scale)
        x = self.between(x)
        for gate in self.second:
            x, scale, table = gate(x, table=table, flag=False)
        x = self.dropout(x)
        x = x if weights is None else x * weights[:, None, None]
        return {"logits": self.head(x.mean(1)) + scales[0][:, None], "hidden": x}


IDS = torch.arange(10).reshape(2, 5)
BLOCKS = ("first", "second")


def made(dropout=0.0, **kwargs):
    torch.manual_seed(0)
    model = Model(dropout)
    return model, convert(model, {"ids": IDS}, **{"blocks": BLOCKS, **kwargs})


def positions_of(pool):
    return {position.name: (position.reads, position.writes) for position in pool.positions}


def first_server(pool):
    return ParamServer(pool, optimizer=AdamW(), seed=0)


def test_blocks_are_positions_and_what_they_share_is_a_value():
    _, pool = made()
    assert positions_of(pool) == {
        "stem": (("ids",), ("stem", "stem+table")),
        "first.0": (("stem", "stem+table"), ("first.0", "first.0+1")),
        "first.1": (("first.0", "stem+table"), ("first.1",)),
        "before.second.0": (("first.1",), ("before.second.0",)),
        "second.0": (("before.second.0", "stem+table"), ("second.0",)),
        "second.1": (("second.0", "stem+table"), ("second.1",)),
        "head": (("first.0+1", "second.1"), ("head",)),
    }


def test_each_part_has_the_weights_that_it_uses_and_no_other():
    _, pool = made()
    server = first_server(pool)
    assert [sorted(server.state(key).parameters()) for key in pool.states] == [
        ["model.table"],
        ["weight"],
        *[["block.linear.bias", "block.linear.weight"]] * 2,
        ["model.between.bias", "model.between.weight"],
        *[["block.linear.bias", "block.linear.weight"]] * 2,
        [],
    ]
    assert sorted(server.state("before.second.0/original").named_buffers()) == [
        "model.between.num_batches_tracked",
        "model.between.running_mean",
        "model.between.running_var",
    ]
    assert dict(pool.positions[0].candidates[0].tied) == {"model.embed.weight": "embed.weight"}
    assert dict(pool.positions[-1].candidates[0].tied) == {"model.head.weight": "embed.weight"}


def test_the_network_gives_what_the_model_gives_in_both_modes():
    model, pool = made()
    network = plain_module(pool, pool.original)
    for training in (True, False):
        assert torch.equal(network.train(training)(IDS), model.train(training)(IDS)["logits"])
    assert torch.equal(network.state_dict()["before_second_0.model.between.running_mean"], model.between.running_mean)


def test_the_gradients_are_those_of_the_model():
    model, pool = made()
    network = plain_module(pool, pool.original).train()
    network(IDS).sum().backward()
    model.train()(IDS)["logits"].sum().backward()
    assert torch.equal(network.stem.model.embed.weight.grad, model.embed.weight.grad)
    assert torch.equal(network.stem.model.table.grad, model.table.grad)
    assert torch.equal(network.first_0.block.linear.weight.grad, model.first[0].linear.weight.grad)


def test_the_model_is_not_changed():
    torch.manual_seed(0)
    model = Model().train()
    before, modules = copy.deepcopy(model.state_dict()), [id(module) for module in model.modules()]
    attributes = [dict(vars(module)) for module in model.modules()]
    pool = convert(model, {"ids": IDS}, blocks=BLOCKS)
    relay = Relay(first_server(pool), device="cpu")
    relay.train_step(
        pool.original, (IDS,), torch.tensor([1, 2]), objective=Classification(), micro_batch=2, lr=0.1, step=0
    )
    assert [id(module) for module in model.modules()] == modules
    assert [vars(module) for module in model.modules()] == attributes
    assert model.training
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


def test_candidates_of_ones_own_are_called_as_the_block_is():
    seen = []

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))

        def forward(self, x, *, table, flag):
            seen.append((table.shape, flag))
            return x * self.scale, x.mean((1, 2)), None

    _, pool = made(candidates={"own": Own})
    assert [len(position.candidates) for position in pool.positions] == [1, 2, 2, 1, 2, 2, 1]
    choices = [position.candidates[-1].name for position in pool.positions]
    seen.clear()
    plain_module(pool, pool.architecture(choices))(IDS)
    assert seen == [(torch.Size([1, 5, 1]), flag) for flag in (True, True, False, False)]


def test_a_factory_may_ask_for_the_block():
    def doubled(block):
        block.linear = nn.Sequential(block.linear, nn.Linear(8, 8))
        return block

    model, pool = made(candidates={"second.*": {"doubled": doubled}})
    assert [len(position.candidates) for position in pool.positions] == [1, 1, 1, 1, 2, 2, 1]
    assert isinstance(model.second[0].linear, nn.Linear)
    network = plain_module(pool, pool.architecture([position.candidates[-1].name for position in pool.positions]))
    assert torch.equal(network.second_1.block.linear[0].weight, model.second[1].linear.weight)


def test_a_module_offered_to_several_blocks_is_a_layer_of_its_own_in_each():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    other = nn.Linear(4, 4)
    pool = convert(model, torch.randn(3, 4), blocks="[01]", candidates={"other": other})
    server = first_server(pool)
    states = [server.state(f"{place}/other").parameters()["block.weight"] for place in "01"]
    assert all(torch.equal(weight, other.weight) for weight in states)
    assert states[0].data_ptr() != states[1].data_ptr()


def test_one_factory_for_blocks_called_alike_has_templates_in_common():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
    pool = convert(
        model, torch.randn(3, 4), blocks=[str(i) for i in range(4)], candidates={"own": lambda: nn.Linear(4, 4)}
    )
    assert len({position["own"].kind for position in pool.positions if len(position.candidates) > 1}) == 1


def test_a_skip_is_offered_where_a_block_gives_what_it_takes():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    pool = convert(
        nn.ModuleDict({"body": model}).body, torch.randn(3, 4), blocks="[0123]", candidates={"none": skip("none")}
    )
    assert [[c.name for c in position.candidates] for position in pool.positions if position.name != "head"] == [
        ["original"],
        ["original", "none"],
        ["original", "none"],
        ["original"],
    ]


# coming back


def trained(pool, architecture, steps=3):
    server = first_server(pool)
    relay = Relay(server, device="cpu")
    for step in range(steps):
        targets = torch.tensor([step, 2])
        relay.train_step(architecture, (IDS,), targets, objective=Classification(), micro_batch=2, lr=0.1, step=step)
    relay.drain()
    return build_network(server, architecture)


def test_a_trained_original_becomes_the_model_again():
    model, pool = made()
    network = trained(pool, pool.original)
    restored = pool.restore(network)
    assert type(restored) is Model
    assert restored.training is model.training
    assert torch.equal(restored.eval()(IDS)["logits"], network(IDS))
    assert not torch.equal(restored.embed.weight, model.embed.weight)
    assert restored.head.weight is restored.embed.weight
    assert torch.equal(restored.unused.weight, model.unused.weight)


def test_a_candidate_takes_the_place_of_its_block():
    class Wide(Gate):
        def __init__(self):
            super().__init__()
            self.linear = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))

    _, pool = made(candidates={"wide": Wide})
    network = trained(
        pool, pool.architecture(["original", "wide", "original", "original", "original", "wide", "original"])
    )
    restored = pool.restore(network)
    assert [type(gate) for gate in (*restored.first, *restored.second)] == [Wide, Gate, Gate, Wide]
    assert torch.equal(restored.eval()(IDS)["logits"], network(IDS))


def chain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.randn(3, 4)


def test_a_skipped_block_is_an_identity_where_the_model_can_call_that():
    model, x = chain()
    pool = convert(model, x, blocks="1", candidates={"skip": skip()})
    network = plain_module(pool, pool.architecture(["original", "skip", "original"]))
    restored = pool.restore(network)
    assert isinstance(restored[1], nn.Identity)
    assert torch.equal(restored.eval()(x), network(x))


def test_a_skip_that_the_model_cannot_do_is_refused_when_it_comes_back():
    _, pool = made(candidates={"skip": skip()})
    assert pool.positions[2]["skip"].is_skip
    network = plain_module(
        pool, pool.architecture(["original", "original", "skip", "original", "original", "original", "original"])
    )
    with pytest.raises(SpaceError, match=r"position 'first.1': it is skipped, which this model's own code cannot do"):
        pool.restore(network)


def test_a_network_of_another_pool_is_refused():
    _, pool = made()
    with pytest.raises(SpaceError, match="the network has no layer 'stem'; give one of this pool"):
        pool.restore(nn.Sequential(nn.Linear(2, 2)))


def test_a_candidate_that_the_models_code_cannot_call_is_refused_when_it_comes_back():
    model, x = chain()

    class Own(nn.Module):
        def forward(self, x):
            return [x * 2]

    pool = convert(model, x, blocks="1", candidates={"own": Own})
    network = plain_module(pool, pool.architecture(["original", "own", "original"]))
    with pytest.raises(SpaceError, match="the model's own code cannot run this network"):
        pool.restore(network)


# what is refused


@pytest.mark.slow
def test_a_search_takes_the_pool(tmp_path):
    _model, pool = made(candidates={"skip": skip()})
    x = torch.randint(0, 12, (40, 5), generator=torch.Generator().manual_seed(0))
    problem = Problem(pool, Data.from_arrays(x, x[:, 0] % 3))
    result = l2l_nas.search(
        problem, trials=3, warmup_steps=1, steps_per_trial=1, finalist_steps=2, finalists=1, folder=tmp_path / "run"
    )
    assert len(result.best.architecture.choices) == len(pool)
    assert (tmp_path / "run" / "export" / "model.pt2").exists()
    assert result.network()(x[:2]).shape == (2, 12)


def test_a_candidate_named_by_a_module_is_copied():
    model, x = chain()
    other = nn.Linear(8, 8)
    pool = convert(
        model,
        x,
        blocks="1",
        candidates={"other": other, "named": Candidate("named", nn.Linear, {})} | {"named": lambda: nn.Linear(8, 8)},
    )
    network = plain_module(pool, pool.architecture(["original", "other", "original"]))
    layer = next(module for name, module in network.named_children() if name.startswith("1"))
    assert layer.block is not other
    assert torch.equal(layer.block.weight, other.weight)


@pytest.mark.slow
def test_a_model_with_compiled_modules_becomes_the_same_pool_as_without_and_stays_as_it_is():
    def build(wrap):
        torch.manual_seed(0)
        inner = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Tanh())
        return nn.Sequential(wrap(nn.Linear(4, 4)), wrap(inner), wrap(nn.Linear(4, 2)))

    compiled, plain = build(partial(torch.compile, backend="eager")), build(lambda module: module)
    kinds = [type(module) for module in compiled.modules()]
    x = torch.randn(2, 4)
    pools = [convert(model, x, blocks=["0", "1"], candidates={"skip": skip()}) for model in (compiled, plain)]
    networks = [plain_module(pool, pool.original) for pool in pools]
    assert networks[0].state_dict().keys() == networks[1].state_dict().keys()
    assert torch.equal(networks[0](x), plain(x))
    assert torch.equal(pools[0].restore(networks[0])(x), plain(x))
    assert [type(module) for module in compiled.modules()] == kinds
