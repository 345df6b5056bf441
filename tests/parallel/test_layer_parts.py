"""Layers of every family on 2 and 4 real ranks: what they give, their gradients, dropout, and how often ranks meet.

Numbers: in float64 a divided layer equals the whole one to 1e-12 of its largest number, dropout on heads, units and
channels included. In float32 it is at most 3 times as far from that as the whole one in float32 is, which is the
control: sums of 2 or 4 parts are rounded otherwise.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas import collect_losses
from l2l_nas.parallel.collectives import GroupReducer, Ranks
from l2l_nas.parallel.split import split_module
from l2l_nas.space.split import Dropped, Experts, SplitPlan
from tests.parallel.families import FAMILIES, PLAN, Fused, inputs_of
from tests.parallel.processes import on_ranks

SIZES = (2, 4)
pytestmark = pytest.mark.slow


class Counting(GroupReducer):
    """Counts the sums and what they sum."""

    def __init__(self):
        super().__init__()
        self.sums = []

    def sum(self, tensor):
        self.sums.append(tuple(tensor.shape))
        super().sum(tensor)


def built(factory, dtype=torch.float64):
    torch.manual_seed(11)
    return factory().to(dtype)


def step(module, name, dtype):
    """Outputs, gradients by name, those of the inputs, and buffers of a forward and a backward in training."""
    inputs = [x.to(dtype).requires_grad_() for x in inputs_of(name)]
    torch.manual_seed(5)
    with collect_losses() as losses:
        output = module(*inputs)
    forward = len(getattr(module, "counted", []))
    weights = torch.linspace(-1, 1, output.numel(), dtype=dtype).view(output.shape)
    ((output * weights).sum() + sum(losses)).backward()
    after = torch.rand(3)
    return {
        "output": output.detach(),
        "forward": forward,
        **{f"input {index}": x.grad for index, x in enumerate(inputs)},
        **{f"gradient {key}": p.grad for key, p in module.named_parameters()},
        **{f"buffer {key}": b for key, b in module.named_buffers()},
        "numbers": after,
    }


def all_families():
    """Of each family, a step in float64 and one in float32."""
    reducer = Counting()
    results = {}
    for name, (factory, *_) in FAMILIES.items():
        for dtype in (torch.float64, torch.float32):
            module = built(factory, dtype)
            split_module(module, module.splits(), Ranks(reducer))
            reducer.sums.clear()
            object.__setattr__(module, "counted", reducer.sums)
            results[f"{name} {dtype}"] = step(module, name, dtype)
            results[f"{name} {dtype}"]["sums"] = len(reducer.sums)
    return results


@pytest.fixture(scope="module", params=SIZES)
def ran(request):
    return on_ranks(all_families, request.param)


def joined(plan, parts, key):
    """A gradient or a buffer by its name; outputs and gradients of inputs are alike on all ranks."""
    kind, _, name = key.partition(" ")
    if kind in ("gradient", "buffer"):
        return plan.join([part.get(key) for part in parts], name)
    for part in parts[1:]:
        assert torch.equal(part[key], parts[0][key]), f"{key} differs between ranks"
    return parts[0][key]


def far(one, other):
    """The largest difference over the largest number; gradients of keys' biases are zero but for rounding."""
    if not one.is_floating_point():
        return float((one != other).any())
    return float((one.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-2))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_divided_layer_is_the_whole_one(ran, name):
    factory, forward, backward = FAMILIES[name]
    exact, single = (step(built(factory, dtype), name, dtype) for dtype in (torch.float64, torch.float32))
    plan = SplitPlan(built(factory).splits(), len(ran))
    for dtype in (torch.float64, torch.float32):
        parts = [results[f"{name} {dtype}"] for results in ran]
        for key, expected in exact.items():
            if key == "forward":
                continue
            got = joined(plan, parts, key)
            if key == "numbers":
                assert torch.equal(got, expected), "what is drawn behind the layer is other than in one process"
            elif dtype == torch.float64:
                assert far(got, expected) < 1e-12, key
            else:
                assert far(got, expected) <= 3 * far(single[key], expected) + 1e-6, key
        assert {(part["forward"], part["sums"] - part["forward"]) for part in parts} == {(forward, backward)}


