"""Fewer keys and values than heads: exact where one says all of another, and nearer than means where not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from l2l_nas.layers import Heads, Rotary, SelfAttention, Style

X = torch.randn(32, 24, 24, generator=torch.Generator().manual_seed(0))
ROTARY = {"none": None, "whole": Rotary(100.0), "half": Rotary(100.0, share=0.5), "yarn": Rotary(100.0, kind="yarn")}


def attention(**options):
    torch.manual_seed(1)
    return SelfAttention(24, Heads(8, key_value=4, size=8, **options), Style("rms")).eval()


def merged(original, count):
    layer = SelfAttention(24, replace(original.heads, key_value=count), Style("rms")).eval()
    layer.begin_as(original, (X,))
    return layer


def error(layer, original):
    return float((layer(X) - original(X)).square().sum() / (original(X) - X).square().sum())


@torch.no_grad()
@pytest.mark.parametrize("rotary", ROTARY)
@pytest.mark.parametrize("count", [1, 2])
def test_heads_that_are_maps_of_one_another_become_one_without_a_loss(rotary, count):
    original = attention(rotary=ROTARY[rotary])
    turning = 0 if original.rotary is None else original.rotary.turning(8)
    for layer, free in ((original.value, 0), (original.key, turning)):
        first = torch.cat((layer.weight, layer.bias[:, None]), dim=1).unflatten(0, (4, 8))[0]
        heads = []
        for _ in range(4):
            change = torch.zeros(8, 8)
            change[free:, free:] = torch.randn(8 - free, 8 - free)
            for plane in range(free // 2):  # turned and stretched
                real, imaginary = torch.randn(2).tolist()
                places = torch.tensor([plane, plane + free // 2])
                change[places[:, None], places] = torch.tensor([[real, -imaginary], [imaginary, real]])
            heads.append(change @ first)
        both = torch.cat(heads)
        layer.weight.copy_(both[:, :-1])
        layer.bias.copy_(both[:, -1])
    layer = merged(original, count)
    assert error(layer, original) < 1e-6
    assert layer.key.weight.shape == layer.value.weight.shape == (count * 8, 24)
    plain = SelfAttention(24, layer.heads, Style("rms")).eval()
    plain.load_state_dict(layer.state_dict())
    plain.out.load_state_dict(original.out.state_dict())
    assert error(plain, original) > 0.01  # the last matrix takes the maps on


@torch.no_grad()
@pytest.mark.parametrize("rotary", ROTARY)
@pytest.mark.parametrize("options", [{}, {"is_normed": True}, {"is_normed_whole": True}], ids=str)
def test_merged_heads_are_nearer_than_means(rotary, options, monkeypatch):
    original = attention(rotary=ROTARY[rotary], **options)
    for one in original.parameters():
        one.add_(torch.randn(one.shape) * 0.2)
    layer = merged(original, 2)

    def means(self, other, _):
        state = other.state_dict()
        for name in state:
            if name.startswith(("key.", "value.")) or (name == "key_norm.weight" and other.heads.is_normed_whole):
                state[name] = state[name].unflatten(0, (2, 2, 8)).mean(1).flatten(0, 1)
        return state

    monkeypatch.setattr(SelfAttention, "_merged_heads", means)
    plain = merged(original, 2)
    assert torch.equal(layer.key.weight, plain.key.weight) == bool(options)  # those that have a norm
    for name in ("query", "key", "value", "out"):  # what trains them takes steps of one size
        own, other = (getattr(one, name).weight.square().mean().sqrt() for one in (layer, original))
        assert 0.3 < own / other < 3, name
    assert error(layer, original) < 0.9 * error(plain, original)
