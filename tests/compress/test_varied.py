"""A network whose layers differ goes out as `transformers`' own model, and is read again without running its code."""

from __future__ import annotations

import importlib
import inspect
import json
from types import SimpleNamespace

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from l2l_nas import plain_module
from l2l_nas.compress.pool import published_pool
from l2l_nas.compress.varied import model_of
from l2l_nas.errors import SpaceError
from l2l_nas.training.export import ExportError
from tests.compress.code_cache import use_code_cache
from tests.compress.test_families import MODELS, TOKENS
from tests.compress.test_found import GROUPED, exported

MIXED = ["original", "original", "original", "skip", "linear_8", "width_24"]
# products, windows, maps, fewer heads where a config cannot say their size
OTHERS = ["window_4", "rank_8", "skip", "linear_8", "heads_2", "original"]


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory):
    """Code of folders is copied to a place of its own."""
    with pytest.MonkeyPatch.context() as patch:
        use_code_cache(patch, tmp_path_factory.mktemp("modules"))
        yield


def varied(tmp_path, name, choices=None, **how):
    """A network as a folder, as `transformers` loads it, and what it should give for `TOKENS`."""
    smaller = dict.fromkeys(("ranks", "windows", "heads"), ())
    if choices is not None:
        smaller |= {"windows": [4], "heads": [2]} | ({} if name == "mixtral" else {"ranks": [0.25]})
    elif name in GROUPED:
        smaller["heads"] = [2]
    if choices is None:
        choices = list(MIXED)
        choices[0] = "heads_2" if name in GROUPED else "original"
    else:
        choices = [choice.replace("rank_8", "width_24") if name == "mixtral" else choice for choice in choices]
        choices[4] = "original" if name == "gemma" else choices[4]  # it has as many heads as it may
    if name == "gpt_neox":  # whose blocks are one position
        choices = ["linear_8", choices[5].replace("original", "rank_8"), choices[0].replace("original", "width_24")]
    choices = [choice.replace("width_24", "width_64") if name == "gpt2" else choice for choice in choices]
    export, expected = exported(tmp_path / "model", name, choices, tmp_path / "out", ["hugging_face"], smaller=smaller)
    assert not export.refused
    assert export.formats["hugging_face"].difference == 0
    assert "are those of transformers" in export.formats["hugging_face"].compared
    auto = hf.AutoModelForMaskedLM if name == "bert" else hf.AutoModelForCausalLM
    model, about = auto.from_pretrained(tmp_path / "out", trust_remote_code=True, output_loading_info=True, **how)
    assert not any(about.values())
    return model.eval(), expected


def is_near(got, expected):
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("choices", [None, OTHERS], ids=["widths", "others"])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_runs_it_and_it_is_read_again_without_its_code(tmp_path, name, choices, attention):
    if name == "gemma2" and attention == "sdpa":
        pytest.skip("transformers caps attention in eager attention alone")
    model, expected = varied(tmp_path, name, choices, attn_implementation=attention)
    with torch.no_grad():
        is_near(model(input_ids=TOKENS).logits, expected)
        pool = published_pool(f"hf:{tmp_path / 'out'}", length=17, widths=[0.5])
        is_near(plain_module(pool, pool.original)(TOKENS), expected)
    assert {"skip"} < {one.name for place in pool.positions for one in place.candidates}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
def test_padding_on_either_side_changes_no_logits_of_others(tmp_path, name):
    model, expected = varied(tmp_path, name, OTHERS, attn_implementation="eager")
    rows, mask = torch.zeros(3, 20, dtype=torch.int64), torch.zeros(3, 20, dtype=torch.int64)
    for row, start in enumerate((0, 3, 2)):
        rows[row, start : start + 17], mask[row, start : start + 17] = TOKENS[row], 1
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        got = model(input_ids=rows, attention_mask=mask, position_ids=places).logits
    is_near(got[mask.bool()], expected.flatten(0, 1))


def test_a_masked_language_model_does_not_see_padding(tmp_path):
    model, expected = varied(tmp_path, "bert")
    rows = torch.cat((TOKENS, TOKENS[:, :3]), dim=1)
    mask = (torch.arange(20) < 17).long().expand(3, 20)
    labels = torch.where(torch.arange(20) == 4, rows, -100)
    with torch.no_grad():
        given = model(input_ids=rows, attention_mask=mask, labels=labels)
    is_near(given.logits[:, :17], expected)
    is_near(given.loss, cross_entropy(expected[:, 4], TOKENS[:, 4]))


