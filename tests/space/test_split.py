"""Plans of divided layers: parts and wholes of tensors, to the bit, without any process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.eps.identity import fingerprint, space_of
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.space.split import (
    Attribute,
    Channels,
    Column,
    Experts,
    Grouped,
    KeyValue,
    Row,
    SplitPlan,
    Vocabulary,
    Within,
    under,
)

# by name: the rule, a tensor's name and its shape, of which 4 ranks have a quarter each
DIVIDED = {
    "column": (Column(), "weight", (8, 3)),
    "bias of a column": (Column(), "bias", (8,)),
    "three in one": (Column(parts=3, unit=2), "weight", (24, 3)),
    "unequal parts": (Column(parts=(4, 8, 12)), "weight", (24, 3)),
    "row": (Row(unit=2), "weight", (3, 16)),
    "row of a convolution": (Row(), "weight", (3, 8, 5, 5)),
    "row of two in one": (Row(parts=2), "weight", (3, 16)),
    "depthwise": (Grouped(), "weight", (8, 1, 3, 3)),
    "channels": (Channels(), "running_mean", (4,)),
    "a parameter itself": (Channels(unit=2), "", (8,)),
    "keys": (KeyValue(heads=4, unit=3), "weight", (12, 5)),
    "tokens": (Vocabulary(), "weight", (12, 3)),
}
WHOLE = {
    "bias of a row": (Row(), "bias"),
    "shared keys": (KeyValue(heads=2, unit=3), "weight"),
    "norm of each head": (Within(), "weight"),
    "counter": (Channels(), "num_batches_tracked"),
}


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_that_are_joined_are_the_whole_to_the_bit(name, size):
    rule, leaf, shape = DIVIDED[name]
    whole = torch.randn(shape)
    parts = [rule.take(whole, leaf, rank, size) for rank in range(size)]
    assert torch.equal(rule.join(parts, leaf), whole)
    assert [part.numel() for part in parts] == [whole.numel() // size] * size
    assert not rule.is_whole(leaf, size)
    if rule.dim(leaf, size) is not None:
        rule.check(leaf, shape[rule.dim(leaf, size)], size)


def test_three_in_one_are_each_divided_by_heads():
    rule = Column(parts=3, unit=2)
    whole = torch.arange(12)  # two heads of two numbers, of queries, keys and values
    assert rule.take(whole, "bias", 0, 2).tolist() == [0, 1, 4, 5, 8, 9]
    assert rule.take(whole, "bias", 1, 2).tolist() == [2, 3, 6, 7, 10, 11]


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_divided_is_whole_on_every_rank(name):
    rule, leaf = WHOLE[name]
    whole = torch.randn(6, 5)
    parts = [rule.take(whole, leaf, rank, 4) for rank in range(4)]
    assert all(torch.equal(part, whole) for part in parts)
    assert torch.equal(rule.join(parts, leaf), whole)
    assert rule.is_whole(leaf, 4)


def test_more_ranks_than_heads_of_keys_share_the_head_that_their_queries_use():
    rule = KeyValue(heads=2, unit=3)
    assert [rule.outputs(rank, 4) for rank in range(4)] == [(0, 3), (0, 3), (3, 6), (3, 6)]
    assert not rule.is_whole("weight", 2)
    assert rule.is_whole("weight", 4)


@given(st.integers(1, 300), st.integers(1, 9))
@settings(deadline=None)
def test_any_vocabulary_is_divided_among_any_ranks(tokens, size):
    rule = Vocabulary()
    whole = torch.randn(tokens, 2)
    if tokens < size:
        with pytest.raises(SpaceError, match=f"at most {tokens} ranks"):
            rule.check("weight", tokens, size)
        return
    parts = [rule.take(whole, "weight", rank, size) for rank in range(size)]
    assert torch.equal(rule.join(parts, "weight"), whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert list(map(len, parts)) == sorted(map(len, parts), reverse=True)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(deadline=None)
def test_parts_of_any_widths_are_joined(size, unit, others, counts):
    whole = torch.randn(sum(counts) * unit * size, others)
    rule = Column(parts=tuple(count * unit * size for count in counts), unit=unit)
    rule.check("weight", len(whole), size)
    parts = [rule.take(whole, "weight", rank, size) for rank in range(size)]
    assert torch.equal(rule.join(parts, "weight"), whole)
    across = Row(parts=rule.parts, unit=unit)
    parts = [across.take(whole.T, "weight", rank, size) for rank in range(size)]
    assert torch.equal(across.join(parts, "weight"), whole.T)


def test_an_expert_is_whole_on_one_rank_and_nothing_on_others():
    plan = SplitPlan({"experts": Experts(4)}, 2)
    whole = torch.randn(3, 2)
    assert [plan.holds("experts.2.up.weight", rank) for rank in range(2)] == [False, True]
    parts = [plan.take(whole, "experts.2.up.weight", rank) for rank in range(2)]
    assert parts[0] is None
    assert torch.equal(plan.join(parts, "experts.2.up.weight"), whole)
    assert not plan.is_whole("experts.2.up.weight")
    assert plan.is_whole("router.weight")


def test_the_nearest_part_that_is_named_decides():
    plan = SplitPlan({"": Within(), "block.up": Column(), "block.scale": Channels(), "block.experts": Experts(2)}, 2)
    names = ("block.up.weight", "block.scale", "block.experts.0.up.bias", "block.upper.weight", "norm.weight")
    rules = [plan.rule_of(name) for name in names]
    assert rules == [
        (Column(), "weight"),
        (Channels(), ""),
        (Experts(2), "0.up.bias"),
        (Within(), "block.upper.weight"),
        (Within(), "norm.weight"),
    ]
    assert SplitPlan({"up": Column()}, 2).is_whole("down.weight")
    assert under("a", {"": Within(), "b": Column()}) == {"a": Within(), "a.b": Column()}


@pytest.mark.parametrize(
    ("rule", "length", "size", "said"),
    [
        (Column(), 6, 4, "'up.weight' has 6 to divide among 4 ranks; 2, 3 or 6 would divide it"),
        (Column(unit=4), 24, 4, "'up.weight' has 6 units of 4 to divide among 4 ranks; 2, 3 or 6 would divide it"),
        (Column(parts=3, unit=2), 12, 4, "'up.weight' has 2 units of 2 to divide among 4 ranks; 2 would divide it"),
        (Column(), 1, 2, "'up.weight' has 1 to divide among 2 ranks; only 1 would divide it"),
        (Column(unit=5), 12, 2, "12 are not whole units of 5; give unit= that divides them"),
        (Column(parts=5), 12, 2, "12 are not 5 parts of one width; give parts= that are"),
        (KeyValue(6, 4), 24, 4, "6 heads to divide among 4 ranks; 2, 3 or 6 would divide it, and multiples of 6 would"),
        (Experts(6), 6, 4, "'up.weight' has 6 experts to divide among 4 ranks; 2, 3 or 6 would divide it"),
        (Vocabulary(), 3, 4, "'up.weight' has 3 tokens to divide among 4 ranks; at most 3 ranks can"),
    ],
)
def test_sizes_that_ranks_do_not_divide_are_refused_with_those_that_would(rule, length, size, said):
    with pytest.raises(SpaceError) as caught:
        rule.check("up.weight", length, size)
    assert said in str(caught.value)


def test_a_number_is_divided():
    assert Attribute().divided("heads", 12, 4) == 3
    with pytest.raises(SpaceError, match="'heads' has 12 to divide among 5 ranks; 2, 3, 4, 6 or 12 would"):
        Attribute().divided("heads", 12, 5)


@pytest.mark.parametrize("wrong", [{"up": "column"}, {"up": Column}, {3: Column()}, [Column()], {"up": None}])
def test_a_plan_of_something_else_is_refused(wrong):
    with pytest.raises(SettingError, match="Candidate 'c': split"):
        Candidate("c", nn.Identity, split=wrong)


@pytest.mark.parametrize("make", [lambda: Column(parts=0), lambda: Column(unit=0), lambda: Experts(0)])
def test_counts_below_one_are_refused(make):
    with pytest.raises(SettingError):
        make()


def pool_of(**options):
    return LayerPool([Position("p", Candidate("c", nn.Identity, **options))], inputs=TensorSpec((4,)))


def test_a_plan_changes_nothing_of_what_a_pool_is():
    plain, planned = pool_of(), pool_of(split={"": Within()})
    assert fingerprint(plain) == fingerprint(planned)
    assert space_of(plain) == space_of(planned)
    assert plain.layers[0].candidate.kind == planned.layers[0].candidate.kind


def test_a_shared_layer_has_one_plan():
    positions = [Position(name, Candidate("c", nn.Identity, split=split)) for name, split in (("a", {}), ("b", None))]
    with pytest.raises(SpaceError, match="another factory, ties, weights or split"):
        LayerPool(positions, inputs=TensorSpec((4,)), shared=True)
