"""A model becomes a pool: what becomes a position, what a value, and what is refused."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import AdamW, Candidate, Classification, Data, ParamServer, Problem, Relay, convert, plain_module, skip
from l2l_nas.errors import ShapeError, SpaceError
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


def refusal(match, *args, **kwargs):
    with pytest.raises(SpaceError, match=match) as caught:
        convert(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_wrong_path_of_blocks_is_told_the_nearest():
    refusal(
        r"blocks='frist': the model has no such module; did you mean 'first'\?", Model(), {"ids": IDS}, blocks="frist"
    )


def test_a_model_in_low_precision_is_refused():
    refusal(
        r"'table' is torch.bfloat16, .*; write convert\(model.float\(\)",
        Model().bfloat16(),
        {"ids": IDS},
        blocks="first",
    )


def test_blocks_that_are_parts_of_others_are_refused():
    refusal("'first.0.linear' is part of 'first.0'", Model(), {"ids": IDS}, blocks=["first", "first.*.linear"])


def test_blocks_that_do_not_run_are_refused():
    refusal("calls none of these blocks", Model(), {"ids": IDS}, blocks="unused")


@pytest.mark.parametrize(
    "example", [{}, 3, "text", {"ids": torch.tensor(1)}, {"ids": IDS, "weights": torch.ones(3)}, {"ids": [IDS]}]
)
def test_an_example_that_is_none_is_refused(example):
    refusal("the example must be a tensor, several, or a dict of arguments", Model(), example, blocks="first")


def test_what_the_model_raises_is_told_in_one_line():
    refusal("the model raised TypeError on the example: .*tokens", Model(), {"tokens": IDS}, blocks="first")


def test_an_input_that_the_output_does_not_depend_on_is_refused():
    weights = {"ids": IDS, "weights": torch.ones(2)}
    assert [*made()[1].sources, *convert(Model(), weights, blocks="first").sources] == ["ids", "ids", "weights"]

    class Other(Model):
        def forward(self, ids, labels):
            return super().forward(ids)

    refusal(
        "does not depend on 'labels'; leave it out of the example",
        Other(),
        {"ids": IDS, "labels": IDS[:, 0]},
        blocks="first",
    )


def test_the_output_is_chosen_by_name():
    model, pool = made(output="hidden")
    assert torch.equal(plain_module(pool, pool.original)(IDS), model.eval()(IDS)["hidden"])
    refusal(
        "no tensor 'lgits'; write output='logits' or output='hidden'",
        Model(),
        {"ids": IDS},
        blocks="first",
        output="lgits",
    )


def test_shapes_that_clash_name_position_candidate_and_what_is_expected():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    with pytest.raises(ShapeError) as caught:
        convert(model, torch.randn(3, 4), blocks="1", candidates={"narrow": lambda: nn.Linear(8, 6)})
    assert str(caught.value) == (
        "position '1': candidate 'narrow': got output [batch, 6] float32, expected [batch, 8] float32; "
        "'original' gives that, and all candidates of a position must agree"
    )


def test_a_candidate_that_returns_something_else_than_the_block_is_told_what_that_is():
    error = refusal(
        "gives a tensor, a tensor, a tensor; return the same|given by",
        Model(),
        {"ids": IDS},
        blocks=BLOCKS,
        candidates={"own": Bare},
    )
    assert "[2, 5, 8] float32 where the model's block gives a tensor, a tensor, a tensor; return the same" in str(error)
    assert (error.position, error.candidate) == ("first.0", "own")


class Bare(nn.Module):
    def forward(self, x, *, table, flag):
        return x


def test_candidates_that_are_none_or_for_no_block_are_refused():
    refusal("'own' is int; write a module", Model(), {"ids": IDS}, blocks=BLOCKS, candidates={"own": 3})
    refusal(
        "no block is called 'frist.0'; did you mean 'first.0'",
        Model(),
        {"ids": IDS},
        blocks=BLOCKS,
        candidates={"frist.0": {"own": Gate}},
    )


def test_a_skip_that_fits_nowhere_or_not_where_it_was_asked_for_is_refused():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(3, 4)
    refusal("no block gives what it takes", model, x, blocks="0", candidates={"skip": skip()})
    refusal("position '0': candidate 'skip': got output", model, x, blocks="0", candidates={"0": {"skip": skip()}})


def test_what_is_another_object_in_each_forward_is_refused():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

        def forward(self, x):
            return self.layers[0](x, cache=object())

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x, cache):
            return super().forward(x)

    refusal(
        "the block 'layers.0' takes a object as 'cache', which is another one in each",
        Cached(),
        torch.randn(2, 4),
        blocks="layers",
    )


def test_random_numbers_that_two_parts_would_draw_are_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise, self.block = nn.Dropout(0.5), nn.Linear(4, 4)

        def forward(self, x):
            x = self.noise(x)
            return self.block(x) + x

    refusal(
        "what 'noise' computes is used in several places between the blocks", Twice(), torch.randn(2, 4), blocks="block"
    )


def test_what_a_block_leaves_elsewhere_is_refused():
    left = {}

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x):
            left["x"] = x * 2
            return super().forward(x)

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = Layer(), nn.Linear(4, 4)

        def forward(self, x):
            return self.block(x) + self.last(left["x"])

    refusal(
        "'last' uses a tensor that is no argument, parameter or buffer, and that no block returns",
        Aside(),
        torch.randn(2, 4),
        blocks="block",
    )


def test_parts_that_give_something_else_than_the_model_are_refused():
    calls = []

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            calls.append(1)
            return self.block(x) * len(calls)

    refusal("the parts of the model give something else than the model", Counting(), torch.randn(2, 4), blocks="block")


def test_a_mask_that_is_dropped_where_it_hides_nothing_is_refused():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Layer()

        def forward(self, x, mask):
            return self.block(x, mask=None if bool(mask.all()) else mask.float())

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x, mask):
            return super().forward(x if mask is None else x * mask)

    example = {"x": torch.randn(2, 4), "mask": torch.tensor([[True, True, False, True]] * 2)}
    refusal(r"reads a number off a tensor .*\[samples, 1, 1, length\]", Masked(), example, blocks="block")


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


class Chain(nn.Module):
    """A stem, blocks and a head, with something between."""

    def __init__(self, block=nn.Linear):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(block(4, 4) for _ in range(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = self.stem(x)
        for block in self.blocks:
            h = self.between(x, h, block)
        return self.head(h)

    def between(self, x, h, block):
        return block(h)


class ByInput(Chain):
    def between(self, x, h, block):
        return block(-h if x.sum() > 0 else h)


class ByBlock(Chain):
    def between(self, x, h, block):
        return block(h) * (1.0 if float(h.detach().max()) < 100 else 2.0)


class ByChance(Chain):
    def between(self, x, h, block):
        return h if self.training and torch.rand(()) < 1e-6 else block(h)


class Counting(nn.Linear):
    def forward(self, x):
        return super().forward(x), x.shape[0]


class ByCount(Chain):
    def __init__(self):
        super().__init__(Counting)

    def between(self, x, h, block):
        h, count = block(h)
        return h / count


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (ByInput, "reads a number off a tensor between the blocks"),
        (ByBlock, "reads a number off a tensor between the blocks"),
        (ByChance, "decides by a random number what it does"),
        (ByCount, "returns a int that is another one for other samples"),
    ],
)
def test_a_forward_that_depends_on_more_than_tensors_is_refused(model, says):
    refusal(says, model(), torch.randn(2, 4), blocks="blocks")


def test_buffers_of_the_model_stay_as_they_are_also_where_its_forward_changes_them():
    model = Chain()
    with contextlib.suppress(SpaceError):  # what changes a buffer in evaluation is refused elsewhere
        convert(model, torch.randn(2, 4), blocks="blocks")
    assert model.calls == 0


def test_a_block_that_does_not_run_and_a_model_that_cannot_be_copied_are_refused():
    class Spare(Chain):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(4, 4)

    refusal("does not call the block 'spare'", Spare(), torch.randn(2, 4), blocks=["blocks", "spare"])

    class Uncopied(Chain):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    refusal(r"cannot be copied \(RuntimeError: no copies\)", Uncopied(), torch.randn(2, 4), blocks="blocks")
