"""Narrower feed-forward networks, and those of products, begin near the original."""

from __future__ import annotations

import pytest
import torch

from l2l_nas.layers import FeedForward, Style
from l2l_nas.layers.least_squares import Moments, shared_sums

X = torch.randn(64, 32, 12, generator=torch.Generator().manual_seed(0)) @ torch.randn(12, 12)


def network(width=48, *, activation="silu", is_gated=True, bias=False, rank=None):
    torch.manual_seed(1)
    return FeedForward(12, width, activation=activation, is_gated=is_gated, rank=rank, style=Style("rms", bias=bias))


def error(layer, original):
    with torch.no_grad():
        return float((layer(X[48:]) - original(X[48:])).square().sum() / (original(X[48:]) - X[48:]).square().sum())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_narrower_network_is_nearer_than_the_units_that_do_most(is_gated, bias):
    original, layer = network(is_gated=is_gated, bias=bias), network(24, is_gated=is_gated, bias=bias)
    plain = network(24, is_gated=is_gated, bias=bias)
    with torch.no_grad():
        layer.begin_as(original, (X[:48],))
        sizes = original.inner(original.before(X[:48])).abs().mean((0, 1)) * original.down.weight.norm(dim=0)
        best = sizes.topk(24).indices
        for name, value in original.state_dict().items():
            value = value[best] if name.startswith(("up", "gate")) else value
            plain.state_dict()[name].copy_(value[:, best] if name == "down.weight" else value)
    assert error(layer, original) < 0.7 * error(plain, original)


def test_units_that_are_the_same_become_one():
    original, layer = network(), network(24)
    with torch.no_grad():
        for one in (original.up, original.gate):
            one.weight[24:] = one.weight[:24]
        layer.begin_as(original, (X,))
    assert error(layer, original) < 1e-2  # which of two that are alike goes is a matter of rounding


@pytest.mark.parametrize(("activation", "is_gated"), [("silu", False), ("relu", True)])
def test_a_network_of_another_kind_is_fitted_on_what_itself_gives(activation, is_gated):
    original, layer = network(), network(activation=activation, is_gated=is_gated)
    before = network(activation=activation, is_gated=is_gated)
    with torch.no_grad():
        before.load_state_dict({name: original.state_dict()[name] for name in before.state_dict()})
        layer.begin_as(original, (X[:48],))
    assert error(layer, original) < 0.9 * error(before, original)


def test_products_know_what_they_take():
    flat = X @ torch.diag(torch.tensor([1.0] * 4 + [0.01] * 8))  # four numbers are large
    original, layer = network(), network(rank=5)
    with torch.no_grad():
        layer.begin_as(original, (flat,))
        rest = layer(flat) - original(flat)
        assert rest.square().sum() < 0.2 * (original(flat) - flat).square().sum()
        whole = network(rank=12)
        whole.begin_as(original, (flat,))
        torch.testing.assert_close(whole(flat), original(flat), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_that_begin_together_have_the_bits_of_those_that_begin_alone_and_sum_once(bias, monkeypatch):
    original, sums, of = network(bias=bias), [], Moments.of
    monkeypatch.setattr(Moments, "of", lambda *given: sums.append(given) or of(*given))
    options = [{"width": 32}, {"width": 24}, {"width": 8}, {"rank": 9}, {"rank": 6}, {"rank": 3}]

    def begun():
        layers = [network(bias=bias, **some) for some in options]
        for layer in layers:
            layer.begin_as(original, (X,))
        return [layer.state_dict() for layer in layers], len(sums)

    with torch.no_grad():
        alone, count = begun()
        sums.clear()
        with shared_sums():
            together, fewer = begun()
        with shared_sums():
            original.gate.weight.mul_(1.5)
            changed, _ = begun()
    assert count == 3 + 2 * 3
    assert fewer == 1 + 1 + 3  # behind matrices that are products, each is of its own
    for one, other, third in zip(alone, together, changed, strict=True):
        assert all(torch.equal(one[name], value) for name, value in other.items())
        last = next(name for name in one if name.startswith("down"))
        assert not torch.equal(one[last], third[last])  # nothing of the first ones is left