@pytest.mark.slow
@pytest.mark.parametrize("choices", [None, OTHERS], ids=["widths", "others"])
@pytest.mark.parametrize("name", ["llama, tied", "gpt2", "qwen3 with windows", "mixtral", "gemma2"])
def test_it_writes_the_same_with_and_without_a_cache(tmp_path, name, choices):
    model, _ = varied(tmp_path, name, choices)
    how = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    calls = []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, given: calls.append(given[0].shape[1]))
    for more in ({}, {"num_beams": 3}):
        with_cache = model.generate(TOKENS[:, :6], **how, **more)
        assert calls[1:] == [1] * 8
        assert torch.equal(model.generate(TOKENS[:, :6], use_cache=False, **how, **more), with_cache)
        calls.clear()
    alone = model.generate(TOKENS[:1, :4], **how)
    rows = torch.stack((torch.cat((torch.zeros(2, dtype=torch.int64), TOKENS[0, :4])), TOKENS[1, :6]))
    padded = model.generate(rows, attention_mask=(rows != 0).long(), **how)
    assert torch.equal(padded[0, 2:], alone[0])
    assert torch.equal(padded[1], model.generate(TOKENS[1:2, :6], **how)[0])


def test_a_first_layer_without_attention_counts_tokens_in_the_cache_too(tmp_path):
    model, _ = varied(tmp_path, "llama, tied", ["skip", "original", "window_4", "original", "original", "width_24"])
    how = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    whole = model.generate(TOKENS[:, :6], use_cache=False, **how)
    assert torch.equal(model.generate(TOKENS[:, :6], **how), whole)


def test_it_takes_what_a_model_of_transformers_takes(tmp_path):
    """Embeddings in place of tokens, masks of four dimensions, hidden states, another number of tokens."""
    model, expected = varied(tmp_path, "llama, tied", OTHERS)
    mask = torch.ones(17, 17, dtype=torch.bool).tril().expand(3, 1, 17, 17)
    with torch.no_grad():
        is_near(model(inputs_embeds=model.get_input_embeddings()(TOKENS)).logits, expected)
        is_near(model(input_ids=TOKENS, attention_mask=mask).logits, expected)
        assert len(model(input_ids=TOKENS, output_hidden_states=True).hidden_states) == 4
        model.set_attn_implementation("eager")
        is_near(model(input_ids=TOKENS).logits, expected)
        model.resize_token_embeddings(70, mean_resizing=False)
        is_near(model(input_ids=TOKENS).logits[..., :61], expected)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert (model.config.num_attention_heads, model.config.vocab_size) == (4, 70)


def test_an_attention_that_cannot_have_a_window_of_its_own_is_refused():
    windowed = importlib.import_module("l2l_nas.compress.modeling").windowed
    hook = windowed(SimpleNamespace(_attn_implementation="flash_attention_2"), 0, 4)
    with pytest.raises(ValueError, match="need attn_implementation='sdpa' or 'eager'"):
        hook(None, (torch.zeros(1, 3, 2),), {})


