"""Each family of ours is the published model: equal logits and gradients at small random configurations."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from l2l_nas import collect_losses
from l2l_nas.compress.families import TensorSource, family_of
from l2l_nas.errors import SpaceError
from l2l_nas.layers import Rotary

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 40}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
# caps of attention are in transformers' own attention alone
GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 5, "attn_implementation": "eager"}
MODELS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=40, activation_function="gelu_new")
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, rope_theta=5000.0)),
    "llama, tied": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, tie_word_embeddings=True)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=5)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**LLAMA, num_local_experts=4)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=12)),
    "qwen3 with windows": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**LLAMA, head_dim=12, **WINDOWS)),
    "llama, biased": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA, **WINDOWS)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**{**LLAMA, "num_key_value_heads": 1}, head_dim=12)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**LLAMA, **GEMMA, attn_logit_softcapping=2.0)),
    "gemma3": lambda: hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**LLAMA, **GEMMA, sliding_window_pattern=2)),
    "phi3": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(**LLAMA, sliding_window=5, pad_token_id=0, partial_rotary_factor=0.5)
    ),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**LLAMA, pad_token_id=0)),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(
        hf.GPTNeoXConfig(
            **SMALL, intermediate_size=48, max_position_embeddings=40, rotary_pct=0.5, attention_bias=False
        )
    ),
    "gpt_neox, one after the other": lambda: hf.GPTNeoXForCausalLM(
        hf.GPTNeoXConfig(**SMALL, intermediate_size=48, max_position_embeddings=40, use_parallel_residual=False)
    ),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL, intermediate_size=48, max_position_embeddings=40)),
}
# without token 0: to BERT of transformers that is padding, whose embedding is not trained
TOKENS = torch.randint(1, 61, (3, 17), generator=torch.Generator().manual_seed(0))


def as_stored(tensors):
    """Tensors of a module, as its files have them: transformers stacks what Mixtral stores by expert."""
    found = {}
    is_neox = any(name.startswith("gpt_neox.") for name in tensors)
    for name, tensor in tensors.items():
        name = "embed_out.weight" if is_neox and name == "lm_head.weight" else name
        name = name.replace(".mlp.gate.weight", ".block_sparse_moe.gate.weight")
        block, _, stacked = name.partition(".mlp.experts.")
        parts = {"down_proj": ["w2"], "gate_up_proj": ["w1", "w3"]}.get(stacked)
        if parts is None:
            found[name] = tensor
            continue
        for expert, matrices in enumerate(tensor):
            for part, matrix in zip(parts, matrices.chunk(len(parts)), strict=True):
                found[f"{block}.block_sparse_moe.experts.{expert}.{part}.weight"] = matrix
    return found


def published(name):
    torch.manual_seed(5)
    model = MODELS[name]().eval()
    with torch.no_grad():  # initial biases and norms are all alike
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def ours(model, without=()):
    """The pool's modules with the model's weights, by position; its config without these fields."""
    family = family_of({name: value for name, value in model.config.to_dict().items() if name not in without})
    tensors = as_stored(model.state_dict())
    modules, tied = {}, {}
    for position in family.positions:
        name, original = position.name, position.candidates[0]
        module = original.factory().eval()
        for parameter, value in module.named_parameters():
            if (name, parameter) in family.sources:
                value.data.copy_(family.sources[name, parameter].take(tensors[family.sources[name, parameter].name]))
        for parameter, group in original.tied.items():
            path, _, leaf = parameter.rpartition(".")
            tied.setdefault(group, module.get_parameter(parameter))
            setattr(module.get_submodule(path), leaf, tied[group])
        modules[name] = module
    return family, modules


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_transformers(name):
    model = published(name)
    family, modules = ours(model)
    x = TOKENS
    for module in modules.values():
        x = module(x)
    expected = model(input_ids=TOKENS).logits
    torch.testing.assert_close(x, expected, atol=2e-5, rtol=1e-5)
    weights = torch.randn_like(x)
    (x * weights).sum().backward()
    (expected * weights).sum().backward()
    theirs = as_stored({name: parameter.grad for name, parameter in model.named_parameters()})
    by_name = {}
    for (position, parameter), source in family.sources.items():
        by_name.setdefault(source.name, []).append((source, modules[position].get_parameter(parameter).grad))
    for published_name, parts in by_name.items():
        found = TensorSource.give(*zip(*parts, strict=True))
        scale = theirs[published_name].abs().max()
        torch.testing.assert_close(found / scale, theirs[published_name] / scale, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_config_does_not_say_is_as_transformers_has_it(name):
    model = published(name)
    given, default = model.config.to_dict(), type(model.config)().to_dict()
    said = {"model_type", "hidden_act", "activation_function"}
    unsaid = {key for key, value in given.items() if key not in said and key in default and value == default[key]}
    _, modules = ours(model, without={*unsaid, "layer_types"})
    x = TOKENS
    for module in modules.values():
        x = module(x)
    torch.testing.assert_close(x, model(input_ids=TOKENS).logits, atol=2e-5, rtol=1e-5)


def test_a_mistral_that_does_not_say_how_far_it_sees_sees_as_far_as_that_of_transformers():
    config = hf.MistralConfig(**LLAMA).to_dict()
    assert config.pop("sliding_window") == family_of(config).positions[1].candidates[0].factory.args[1].window


@pytest.mark.parametrize(
    "kind",
    [hf.MistralConfig, hf.MixtralConfig, hf.Qwen3Config, hf.GemmaConfig, hf.Gemma2Config, hf.Gemma3TextConfig],
)
def test_heads_of_a_config_that_does_not_say_how_many_and_how_large_are_those_of_transformers(kind):
    about = kind(**{**LLAMA, "hidden_size": 256, "num_attention_heads": 64}).to_dict()
    config = {key: value for key, value in about.items() if key not in ("num_key_value_heads", "head_dim")}
    heads = family_of(config).positions[1].candidates[0].factory.args[1]
    assert heads.key_value == kind().num_key_value_heads
    assert heads.size == (about["head_dim"] or 256 // 64)
    assert family_of({**config, "num_key_value_heads": None}).positions[1].candidates[0].factory.args[1].key_value == 64


ROPE = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
    "llama3": {**LLAMA_3, "original_max_position_embeddings": 16, "rope_theta": 500.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "rope_theta": 500.0},
    "yarn, weighed": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": False},
    "yarn, scaled": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8, "beta_fast": 4.0, "beta_slow": 0.5},
}


@pytest.mark.parametrize("old", [False, True], ids=["as now", "as of old"])
@pytest.mark.parametrize("name", ROPE)
def test_rotary_positions_of_each_kind_are_those_of_transformers(name, old):
    config = hf.LlamaConfig(**{**LLAMA, "head_dim": 16}, rope_parameters=dict(ROPE[name]))
    theirs = LlamaRotaryEmbedding(config)(torch.ones(1), torch.arange(40)[None])
    about = config.to_dict()
    if old:
        scaling = {key: value for key, value in ROPE[name].items() if key not in ("rope_type", "rope_theta")}
        del about["rope_parameters"]
        about["rope_theta"] = ROPE[name].get("rope_theta", 10_000.0)
        about["rope_scaling"] = {"type": ROPE[name]["rope_type"], **scaling}
    rotary = family_of(about).positions[1].candidates[0].factory.args[1].rotary
    ours = rotary.table(0, 40, size=16, like=torch.ones(1))
    torch.testing.assert_close(torch.stack(ours), torch.cat(theirs), atol=1e-5, rtol=1e-5)


def test_layers_of_a_gemma_3_turn_by_the_base_of_their_kind():
    old = {"rope_theta": 1e5, "rope_local_base_freq": 1e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    config = hf.Gemma3TextConfig(**LLAMA, **GEMMA, sliding_window_pattern=2, **old)
    for about in (
        config.to_dict(),
        {**LLAMA, **GEMMA, "model_type": "gemma3_text", "sliding_window_pattern": 2, **old},
    ):
        positions = family_of(about).positions
        found = [positions[index].candidates[0].factory.args[1].rotary for index in (1, 3)]
        assert found == [Rotary(1e3), Rotary(1e5, kind="linear", factor=8.0)]


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_the_published_model_is_ours_once(name):
    model = published(name)
    family, modules = ours(model)
    known = {source.name for source in family.sources.values()}
    wanted = set(as_stored(dict(model.named_parameters())))
    assert known == wanted
    held = {
        (position, parameter)
        for position, module in modules.items()
        for parameter, value in module.named_parameters()
        if (value is modules["embedding"].token.weight and (position, parameter) == ("embedding", "token.weight"))
        or value is not modules["embedding"].token.weight
    }
    assert held == set(family.sources)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
@pytest.mark.parametrize("cuts", [[17], [1] * 17, [5, 1, 4, 7]])
def test_token_by_token_gives_what_the_whole_gives(name, cuts):
    _, modules = ours(published(name))
    whole, caches, found = TOKENS, {}, []
    for module in modules.values():
        whole = module(whole)
    with torch.no_grad():
        for part in TOKENS.split(cuts, dim=1):
            x = part
            for position, module in modules.items():
                if hasattr(module, "extend"):
                    x, caches[position] = module.extend(x, caches.get(position))
                else:
                    x = module(x)
            found.append(x)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_the_router_s_loss_is_that_of_transformers_in_each_layer(layers):
    torch.manual_seed(2)
    config = hf.MixtralConfig(
        **{**LLAMA, "num_hidden_layers": layers},
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    model = hf.MixtralForCausalLM(config)
    _, modules = ours(model)
    x, added = TOKENS, []
    for module in modules.values():
        with collect_losses() as losses:
            x = module.train()(x)
        added += losses
    router_logits = model(input_ids=TOKENS).router_logits
    means = [load_balancing_loss_func((logits,), 4, 2) for logits in router_logits]
    torch.testing.assert_close(sum(added), 0.5 * sum(means) / layers)


def test_a_window_s_cache_does_not_grow():
    _, modules = ours(published("mistral"))
    cache, x = None, torch.randn(2, 30, 32)
    for part in x.split(1, dim=1):
        _, cache = modules["attention_0"].extend(part, cache)
    assert cache[0].shape[2] == 4


def test_documents_do_not_see_each_other():
    _, modules = ours(published("qwen3"))
    documents = torch.tensor([[0] * 6 + [1] * 11] * 3)
    x = modules["embedding"](TOKENS)
    given = modules["attention_0"](x, documents)
    alone = modules["attention_0"](x[:, :6])
    torch.testing.assert_close(given[:, :6], alone)
    changed = x.clone()
    changed[:, :6] += 1
    torch.testing.assert_close(modules["attention_0"](changed, documents)[:, 6:], given[:, 6:])
    assert not torch.allclose(modules["attention_0"](changed)[:, 6:], modules["attention_0"](x)[:, 6:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "lama"}, "'model_type' is 'lama'; did you mean 'llama'"),
        ({"hidden_size": 1.5}, "hidden_size is 1.5, expected a whole number"),
        ({"max_position_embeddings": float("inf")}, "max_position_embeddings is inf"),
        ({"attention_dropout": 7}, "attention_dropout is 7"),
        ({"tie_word_embeddings": "x"}, "tie_word_embeddings is 'x'"),
        ({"hidden_act": {"a": 1}}, "'hidden_act' is .*; known are gelu"),
        ({"rope_parameters": "x"}, "rope_parameters is 'x', expected values by name"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta is 1000"),
        ({"rope_parameters": None, "rope_theta": 0}, "rope_theta is 0, expected a number above 0"),
        ({"layer_types": [["linear"]] * 3}, "'layer_types' are"),
        ({"num_hidden_layers": 20000}, "'num_hidden_layers' is 20000; expected at most 10000"),
        ({"num_key_value_heads": 3}, "4 attention heads of 8 with 3 of keys and values; these divide them"),
        ({"num_attention_heads": 64, "num_key_value_heads": 64}, "64 attention heads for a width of 32"),
        ({"pretraining_tp": 2}, "'pretraining_tp' is 2, of which only 1 is known here"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "of type 'dynamic'; known are default, linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters: factor is missing"),
        ({"rope_parameters": {"rope_type": ["linear"]}}, r"of type \['linear'\]"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            "rope_parameters is .*, expected the same of all",
        ),
        ({"rope_parameters": {**LLAMA_3, "high_freq_factor": 0.5}}, "high_freq_factor is 0.5, expected more than low"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 0.5}},
            "factor is 0.5, expected .* at least 1",
        ),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is 0.5, of which only 1"),
        ({"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.4}}, "what turns of sizes is even"),
        ({"model_type": "phi3", "rope_parameters": {"rope_type": "longrope"}}, "'longrope'; known are default;?$"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "'num_experts_per_tok' is 2, but there are 1 experts"),
        ({"model_type": "mixtral", "num_hidden_layers": 9999, "num_local_experts": 64}, "is 64, .* from 1 to 26"),
        ({"layer_types": ["linear"] * 3}, "'layer_types' are .*; known are full_attention"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "'rope_scaling' is .* beside 'rope_parameters'"),
        (
            {"model_type": "gemma3_text", "rope_parameters": None, "attn_logit_softcapping": 50.0},
            "'attn_logit_softcapping' is 50.0, which is",
        ),
        ({"of_tomorrow": 3}, "'of_tomorrow' is 3, which is not known"),
    ],
)
def test_a_configuration_that_is_not_known_is_refused_by_name(change, words):
    config = hf.LlamaConfig(**LLAMA).to_dict()
    with pytest.raises(SpaceError, match=words):
        family_of({**config, **change})
