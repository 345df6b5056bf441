"""Whole pools on ranks that share their layers: the relay and the param-server of each are as ever.

Losses and weights are compared with those of one process, and with a control: one process whose gradients are summed in
another order (`chunks=2`), which differs from it by rounding alone.
"""

from __future__ import annotations

import importlib.util
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import (
    SGD,
    Candidate,
    Classification,
    Column,
    FirstWeights,
    LayerPool,
    ParamServer,
    Position,
    Relay,
    TensorSpec,
    Vocabulary,
    skip,
)
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SpaceError
from l2l_nas.layers import Embedding, FeedForward, InvertedResidual
from l2l_nas.parallel.collectives import GroupReducer, Ranks, Unjoined
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.split_tokens import SplitTokens
from l2l_nas.training.task import Tokens
from tests.parallel.processes import on_ranks
from tests.parallel.test_vocabulary import Largest

SPACES = Path(l2l_nas.__file__).parents[1] / "search_spaces"
TOKENS, LENGTH, STEPS, BATCH = 29, 8, 3, 8
_TEXT = {"vocabulary": TOKENS, "length": LENGTH, "hidden": 32, "depth": 2, "heads": 8}
BUILT = {
    "gpt2": _TEXT,
    "bert": _TEXT,
    "llama": {**_TEXT, "key_value": 4},
    "hybrid": _TEXT,
    "digits_conv": {"channels": 8, "depth": 4},
    "inverted": {},
}


def ranks_of(rank, size):
    return Ranks(Unjoined(rank, size))


def _head():
    return nn.Sequential(nn.Flatten(), nn.Linear(16 * 4 * 4, 10))


def inverted():
    """MobileNet's blocks, whose weights no other candidates share."""

    def block(channels, width, **options):
        return Candidate(f"width_{width}", partial(InvertedResidual, channels, width, 3, **options))

    squeezed = {"activation": "hardswish", "is_squeezed": True}
    positions = [
        Position("stem", Candidate("conv", partial(nn.Conv2d, 1, 8, 3, padding=1))),
        Position("one", [block(8, 8), block(8, 32, **squeezed)]),
        Position("two", [block(8, width, out=16, stride=2) for width in (16, 24)]),
        Position("three", [block(16, 32, **squeezed), skip()]),
        Position("head", Candidate("mean", _head)),
    ]
    return LayerPool(positions, inputs=TensorSpec((1, 8, 8)))


