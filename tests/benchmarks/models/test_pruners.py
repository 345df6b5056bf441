"""Each way to prune, on a small network of Llama's kind with random weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from benchmarks.models import pruners
from benchmarks.models.pruners import PRUNERS, units
from benchmarks.models.pruners.blocks import num_gone, shortgpt
from benchmarks.models.pruners.features import watched
from benchmarks.models.pruners.llama import (
    PlainAttention,
    PlainBlock,
    PlainFeedForward,
    PlainLlama,
    PlainNorm,
    Sublayer,
    num_layer_parameters,
    plain_llama,
    sublayers,
)
from benchmarks.models.pruners.rotation import sliced, width_within
from benchmarks.models.pruners.units import flap, llm_pruner, one_width, wanda_sp
from l2l_nas.errors import SettingError
from l2l_nas.layers import FeedForward, Heads, SelfAttention, Style

HIDDEN, BLOCKS, WIDTH, GROUPS = 32, 10, 96, 4
WHOLE_BLOCKS = ("shortgpt", "effect", "random")
IN_UNITS = ("flap", "wanda_sp", "llm_pruner", "uniform")


@pytest.fixture(scope="module")
def whole() -> PlainLlama:
    torch.manual_seed(0)
    style = Style(norm="rms", bias=False, deviation=0.15)
    blocks = []
    for _ in range(BLOCKS):
        attention = SelfAttention(HIDDEN, Heads(8, key_value=GROUPS, size=8, rotary=10000.0), style)
        network = FeedForward(HIDDEN, WIDTH, activation="silu", is_gated=True, style=style)
        parts = [PlainAttention(attention), PlainFeedForward(network)]
        blocks.append(PlainBlock(*(Sublayer(norm(), part) for part in parts)))
    token = nn.Embedding(1500, HIDDEN)
    return PlainLlama(token, blocks, norm()).eval()


def norm() -> PlainNorm:
    return PlainNorm(0.5 + torch.rand(HIDDEN), eps=1e-5)


@pytest.fixture
def network(whole) -> PlainLlama:
    return copy.deepcopy(whole)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(1500, (6, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [name for name in PRUNERS if name != "slicegpt"])
def test_nothing_removed_changes_nothing(name, network, whole, tokens):
    assert torch.equal(PRUNERS[name](network, tokens, 0.0)(tokens), whole(tokens))


@pytest.mark.parametrize("share", [0.15, 0.25, 0.4])
@pytest.mark.parametrize("name", IN_UNITS)
def test_as_much_is_removed_as_is_asked(name, share, network, whole, tokens):
    before = num_layer_parameters(whole)
    pruned = PRUNERS[name](network, tokens, share)
    assert num_layer_parameters(pruned) == pytest.approx((1 - share) * before, abs=0.003 * before)
    assert pruned(tokens).isfinite().all()


@pytest.mark.parametrize("name", WHOLE_BLOCKS)
def test_as_many_blocks_go_as_are_within_the_share(name, network, tokens):
    pruned = PRUNERS[name](network, tokens, 0.25)
    assert len(pruned.blocks) == 8
    assert pruned(tokens).isfinite().all()


def test_a_share_of_tenths_is_not_rounded_down(network):
    assert [num_gone(network, share) for share in (0.29, 0.3, 0.7)] == [2, 3, 7]


def test_blocks_with_the_least_influence_go(network, tokens):
    for place in (2, 7):
        for layer in (network.blocks[place].attention, network.blocks[place].feed_forward):
            layer.body.last.weight.data.mul_(1e-3)
    left = [block for place, block in enumerate(network.blocks) if place not in (2, 7)]
    assert shortgpt(network, tokens, 0.2).blocks == left


def test_the_block_that_does_nothing_is_the_one_of_least_effect(network):
    """For text that the network itself wrote; of other text it knows nothing with any of its blocks."""
    for layer in (network.blocks[4].attention, network.blocks[4].feed_forward):
        layer.body.last.weight.data.zero_()
    text = torch.arange(8)[:, None]
    for _ in range(16):
        text = torch.cat((text, network(text)[:, -1:].argmax(dim=-1)), dim=1)
    left = network.blocks[:4] + network.blocks[5:]
    assert pruners.least_effect(network, text, 0.1).blocks == left


def test_a_stream_that_is_turned_and_not_sliced_computes_the_same(network, whole, tokens):
    turned = sliced(network, tokens, HIDDEN)
    torch.testing.assert_close(turned(tokens), whole(tokens), atol=1e-4, rtol=1e-4)
    assert (turned.into.weight - torch.eye(HIDDEN)).abs().max() > 0.1


def test_rotations_are_not_trained(network, tokens):
    fixed = {name for name, one in sliced(network, tokens, 20).named_parameters() if not one.requires_grad}
    assert len(fixed) == 2 * BLOCKS + 2
    assert all(name.startswith(("into", "back")) or ".carry." in name for name in fixed)


def test_a_sliced_stream_has_the_parameters_that_were_reckoned(network, whole, tokens):
    before, width = num_layer_parameters(whole), width_within(whole, 0.3)

    def off(wide: int) -> float:
        return abs(num_layer_parameters(sliced(copy.deepcopy(whole), tokens, wide)) - 0.7 * before)

    assert off(width) < min(off(width - 1), off(width + 1))


def test_components_that_are_sliced_off_are_those_that_hold_nothing(network, tokens):
    """A stream that lies in 20 of 32 dimensions may have a width of 20."""
    basis = torch.linalg.qr(torch.randn(HIDDEN, 20, generator=torch.Generator().manual_seed(3))).Q
    network.token.weight.data = network.token.weight.data @ basis @ basis.T
    for layer in sublayers(network):
        layer.body.last.weight.data = basis @ basis.T @ layer.body.last.weight.data
    expected = network(tokens)
    torch.testing.assert_close(sliced(network, tokens, 20)(tokens), expected, atol=1e-4, rtol=1e-4)


def test_features_have_the_means_and_variances_of_their_values(network, tokens):
    layer = network.blocks[1].feed_forward.body.down
    with watched([layer]) as (found,):
        network(tokens[:3])
        network(tokens[3:])
    with torch.no_grad():
        body, x = network.blocks[1].feed_forward, network.blocks[0](network.embed(tokens))
        normed = body.norm(network.blocks[1].attention(x))
        values = (functional.silu(body.body.gate(normed)) * body.body.up(normed)).flatten(0, 1).double()
    assert found.count == tokens.numel()
    torch.testing.assert_close(found.mean, values.mean(dim=0), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.variance, values.var(dim=0, correction=0), atol=1e-6, rtol=1e-5)


def test_features_that_never_change_are_replaced_by_a_bias_exactly(network, tokens):
    body = network.blocks[3].feed_forward.body
    for layer in body.first:
        layer.bias = nn.Parameter(torch.zeros(WIDTH))
        layer.weight.data[5:15] = 0
        layer.bias.data[5:15] = 2.0
    expected = network(tokens)
    with watched([body.down]) as (found,):
        network(tokens)
    units._keep(body, [*range(5), *range(15, WIDTH)], means=found.mean)
    torch.testing.assert_close(network(tokens), expected, atol=1e-5, rtol=1e-4)
    assert body.down.bias.abs().max() > 0.1


def test_flap_removes_of_each_sublayer_what_fluctuates_least(network, tokens):
    """Units that never change, and units that nothing comes of, before all others."""
    for block in network.blocks:
        body = block.feed_forward.body
        for layer in body.first:
            layer.bias = nn.Parameter(torch.zeros(WIDTH))
            layer.weight.data[20:25] = 0
            layer.bias.data[20:25] = 2.0
        body.down.weight.data[:, 25:30] = 0
    for block in flap(network, tokens, 0.1).blocks:
        body = block.feed_forward.body
        left = int((body.up.weight == 0).all(dim=1).sum() + (body.down.weight == 0).all(dim=0).sum())
        assert left == max(0, 10 - (WIDTH - len(body.up.weight)))


def test_flap_gives_sublayers_different_sizes(network, tokens):
    pruned = flap(network, tokens, 0.4)
    assert len({block.feed_forward.body.down.in_features for block in pruned.blocks}) > 1


def test_attention_without_heads_gives_its_bias(network, tokens):
    body = network.blocks[0].attention.body
    units._keep(body, [], means=torch.ones(body.out.in_features, dtype=torch.float64))
    states = torch.randn(2, 3, HIDDEN)
    assert torch.equal(body(states), body.out.bias.expand(2, 3, HIDDEN))


@pytest.mark.parametrize("prune", [wanda_sp, one_width])
def test_units_that_give_nothing_go_first(prune, network, whole, tokens):
    """As many are dead in each block as the share of it comes to."""
    for block in network.blocks:
        block.feed_forward.body.up.weight.data[20:30] = 0
    expected, dead = network(tokens), 10 * 3 * HIDDEN * BLOCKS
    pruned = prune(network, tokens, dead / num_layer_parameters(whole))
    torch.testing.assert_close(pruned(tokens), expected, atol=1e-4, rtol=1e-4)


def test_wanda_judges_by_what_the_pruned_blocks_before_give(network, tokens, monkeypatch):
    seen = []
    wanda = units._wanda
    monkeypatch.setattr(units, "_wanda", lambda body, features: seen.append(features.squares) or wanda(body, features))
    mixed = copy.deepcopy(network)
    mixed.layers = nn.ModuleList([*wanda_sp(network, tokens, 0.4).blocks[:5], *mixed.blocks[5:]])
    with watched([mixed.blocks[5].attention.body.out, mixed.blocks[5].feed_forward.body.down]) as expected:
        mixed(tokens)
    for found, one in zip(seen[10:12], expected, strict=True):
        torch.testing.assert_close(found, one.squares, rtol=1e-5, atol=1e-6)


def test_the_criterion_of_llm_pruner_is_the_sum_over_coupled_weights(network, tokens):
    logits = network(tokens)[:, :-1].flatten(0, 1)
    functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum").backward()
    body = network.blocks[5].attention.body
    found = units._taylor(body)
    rows = {layer: 16 if layer is body.query else 8 for layer in body.first}
    expected = sum((layer.weight * layer.weight.grad)[n : 2 * n].abs().sum() for layer, n in rows.items())
    expected = expected + (body.out.weight * body.out.weight.grad)[:, 16:32].abs().sum()
    assert found.shape == (GROUPS,)
    torch.testing.assert_close(found[1], expected)


def test_llm_pruner_leaves_the_first_four_and_the_last_two_blocks_whole(network, tokens):
    pruned = llm_pruner(network, tokens, 0.15)
    sizes = [block.feed_forward.body.down.in_features for block in pruned.blocks]
    assert [size == WIDTH for size in sizes] == [True] * 4 + [False] * 4 + [True] * 2


def test_groups_of_heads_keep_the_ratio_of_queries_to_keys(network, tokens):
    for block in wanda_sp(network, tokens, 0.4).blocks:
        body = block.attention.body
        assert body.groups < GROUPS
        assert body.query.out_features == 2 * body.key.out_features == 2 * body.value.out_features


SIZES = {"vocab_size": 60, "num_hidden_layers": 2, "max_position_embeddings": 64}
OF_LLAMA = {
    **SIZES,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "tie_word_embeddings": True,
}


def saved(model: Any, folder: Path) -> str:
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, 1.0, 0.2)
    model.save_pretrained(folder)
    return f"hf:{folder}"


def test_a_published_model_gives_the_logits_of_transformers(tmp_path, tokens):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**OF_LLAMA)).eval()
    network = plain_llama(saved(model, tmp_path))
    torch.testing.assert_close(network(tokens % 60), model(tokens % 60).logits)
    sizes = [parameter.numel() for parameter in model.model.layers.parameters()]
    assert num_layer_parameters(network) == sum(sizes) + 32


OF_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "layer_types": ["sliding_attention", "full_attention"]}


def gemma(folder: Path, *, window: int = 512) -> tuple[str, Any]:
    config = transformers.Gemma3TextConfig(**OF_LLAMA, **OF_GEMMA, sliding_window=window)
    model = transformers.Gemma3ForCausalLM(config).eval()
    return saved(model, folder), model


def test_a_model_of_gemma_gives_the_logits_of_transformers(tmp_path, tokens):
    name, model = gemma(tmp_path)
    network = plain_llama(name)
    torch.testing.assert_close(network(tokens % 60), model(tokens % 60).logits)
    sizes = [sum(parameter.numel() for parameter in one.parameters()) for one in (network, model)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", sorted(PRUNERS.keys() - {"slicegpt"}))
def test_a_model_of_gemma_is_pruned(name, tmp_path, tokens):
    whole = plain_llama(gemma(tmp_path)[0])
    size = num_layer_parameters(whole)
    network = PRUNERS[name](copy.deepcopy(whole), tokens % 60, 0.5)
    assert 0.35 * size < num_layer_parameters(network) < 0.65 * size
    assert network(tokens % 60).isfinite().all()


def test_a_model_of_gemma_has_norms_that_rotations_do_not_pass_through(tmp_path, tokens):
    with pytest.raises(SettingError, match="slicegpt: this model's sub-layers have norms behind them"):
        PRUNERS["slicegpt"](plain_llama(gemma(tmp_path)[0]), tokens % 60, 0.5)


def test_a_model_that_sees_fewer_tokens_than_are_measured_is_refused(tmp_path):
    with pytest.raises(SettingError, match="models of Llama's kind"):
        plain_llama(gemma(tmp_path, window=8)[0])


def test_a_model_of_another_kind_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=60, n_layer=2, n_embd=32, n_head=4, n_positions=64)
    with pytest.raises(SettingError, match="models of Llama's kind"):
        plain_llama(saved(transformers.GPT2LMHeadModel(config), tmp_path))


def test_a_model_whose_head_has_a_table_of_its_own_is_refused(tmp_path):
    config = transformers.LlamaConfig(**{**OF_LLAMA, "tie_word_embeddings": False})
    with pytest.raises(SettingError, match="one table of tokens"):
        plain_llama(saved(transformers.LlamaForCausalLM(config), tmp_path))
