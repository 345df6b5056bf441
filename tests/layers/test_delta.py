"""Gated DeltaNet: the recurrence, transformers' module, going on, documents; layers with states begin as attention."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from l2l_nas.layers import DeltaHeads, GatedDelta, Heads, SelfAttention, StateHeads, StateSpace, Style
from l2l_nas.layers.delta import delta_scan
from l2l_nas.layers.style import Residual

HIDDEN, COUNT, SIZE = 24, 3, 8
STYLE = Style(norm="rms", eps=1e-6, bias=False)
MIXERS = {
    "delta": partial(GatedDelta, HIDDEN, DeltaHeads(COUNT, SIZE, chunk=4), STYLE),
    "state_space": partial(StateSpace, HIDDEN, StateHeads(COUNT, size=SIZE, state=SIZE, groups=COUNT, chunk=4), STYLE),
}


def drawn(layer):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return layer.eval()


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_chunks_give_what_the_recurrence_does_token_by_token(chunk):
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 11, COUNT, SIZE, dtype=torch.float64) / SIZE**0.5
    decay, replaced = -torch.rand(2, 11, COUNT, dtype=torch.float64), torch.rand(2, 11, COUNT, dtype=torch.float64)
    decay[:, 6] = -torch.inf  # a document begins
    y, states = delta_scan(query, key, value, decay, replaced, chunk=chunk)
    state, expected = torch.zeros(2, COUNT, SIZE, SIZE, dtype=torch.float64), []
    for place in range(11):
        q, k, v = (part[:, place] for part in (query, key, value))
        state = state * decay[:, place, :, None, None].exp()
        read = torch.einsum("bhk,bhkv->bhv", k, state)
        state = state + torch.einsum("bhk,bhv->bhkv", k, replaced[:, place, :, None] * (v - read))
        expected.append(torch.einsum("bhk,bhkv->bhv", q, state))
    torch.testing.assert_close(y, torch.stack(expected, dim=1))
    torch.testing.assert_close(states, state)
    first, left = delta_scan(*(part[:, :5] for part in (query, key, value, decay, replaced)), chunk=chunk)
    second, after = delta_scan(
        *(part[:, 5:] for part in (query, key, value, decay, replaced)), states=left, chunk=chunk
    )
    torch.testing.assert_close(torch.cat((first, second), dim=1), y)
    torch.testing.assert_close(after, states)


def test_outputs_and_gradients_are_those_of_transformers():
    config = Qwen3NextConfig(
        hidden_size=HIDDEN, linear_num_value_heads=COUNT, linear_num_key_heads=COUNT, linear_key_head_dim=SIZE,
        linear_value_head_dim=SIZE, layer_types=["linear_attention"], num_hidden_layers=1, rms_norm_eps=1e-6,
    )  # fmt: skip
    theirs, ours = Qwen3NextGatedDeltaNet(config, 0), drawn(MIXERS["delta"]())
    parts = [part.weight.unflatten(0, (COUNT, SIZE)) for part in (ours.query, ours.key, ours.value, ours.gate)]
    small = [part.weight.unflatten(0, (COUNT, 1)) for part in (ours.replaced, ours.forgets)]
    state = {
        "in_proj_qkvz.weight": torch.cat(parts, dim=1).flatten(0, 1),
        "in_proj_ba.weight": torch.cat(small, dim=1).flatten(0, 1),
        "conv1d.weight": ours.conv.weight,
        "dt_bias": ours.step,
        "A_log": ours.decay,
        "norm.weight": ours.scale,
        "out_proj.weight": ours.out.weight,
    }
    theirs.load_state_dict(state)
    x = torch.randn(2, 13, HIDDEN, requires_grad=True)
    weights = torch.randn(2, 13, HIDDEN)
    found = []
    for outputs in (ours(x), x + theirs(ours.norm(x))):
        (gradient,) = torch.autograd.grad((outputs * weights).sum(), x)
        found.append((outputs, gradient))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
def test_it_goes_on_token_by_token_and_keeps_documents_apart(name):
    layer, x = drawn(MIXERS[name]()), torch.randn(2, 11, HIDDEN)
    with torch.no_grad():
        whole, cache, parts = layer(x), None, []
        for some in x.split([5, 1, 1, 4], dim=1):
            outputs, cache = layer.extend(some, cache)
            parts.append(outputs)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-4)
        documents = (torch.arange(11) >= 6).long().expand(2, 11)
        apart = layer(x, documents)
        torch.testing.assert_close(apart, torch.cat((layer(x[:, :6]), layer(x[:, 6:])), dim=1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("heads", [Heads(COUNT, size=SIZE, is_normed=True), Heads(COUNT, key_value=1, size=SIZE)])
@pytest.mark.parametrize("name", MIXERS)
def test_it_begins_nearer_to_attention_than_nothing_is(name, heads):
    attention, x = drawn(SelfAttention(HIDDEN, heads, STYLE)), torch.randn(16, 32, HIDDEN) + 1
    layer = MIXERS[name]().eval()
    with torch.no_grad():
        layer.begin_as(attention, (x[:12],))
        wanted = Residual.adds(attention, x[12:])
        left = (layer(x[12:]) - x[12:] - wanted).square().mean() / wanted.square().mean()
    assert left < 0.5
    for parameter in layer.parameters():
        assert parameter.isfinite().all()


@pytest.mark.parametrize("name", MIXERS)
def test_other_heads_are_refused(name):
    with pytest.raises(ValueError, match="attention of 6 heads of 4, not of 3 of 8"):
        MIXERS[name]().begin_as(SelfAttention(HIDDEN, Heads(6), STYLE), (torch.randn(1, 4, HIDDEN),))