def space(name, **options):
    if name == "inverted":
        return inverted()
    spec = importlib.util.spec_from_file_location(f"space_{name}", SPACES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(**{**BUILT[name], **options})


def trained(pool, names, *, precision="fp32", chunks=None, task=None):
    """Losses, and weights by state and name, of steps with another architecture each."""
    server = ParamServer(pool, optimizer=SGD(), seed=5)
    relay = Relay(server, device="cpu", seed=3, update="exact", precision=precision, chunks=chunks, resident=None)
    generator = torch.Generator().manual_seed(1)
    is_text = pool.inputs[0].dtype == torch.int64
    task = task or (Tokens() if is_text else Classification())
    losses = []
    for step, choices in enumerate(names):
        if is_text:
            x = torch.randint(0, TOKENS, (BATCH, LENGTH), generator=generator)
            y = torch.randint(-1, TOKENS, (BATCH, LENGTH), generator=generator)
        else:
            x = torch.randn(BATCH, *pool.inputs[0].shape, generator=generator)
            y = torch.randint(0, 10, (BATCH,), generator=generator)
        architecture = pool.architecture(choices)
        losses.append(relay.train_step(architecture, (x,), y, objective=task, micro_batch=2, lr=0.3, step=step).loss)
    relay.drain()
    keys = sorted(server.visited)
    weights = {key: {n: t.clone() for n, t in server.state(key).parameters().items()} for key in keys}
    buffers = {key: {n: t.clone() for n, t in server.state(key).named_buffers().items()} for key in keys}
    return {"losses": losses, "weights": weights, "buffers": buffers}


def split_logits():
    """Losses and weights with a divided task, and how many numbers the largest tensor of a step had."""
    ranks = Ranks(GroupReducer())
    pool = space("gpt2", vocabulary=1001, hidden=8, heads=4)
    parts = SplitPool(pool, ranks, gather_logits=False).parts
    with Largest() as seen:
        result = trained(parts, paths(pool)[:2], task=SplitTokens(ranks, 1001))
    return {**result, "largest": seen.numel}


def paths(pool):
    chooser = random.Random(2)
    return [[chooser.choice(position.candidates).name for position in pool.positions] for _ in range(STEPS)]


def spaces_on_ranks(precision):
    ranks = Ranks(GroupReducer())
    results = {}
    for name in BUILT if precision == "fp32" else ("gpt2",):
        whole = space(name)
        split = SplitPool(whole, ranks)
        results[name] = trained(split.parts, paths(whole), precision=precision)
    return results


@pytest.fixture(scope="module", params=(2, pytest.param(4, marks=pytest.mark.long)))
def ran(request):
    return on_ranks(spaces_on_ranks, request.param, "fp32", timeout_s=150, is_checked=False)


def furthest(split, parts, expected, what):
    """The largest difference of any weight, once parts are joined; and those that differ between ranks."""
    worst, unlike = 0.0, []
    for key, tensors in expected[what].items():
        for name, tensor in tensors.items():
            pieces = [part[what][key].get(name) for part in parts]
            got = split.join(key, name, pieces)
            assert got.shape == tensor.shape
            worst = max(worst, float((got.double() - tensor.double()).abs().max()) if tensor.numel() else 0.0)
            if split.is_whole(key, name) and any(not torch.equal(piece, pieces[0]) for piece in pieces):
                unlike.append((key, name))
    return worst, unlike


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_a_divided_pool_trains_as_in_one_process(ran, name):
    pool = space(name)
    size, parts = len(ran), [results[name] for results in ran]
    one, control = trained(pool, paths(pool)), trained(pool, paths(pool), chunks=2)
    split = SplitPool(pool, ranks_of(0, size))
    assert all(part["losses"] == parts[0]["losses"] for part in parts)
    far = max(abs(a - b) for a, b in zip(parts[0]["losses"], one["losses"], strict=True))
    control_far = max(abs(a - b) for a, b in zip(control["losses"], one["losses"], strict=True))
    print(f"{name} on {size}: losses {far:.1e}, control {control_far:.1e}")
    assert far <= 4 * control_far + 2e-6
    for what in ("weights", "buffers"):
        worst, unlike = furthest(split, parts, one, what)
        control_worst, _ = furthest(SplitPool(pool, ranks_of(0, 1)), [control], one, what)
        print(f"{what} {worst:.1e}, control {control_worst:.1e}")
        assert unlike == []
        assert worst <= 4 * control_worst + 2e-6


@pytest.mark.slow
def test_logits_of_a_divided_task_are_never_gathered_in_a_step_of_training():
    parts = on_ranks(split_logits, 2, is_checked=False)
    pool = space("gpt2", vocabulary=1001, hidden=8, heads=4)
    one = trained(pool, paths(pool)[:2])
    assert parts[0]["losses"] == parts[1]["losses"] == pytest.approx(one["losses"], abs=2e-6)
    worst, unlike = furthest(SplitPool(pool, ranks_of(0, 2)), parts, one, "weights")
    assert worst < 2e-6
    assert unlike == []
    # the logits of half of the tokens, of a micro-batch of 2; a rank builds an embedding whole before it takes its part
    assert [part["largest"] for part in parts] == [2 * LENGTH * 501, max(2 * LENGTH * 500, 8 * 1001)]


@pytest.mark.slow
def test_low_precision_is_that_of_one_process_but_for_rounding():
    parts = [one["gpt2"] for one in on_ranks(spaces_on_ranks, 2, "bf16", is_checked=False)]
    pool = space("gpt2")
    one, exact = trained(pool, paths(pool), precision="bf16"), trained(pool, paths(pool))
    assert parts[0]["losses"] == parts[1]["losses"]
    control = max(abs(a - b) for a, b in zip(one["losses"], exact["losses"], strict=True))
    assert max(abs(a - b) for a, b in zip(parts[0]["losses"], exact["losses"], strict=True)) <= 4 * control + 1e-3
    split = SplitPool(pool, ranks_of(0, 2))
    worst, unlike = furthest(split, parts, exact, "weights")
    assert unlike == []
    assert worst <= 4 * furthest(SplitPool(pool, ranks_of(0, 1)), [one], exact, "weights")[0]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", BUILT)
def test_the_parts_of_a_pool_have_the_bytes_that_are_left_to_divide(name, size):
    pool = space(name)
    splits = [SplitPool(pool, ranks_of(rank, size)) for rank in range(size)]
    assert check_shapes(splits[0].parts).outputs == check_shapes(pool).outputs
    for key in pool.states:
        whole = {entry.name: entry for entry in layout_of(pool, key).parameters}
        parts = [{entry.name: entry for entry in layout_of(split.parts, key).parameters} for split in splits]
        for name_of, entry in whole.items():
            sizes = [part[name_of].numel if name_of in part else 0 for part in parts]
            is_whole = splits[0].is_whole(key, name_of)
            assert sum(sizes) == entry.numel * (size if is_whole else 1), (key, name_of)
            assert [split.holds(key, name_of, rank) for rank, split in enumerate(splits)] == [one > 0 for one in sizes]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", BUILT)
def test_first_weights_are_the_parts_of_those_of_one_process_to_the_bit(name, size):
    pool = space(name)
    server = ParamServer(pool, optimizer=SGD(), seed=5)
    splits = [SplitPool(pool, ranks_of(rank, size)) for rank in range(size)]
    servers = [ParamServer(split.parts, optimizer=SGD(), seed=5) for split in splits]
    for key in pool.states:
        for kind in ("parameters", "named_buffers"):
            parts = [getattr(one.state(key), kind)() for one in servers]
            for name_of, tensor in getattr(server.state(key), kind)().items():
                pieces = [part.get(name_of) for part in parts]
                assert torch.equal(splits[0].join(key, name_of, pieces), tensor), (key, name_of)
                for rank, piece in enumerate(pieces):
                    taken = splits[0].take(key, name_of, tensor, rank)
                    assert (piece is None) == (taken is None)
                    assert piece is None or torch.equal(piece, taken)


def test_layers_of_one_kind_share_templates():
    pool = space("gpt2")
    parts = SplitPool(pool, ranks_of(1, 2)).parts
    of = {layer.key: layer.candidate for layer in parts.layers}
    assert of["attention_0/heads_8"].kind == of["attention_1/heads_8"].kind
    assert of["attention_0/heads_8"].kind != of["attention_0/heads_4"].kind


def test_one_rank_has_the_pool_itself():
    pool = space("gpt2")
    assert SplitPool(pool, ranks_of(0, 1)).parts is pool


def test_what_is_left_whole_is_told():
    assert SplitPool(space("hybrid"), ranks_of(0, 2)).left_whole == (
        "attention_0/state_space",
        "attention_1/state_space",
        "norm/rms",
    )
    assert SplitPool(space("gpt2"), ranks_of(0, 2)).left_whole == ("norm/layer",)


@pytest.mark.parametrize(
    ("name", "gathers"), [("gpt2", False), ("bert", False), ("llama", False), ("digits_conv", True)]
)
def test_scores_stay_apart_where_all_of_the_last_layers_divide_them(name, gathers):
    pool = space(name)
    split = SplitPool(pool, ranks_of(0, 2), gather_logits=None)
    assert split.gathers_logits is gathers
    (whole,), (part,) = check_shapes(pool).outputs, check_shapes(split.parts).outputs
    assert (part == whole) is gathers
    assert SplitPool(pool, ranks_of(0, 1), gather_logits=None).gathers_logits


def test_scores_are_put_together_where_a_last_layer_is_whole():
    heads = [
        Candidate("divided", partial(nn.Linear, 4, 12), split={"": Vocabulary()}),
        Candidate("whole", partial(nn.Linear, 4, 12)),
    ]
    pool = LayerPool([Position("head", heads)], inputs=TensorSpec((4,)))
    split = SplitPool(pool, ranks_of(0, 2), gather_logits=None)
    assert split.gathers_logits
    assert check_shapes(split.parts).outputs == check_shapes(pool).outputs


def test_layers_made_from_cells_of_a_larger_one_are_whole():
    pool = space("gpt2", elastic=True)
    split = SplitPool(pool, ranks_of(0, 2))
    assert {key for key in split.plans if split.plans[key].splits} == {"embedding/learned", "head/tied"}
    assert split.is_whole("tied/feedforward_0.up.weight.0-0", "weight")


def test_sizes_that_do_not_divide_are_refused_by_layer_or_left_whole():
    pool = space("gpt2", heads=4)
    said = (
        "position 'attention_0': candidate 'heads_2': 'query.weight' has 2 units of 16 to divide among 4 ranks; 2 "
        "would divide it"
    )
    with pytest.raises(SpaceError) as caught:
        SplitPool(pool, ranks_of(0, 4))
    assert str(caught.value) == said
    split = SplitPool(pool, ranks_of(0, 4), is_lenient=True)
    assert str(split.refused["attention_0/heads_2"]) == said
    assert list(split.refused) == ["attention_0/heads_2", "attention_1/heads_2"]
    assert split.left_whole == ("attention_0/heads_2", "attention_1/heads_2", "norm/layer")


def test_a_candidate_says_how_it_is_divided_and_is_never_left_whole():
    network = partial(FeedForward, 6, 10)

    def pool_of(split):
        return LayerPool([Position("p", Candidate("c", network, split=split))], inputs=TensorSpec((6,)))

    assert SplitPool(pool_of({}), ranks_of(0, 2)).left_whole == ("p/c",)
    assert SplitPool(pool_of(None), ranks_of(0, 2)).left_whole == ()
    with pytest.raises(SpaceError, match=r"'up\.weight' has 10 to divide among 4 ranks"):
        SplitPool(pool_of({"up": Column()}), ranks_of(0, 4), is_lenient=True)


def tied_pool(embedding, head):
    places = [
        Position("embedding", Candidate("e", partial(Embedding, 11, 4), {"token.weight": "token"}, split=embedding)),
        Position("head", Candidate("h", partial(nn.Linear, 4, 11, bias=False), {"weight": "token"}, split=head)),
    ]
    return LayerPool(places, inputs=TensorSpec((3,), torch.int64))


def test_shared_parameters_are_divided_alike_or_whole():
    by_tokens = {"": Vocabulary()}
    assert not SplitPool(tied_pool(None, by_tokens), ranks_of(0, 2)).is_whole("tied/token", "weight")
    split = SplitPool(tied_pool(None, None), ranks_of(0, 2))  # the head says nothing: the embedding follows it
    assert split.is_whole("tied/token", "weight")
    assert split.left_whole == ("embedding/e", "head/h")
    with pytest.raises(SpaceError, match="'weight' is the parameter 'token' of other layers, too, and 'embedding/e'"):
        SplitPool(tied_pool({}, by_tokens), ranks_of(0, 2))


def test_weights_from_elsewhere_are_read_whole_and_taken_in_parts():
    torch.manual_seed(0)
    source = dict(FeedForward(6, 8).named_parameters())
    weights = FirstWeights(lambda name: source[name].detach(), "mine")
    place = Position("p", Candidate("c", partial(FeedForward, 6, 8), weights=weights))
    pool = LayerPool([place], inputs=TensorSpec((6,)))
    splits = [SplitPool(pool, ranks_of(rank, 2)) for rank in range(2)]
    states = [ParamServer(split.parts, optimizer=SGD(), seed=1).state("p/c") for split in splits]
    for name, tensor in source.items():
        assert torch.equal(splits[0].join("p/c", name, [state.parameters()[name] for state in states]), tensor)


class Says(nn.Linear):
    def __init__(self, said):
        super().__init__(4, 4)
        self.said = said

    def splits(self):
        return self.said


class Keeps(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.splits = [1, 2]


def test_what_a_module_says_of_itself_is_checked():
    def left(factory):
        pool = LayerPool([Position("p", Candidate("c", factory))], inputs=TensorSpec((4,)))
        return SplitPool(pool, ranks_of(0, 2)).left_whole

    assert left(partial(Says, {"": Column()})) == ()
    assert left(Keeps) == ("p/c",)
    with pytest.raises(SpaceError, match="position 'p': candidate 'c': its method splits returned 5, expected a dict"):
        left(partial(Says, 5))