def test_its_loss_is_that_of_the_next_token_and_it_can_be_trained(tmp_path):
    model, expected = varied(tmp_path, "llama, tied")
    given = model(input_ids=TOKENS, labels=TOKENS)
    is_near(given.loss, cross_entropy(expected[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()))
    given.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_transformers_saves_it_as_it_is(tmp_path):
    model, expected = varied(tmp_path, "llama, tied", OTHERS)
    model.save_pretrained(tmp_path / "again")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with torch.no_grad():
        is_near(again(input_ids=TOKENS).logits, expected)
    pool = published_pool(f"hf:{tmp_path / 'again'}", length=17)
    is_near(plain_module(pool, pool.original)(TOKENS), expected)


def test_what_was_read_again_may_lose_more_and_goes_out_again(tmp_path):
    varied(tmp_path, "llama, tied", OTHERS)
    pool = published_pool(f"hf:{tmp_path / 'out'}", length=17, windows=[2])
    choices = {"attention_0": "window_2", "feedforward_2": "skip"}
    network = pool.architecture([choices.get(place.name, "original") for place in pool.positions])
    path = [(pool.positions[layer.position].name, layer.candidate) for layer in pool.path(network)]
    files = importlib.import_module("l2l_nas.compress.found").found_model(pool.published.config, path).files
    written = json.loads(files["config.json"])
    assert written["per_layer_config"] == {
        "0": {"attention_window": 2, "mlp_rank": 8},
        "1": {"mlp_map": 8, "skip": ["attention"]},
        "2": {"num_attention_heads": 2, "skip": ["mlp"]},
    }


def test_layers_of_llama_are_those_of_deci_where_these_can_be_they(tmp_path):
    """As vLLM's DeciLMForCausalLM asks for them."""
    choices = ["original", "width_24", "skip", "original", "key_value_1", "skip"]
    model, _ = varied(tmp_path, "llama", choices)
    assert type(model).__name__ == "DeciLMForCausalLM"
    saved = json.loads((tmp_path / "out/config.json").read_text())
    assert saved["architectures"] == ["DeciLMForCausalLM"]
    for config in (model.config, SimpleNamespace(block_configs=model.config.block_configs)):
        blocks = config.block_configs
        assert [block.attention.no_op for block in blocks] == [False, True, False]
        assert [block.ffn.no_op for block in blocks] == [False, False, True]
        assert [block.ffn.intermediate_size for block in blocks] == [24, 48, None]
        assert [block.attention.n_heads_in_group for block in blocks] == [2, None, 4]
        assert not hasattr(blocks[0].ffn, "ffn_mult")
    names = set(load_file(tmp_path / "out/model.safetensors"))
    assert "model.layers.1.mlp.up_proj.weight" in names
    assert not any("layers.1.self_attn" in name or "layers.1.input_layernorm" in name for name in names)
    model.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["block_configs"] == saved["block_configs"]


@pytest.mark.parametrize("choices", [["skip", *["original"] * 5], ["heads_2", *["original"] * 5]])
def test_layers_that_deci_has_not_are_not_called_so(tmp_path, choices):
    model, _ = varied(tmp_path, "llama", choices)
    assert type(model).__name__ == "FoundForCausalLM"
    assert not hasattr(model.config, "block_configs")


def test_the_code_is_short():
    lines = inspect.getsource(importlib.import_module("l2l_nas.compress.modeling")).splitlines()
    assert len(lines) <= 150


BASE = {
    "model_type": "l2l_nas_llama",
    "vocab_size": 7,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 9,
    "max_position_embeddings": 9,
    "hidden_act": "silu",
    "per_layer_config": {"1": {"intermediate_size": 4}},
}
DAMAGED = {
    "no table": ([], "per_layer_config"),
    "a layer that is not there": ({"2": {}}, "per_layer_config has '2'"),
    "no number": ({"one": {}}, "per_layer_config has 'one'"),
    "a layer twice": ({"1": {}, "01": {}}, "per_layer_config has '01'"),
    "no fields": ({"1": 3}, "per_layer_config has '1'"),
    "no list": ({"1": {"skip": "mlp"}}, "layer 1 skips 'mlp'"),
    "an unknown part": ({"1": {"skip": ["norm"]}}, "known are attention, mlp"),
    "another field": ({"1": {"rope_theta": 4}}, "layer 1 has 'rope_theta': 4"),
    "a word": ({"1": {"intermediate_size": "4"}}, "layer 1 has 'intermediate_size': '4'"),
    "nothing": ({"1": {"mlp_rank": 0}}, "layer 1 has 'mlp_rank': 0"),
    "huge": ({"1": {"mlp_map": 1 << 40}}, "numbers above 0"),
    "truth": ({"1": {"mlp_map": True}}, "numbers above 0"),
    "both": ({"1": {"skip": ["mlp"], "mlp_rank": 2}}, "layer 1 has mlp_rank, for nothing"),
    "heads": ({"1": {"num_attention_heads": 3, "num_key_value_heads": 2}}, "these divide them"),
    "a width of heads": ({"1": {"attention_width": 4}}, "heads of a width of 4 together"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_config_with_something_else_is_refused_in_one_line(how):
    layers, words = DAMAGED[how]
    assert model_of(BASE).vocabulary == 7
    with pytest.raises(SpaceError) as caught:
        model_of(json.loads(json.dumps({**BASE, "per_layer_config": layers})))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_family_is_refused():
    with pytest.raises(SpaceError, match="'model_type' is 'x'"):
        model_of({**BASE, "model_type": "l2l_nas_x"})


def test_code_that_gives_other_logits_is_not_written(tmp_path, monkeypatch):
    found = importlib.import_module("l2l_nas.compress.found")
    right = found._modeling
    monkeypatch.setattr(
        found, "_modeling", lambda *given: right(*given).replace("far.abs() < window", "far.abs() <= window")
    )
    export, _ = exported(
        tmp_path / "model",
        "llama",
        OTHERS[:1] + ["original"] * 5,
        tmp_path / "out",
        ["hugging_face"],
        smaller={"windows": [4]},
    )
    assert isinstance(export.refused["hugging_face"], ExportError)
    assert "gives other logits" in str(export.refused["hugging_face"])
