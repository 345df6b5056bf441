"""Linear maps in place of sub-layers: what they compute, and reduced-rank regression by singular values."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from l2l_nas.layers import FeedForward, LowRankMap, Style
from l2l_nas.layers.least_squares import shared_sums

X = torch.randn(64, 32, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(12, 12)


def plain(layer, x, style):
    first, second = layer.map
    normed = x if style.is_post else functional.layer_norm(x, (12,), layer.norm.weight, layer.norm.bias)
    added = normed @ first.weight.t() @ second.weight.t() + second.bias
    if style.is_added_normed:
        added = functional.layer_norm(added, (12,), layer.added_norm.weight, layer.added_norm.bias)
    return functional.layer_norm(x + added, (12,), layer.norm.weight, layer.norm.bias) if style.is_post else x + added


@pytest.mark.parametrize("style", [Style(), Style(is_post=True), Style(is_added_normed=True)])
def test_it_adds_a_product_of_two_matrices_and_has_its_gradients(style):
    layer = LowRankMap(12, 3, style=style)
    for one in layer.parameters():
        torch.nn.init.normal_(one, generator=torch.Generator().manual_seed(1))
    weights = torch.randn(2, 32, 12)
    gradients = []
    for call in (lambda x: layer(x, torch.zeros(2, 32, dtype=torch.int64)), lambda x: plain(layer, x, style)):
        given = call(X[:2])
        gradients.append((given, *torch.autograd.grad((given * weights).sum(), [*layer.parameters()])))
    torch.testing.assert_close(*gradients, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_no_map_of_its_rank_is_nearer_to_the_sub_layer(bias):
    torch.manual_seed(1)
    style = Style("rms", bias=bias)
    original, layer = FeedForward(12, 48, style=style), LowRankMap(12, 4, style=style)
    with torch.no_grad():
        for one in original.parameters():
            one.add_(torch.randn(one.shape) * 0.2)
        layer.begin_as(original, (X,))
        taken, given = original.before(X).flatten(0, 1).double(), original.adds(X).flatten(0, 1).double()
        means = (taken.mean(0), given.mean(0)) if bias else (0, 0)
        about, sums = taken - means[0], given - means[1]
        fitted = about @ torch.linalg.lstsq(about, sums).solution
        values = torch.linalg.svdvals(fitted)
        least = (sums - fitted).square().sum() + values[4:].square().sum()
        found = (layer.adds(X).flatten(0, 1) - given).square().sum()
    assert least * 0.9999 < found < least * 1.001
    assert values[4:].square().sum() > 0.01 * least


@torch.no_grad()
def test_a_map_begins_the_same_behind_one_that_has_no_bias():
    torch.manual_seed(1)
    original = FeedForward(12, 48)
    original.down.bias.add_(3)
    with shared_sums():
        for bias in (False, True):
            layer = LowRankMap(12, 4, style=Style(bias=bias))
            layer.begin_as(original, (X,))
    alone = LowRankMap(12, 4)
    alone.begin_as(original, (X,))
    torch.testing.assert_close(layer.state_dict(), alone.state_dict())


def test_a_rank_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a rank is at least 1, got 0"):
        LowRankMap(12, 0)
