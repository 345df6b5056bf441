"""What divides a module: its parts, and what is refused. No other rank is there; `test_layer_parts.py` has those."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from l2l_nas.errors import SpaceError
from l2l_nas.layers import Heads, MixtureOfExperts, Routing, SelfAttention
from l2l_nas.parallel.collectives import Ranks, Unjoined
from l2l_nas.parallel.split import split_factory, split_module
from l2l_nas.space.split import (
    Attribute,
    Column,
    Dropped,
    Experts,
    Grouped,
    KeyValue,
    Row,
    SplitPlan,
    Vocabulary,
)
from tests.parallel.families import FAMILIES, PLAN, WHOLE, Fused, inputs_of


def built_alone(factory, rank, size, splits=None, **how):
    torch.manual_seed(0)
    module = factory()
    return split_module(module, module.splits() if splits is None else splits, Ranks(Unjoined(rank, size)), **how)


def test_shapes_are_those_of_the_whole_on_meta_where_nothing_is_exchanged():
    for name, (factory, *_) in FAMILIES.items():
        with torch.device("meta"):
            module = factory()
            split_module(module, module.splits(), Ranks(Unjoined(1, 4)))
            inputs = [x.to("meta").requires_grad_() for x in inputs_of(name)]
        if name in ("experts", "gated experts"):
            continue  # which experts take a token is data
        output = module(*inputs)
        with torch.device("meta"):
            assert output.shape == factory()(*inputs).shape
        output.sum().backward()
        assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_plan_says_so(name):
    splits = getattr(WHOLE[name](), "splits", dict)()
    assert splits == {}


def test_sizes_that_modules_show_are_those_of_their_parts():
    block = built_alone(Fused, 1, 4, PLAN)
    assert (block.heads, block.qkv.out_features, block.out.in_features) == (1, 12, 4)
    assert isinstance(block.qkv, nn.Linear)
    assert type(block.qkv).__name__ == "ByColumnsLinear"
    squeezed = built_alone(FAMILIES["squeezed"][0], 0, 2)
    assert (squeezed.depthwise.groups, squeezed.depthwise.in_channels, squeezed.after.num_features) == (16, 16, 16)
    space = built_alone(FAMILIES["state space"][0], 0, 2)
    assert (space.heads.count, space.heads.groups, space.inner, space.mixed) == (4, 2, 32, 48)


def test_a_copy_of_a_part_is_a_part_of_the_same_ranks():
    block = built_alone(Fused, 1, 4, PLAN)
    other = copy.deepcopy(block)
    assert other.qkv.ranks is block.qkv.ranks
    assert torch.equal(other.qkv.weight, block.qkv.weight)
    assert other.qkv.weight is not block.qkv.weight


def test_a_factory_gives_parts_and_leaves_a_module_that_exists_as_it_is():
    existing = Fused()
    before = {name: tensor.clone() for name, tensor in existing.state_dict().items()}
    part = split_factory(lambda: existing, PLAN, Ranks(Unjoined(1, 2)))
    assert type(existing) is Fused
    assert all(torch.equal(tensor, before[name]) for name, tensor in existing.state_dict().items())
    plan = SplitPlan(PLAN, 2)
    for name, parameter in part.named_parameters():
        assert torch.equal(parameter, plan.take(before[name], name, 1))
        assert parameter.untyped_storage().data_ptr() != existing.get_parameter(name).untyped_storage().data_ptr()


def test_a_tensor_with_two_names_is_divided_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
            self.second.weight = self.first.weight

    part = built_alone(Twice, 0, 2, {"first": Column(), "second": Column()})
    assert part.first.weight is part.second.weight
    with pytest.raises(SpaceError, match=r"'first\.weight' and 'second\.weight' are one tensor; divide both alike"):
        built_alone(Twice, 0, 2, {"first": Column()})


def test_frozen_parts_stay_frozen():
    class Frozen(Fused):
        def __init__(self):
            super().__init__()
            self.up.weight.requires_grad_(False)

    part = built_alone(Frozen, 0, 2, PLAN)
    assert not part.up.weight.requires_grad
    assert part.up.bias.requires_grad


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


def made(**parts):
    return lambda: nn.ModuleDict(parts)


@pytest.mark.parametrize(
    ("factory", "splits", "said"),
    [
        (Fused, {"upp": Column()}, "it has no part 'upp'; did you mean 'up'?"),
        (Fused, {"dropout": Attribute()}, "'dropout' is 0.2; Attribute() divides a whole number"),
        (Fused, {"heads.count": Attribute()}, "'heads.count' leads through a int, which is no dataclass"),
        (Fused, {"norm": Column()}, "'norm' is a LayerNorm; Column() divides Linear, Conv1d, Conv2d, Conv3d"),
        (Fused, {"up": Grouped()}, "'up' is no grouped convolution, so Grouped() cannot divide it"),
        (Fused, {"up": KeyValue(4, 4)}, "'up' has 40 outputs, but KeyValue(heads=4, unit=4)"),
        (Fused, {"up": Dropped()}, "'up' is a Linear; Dropped() divides Dropout"),
        (Fused, {"up.weight": Row()}, "'up.weight' is a parameter, which is divided by Channels()"),
        (Fused, {"qkv": Column(parts=3, unit=8)}, "'qkv.weight' has 2 units of 8 to divide among 4 ranks; 2 would"),
        (made(a=OwnForward(4, 4)), {"a": Row()}, "'a' is a OwnForward with a forward of its own"),
        (
            made(a=nn.Conv2d(4, 4, 1, groups=2)),
            {"a": Column()},
            "'a' is a grouped convolution, which Grouped()",
        ),
        (made(a=nn.Conv2d(6, 6, 1, groups=6)), {"a": Grouped()}, "'a' has 6 to divide among 4 ranks; 2, 3 or 6"),
        (made(a=nn.Embedding(8, 2, max_norm=1.0)), {"a": Vocabulary()}, "'a' is more than a plain nn.Embedding"),
        (
            made(a=nn.Embedding(8, 2, scale_grad_by_freq=True)),
            {"a": Vocabulary()},
            "'a' is more than a plain nn.Embedding",
        ),
        (made(a=nn.ModuleList([nn.Identity()])), {"a": Experts(1)}, "'a' has no forward, which Experts() needs"),
        (partial(MixtureOfExperts, 4, 4, routing=Routing(6)), None, "'experts' has 6 experts to divide among 4 ranks"),
        (
            partial(SelfAttention, 24, Heads(12, key_value=3)),
            None,
            "'key' has 3 heads to divide among 4 ranks; 3",
        ),
        (made(a=weight_norm(nn.Linear(4, 4))), {"a": Column()}, "the weights of 'a' are made from others"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_names_it(factory, splits, said):
    with pytest.raises(SpaceError) as caught:
        built_alone(factory, 0, 4, splits)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