def fused_on_ranks():
    """Of the block: micro-batches in training with exact and with fast numbers, and one with a frozen column."""
    reducer = Counting()
    results = {"sums": []}
    for name, exact in (("exact", True), ("fast", False)):
        torch.manual_seed(0)
        block = split_module(Fused().double(), PLAN, Ranks(reducer), exact_random=exact)
        torch.manual_seed(4)
        for x in block_inputs():
            reducer.sums.clear()
            output = block(x.requires_grad_())
            forward = len(reducer.sums)
            output.sum().backward()
            results["sums"].append([forward, len(reducer.sums) - forward])
        results[name] = output.detach()
        results[f"{name} numbers"] = torch.rand(3)
        results[f"{name} gradients"] = {key: p.grad for key, p in block.named_parameters()}
    torch.manual_seed(4)
    masks = split_module(nn.Sequential(nn.Dropout(0.5)), {"0": Dropped()}, Ranks(reducer), exact_random=False)
    results["mask"] = masks(torch.ones(100))
    torch.manual_seed(4)
    results["again"] = masks(torch.ones(100))
    block.eval()
    reducer.sums.clear()
    with torch.no_grad():
        results["evaluated"] = block(block_inputs()[0])
    results["evaluation"] = len(reducer.sums)
    return results


def block_inputs():
    generator = torch.Generator().manual_seed(8)
    return [torch.randn(2, 6, 16, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.fixture(scope="module", params=SIZES)
def fused(request):
    return on_ranks(fused_on_ranks, request.param)


def test_a_block_has_two_sums_forward_and_two_backward_for_each_micro_batch(fused):
    for part in fused:
        assert part["sums"] == [[2, 2]] * 6
        assert part["evaluation"] == 2


def test_a_users_block_with_dropout_on_its_heads_is_that_of_one_process(fused):
    torch.manual_seed(0)
    block = Fused().double()
    torch.manual_seed(4)
    for x in block_inputs():
        output = block(x)
        output.sum().backward()
    plan = SplitPlan(PLAN, len(fused))
    assert all(far(part["exact"], output.detach()) < 1e-12 for part in fused)
    assert torch.equal(fused[0]["exact numbers"], torch.rand(3))
    for key, parameter in block.named_parameters():
        assert far(plan.join([part["exact gradients"][key] for part in fused], key), parameter.grad) < 1e-12, key
    block.eval()
    assert all(far(part["evaluated"], block(block_inputs()[0]).detach()) < 1e-12 for part in fused)


def test_fast_numbers_differ_between_ranks_inside_and_nowhere_else(fused):
    assert all(torch.equal(part["fast"], fused[0]["fast"]) for part in fused)
    assert not torch.equal(fused[0]["fast"], fused[0]["exact"])
    assert all(torch.equal(part["fast numbers"], fused[0]["fast numbers"]) for part in fused)
    masks = [tuple(part["mask"].tolist()) for part in fused]
    assert len(set(masks)) == len(fused)
    assert all(0.3 < sum(value > 0 for value in mask) / 100 < 0.7 for mask in masks)
    assert all(torch.equal(part["mask"], part["again"]) for part in fused)  # a recompute draws the same


class Skipping(nn.ModuleDict):
    """Experts of which only those run that a token chose, as users write them."""

    def forward(self, x, choices):
        total = torch.zeros_like(x)
        for name, expert in self.items():
            rows = (choices == int(name)).nonzero()[:, 0]
            if len(rows):
                total = total.index_add(0, rows, expert(x[rows]))
        return total


class Chosen(nn.Module):
    def __init__(self, chosen):
        super().__init__()
        self.before, self.chosen = nn.Linear(8, 8), chosen
        self.experts = Skipping({str(number): nn.Linear(8, 8) for number in range(4)})

    def forward(self, x):
        x = self.before(x)
        return x + self.experts(x, torch.tensor(self.chosen))


def gradients_of_chosen(reducer=None):
    """By which experts are chosen, the gradients of what stands before them, and of the first expert."""
    results = {}
    for chosen in ([0, 0, 0], [0, 1, 3], [3, 3, 3]):
        module = built(lambda chosen=chosen: Chosen(chosen))
        if reducer is not None:
            split_module(module, {"experts": Experts(4)}, Ranks(reducer))
        module(torch.linspace(-1, 1, 24, dtype=torch.float64).view(3, 8)).square().sum().backward()
        results[str(chosen)] = module.before.weight.grad
        if "0" in module.experts and 0 in chosen:
            results[f"{chosen} 0"] = module.experts["0"].weight.grad
    return results


def of_ranks():
    return gradients_of_chosen(GroupReducer())


@pytest.mark.parametrize("size", SIZES)
def test_experts_without_a_token_go_backward_with_the_others(size):
    expected = gradients_of_chosen()
    for found in on_ranks(of_ranks, size):
        assert {"[0, 0, 0]", "[0, 1, 3]", "[3, 3, 3]"} <= found.keys()
        assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-12) for name in found)
