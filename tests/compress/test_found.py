"""A found network goes out as a folder of its family, with the same logits."""

from __future__ import annotations

import json
import os

import pytest
import torch
import transformers as hf

from l2l_nas import AdamW, Data, ParamServer, Problem, Tokens
from l2l_nas.compress.folder import Folder
from l2l_nas.compress.found import found_model
from l2l_nas.compress.pool import published_pool
from l2l_nas.relay.relay import Relay
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.export import ExportError, export_network, remove_export
from tests.compress.test_families import MODELS, TOKENS, published

AUTO = {"bert": hf.AutoModelForMaskedLM}
HOW = dict.fromkeys(("gemma2", "gemma3"), "eager")  # transformers caps no attention otherwise
FOUND = {  # of three blocks: whole, without a block, with half as wide a feed-forward network, with fewer heads
    "original": ["original"] * 6,
    "a block less": ["original", "original", "skip", "skip", "original", "original"],
    "sub-layers of two blocks less": ["original", "original", "original", "skip", "skip", "original"],
    "narrower": ["original", "width_24"] * 3,
    "fewer heads of queries": ["heads_2", "original"] * 3,
}
SMALLER = ["original", "skip", "skip", "width_24", "original", "width_24"]
FEWER = ["groups_1", "skip", "skip", "width_24", "groups_1", "width_24"]
GROUPED = [name for name in MODELS if name not in ("gpt2", "gemma", "bert") and "neox" not in name]
CASES = [
    *(("llama", choices) for choices in FOUND.values()),
    *((name, SMALLER) for name in MODELS),
    *((name, FEWER) for name in GROUPED),
]
OTHERS = {  # networks that no llama is, and in what their layers differ
    "one is narrower": (["original", "original"] * 2 + ["original", "width_24"], {"2": {"intermediate_size": 24}}),
    "an attention less": (["original", "original"] * 2 + ["skip", "original"], {"2": {"skip": ["attention"]}}),
    "one has fewer heads": (["original", "original"] * 2 + ["heads_2", "original"], {"2": {"num_attention_heads": 2}}),
    "maps in place of a block": (
        ["linear_8", "linear_8"] + ["original"] * 4,
        {"0": {"attention_map": 8, "mlp_map": 8}},
    ),
    "attention beside attention": (
        ["original", "skip", "original", "original", "skip", "original"],
        {"0": {"skip": ["mlp"]}, "2": {"skip": ["attention"]}},
    ),
}


def exported(folder, name, choices, out, formats, *, smaller=None, **config):
    torch.manual_seed(3)
    model = published(name)
    for field, value in config.items():
        setattr(model.config, field, value)
    model.save_pretrained(folder)
    fewer = {"heads": [2], "groups": [1], "key_value": [1]} if name in GROUPED else {}
    pool = published_pool(f"hf:{folder}", length=17, widths=[0.5, 2 / 3], linear=[0.25], **{**fewer, **(smaller or {})})
    tokens = torch.randint(1, 61, (30, 17))
    problem = Problem(pool, Data.from_arrays(tokens, tokens), Tokens())
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    architecture = pool.architecture(["original", *choices, *["original"] * (len(pool) - 1 - len(choices))])
    relay = Relay(server, device="cpu")
    rows = (tokens[:4],), torch.where(torch.arange(17) < 9, tokens[:4], -1)
    relay.train_step(architecture, *rows, objective=problem.task, micro_batch=4, lr=0.01, step=0)
    relay.drain()
    export = export_network(server, architecture, out, problem=problem, micro_batch=4, formats=formats)
    return export, relay.predict(architecture, (TOKENS,), micro_batch=3)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "choices"), CASES)
def test_transformers_loads_what_was_found(tmp_path, name, choices):
    if "gpt2" in name:
        choices = [choice.replace("width_24", "width_64") for choice in choices]
    choices = choices[1::2] if name == "gpt_neox" else choices  # whose blocks are one position
    export, expected = exported(tmp_path / "model", name, choices, tmp_path / "out", ["hugging_face"])
    assert not export.refused
    assert export.formats["hugging_face"].difference == 0
    auto = AUTO.get(name, hf.AutoModelForCausalLM)
    loaded, about = auto.from_pretrained(tmp_path / "out", output_loading_info=True, attn_implementation=HOW.get(name))
    assert type(loaded) is type(MODELS[name]())
    assert not about["missing_keys"]
    assert not about["unexpected_keys"]
    torch.testing.assert_close(loaded.eval()(input_ids=TOKENS).logits, expected, atol=2e-5, rtol=1e-5)
    assert published_pool(f"hf:{tmp_path / 'out'}", length=17).original


def test_a_mixtral_that_learns_to_balance_its_experts_may_lose_a_block(tmp_path):
    choices, balanced = FOUND["a block less"], {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    export, expected = exported(tmp_path / "model", "mixtral", choices, tmp_path / "out", ["hugging_face"], **balanced)
    assert not export.refused
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert {name: getattr(loaded.config, name) for name in balanced} == balanced
    torch.testing.assert_close(loaded(input_ids=TOKENS).logits, expected, atol=2e-5, rtol=1e-5)


def test_a_qwen_whose_windows_begin_at_a_layer_may_lose_one_before(tmp_path):
    choices = FOUND["a block less"]
    export, expected = exported(
        tmp_path / "model", "qwen3 with windows", choices, tmp_path / "out", ["hugging_face"], layer_types=None
    )
    assert not export.refused
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(loaded(input_ids=TOKENS).logits, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("found", OTHERS)
def test_layers_that_differ_are_told_one_by_one(tmp_path, found):
    choices, differ = OTHERS[found]
    published("llama, tied").save_pretrained(tmp_path)
    pool = published_pool(f"hf:{tmp_path}", widths=[0.5], heads=[2], linear=[0.25])
    path = pool.path(pool.architecture(["original", *choices, "original", "original"]))
    layers = [(pool.positions[layer.position].name, layer.candidate) for layer in path]
    written = found_model(pool.published.config, layers)
    config = json.loads(written.files["config.json"])
    assert (config["model_type"], config["per_layer_config"]) == ("l2l_nas_llama", differ)
    assert written.why == "its layers differ"


def test_layers_with_states_are_no_model_of_transformers(tmp_path):
    published("llama").save_pretrained(tmp_path)
    pool = published_pool(f"hf:{tmp_path}", mixers=["delta"])
    path = pool.path(pool.architecture(["original", "delta", *["original"] * 7]))
    layers = [(pool.positions[layer.position].name, layer.candidate) for layer in path]
    with pytest.raises(ExportError, match="it has layers with states; export it as program or state_dict"):
        found_model(pool.published.config, layers)


def test_all_that_is_no_weights_and_no_config_goes_along_as_it_is(tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    (model / "folder").mkdir(parents=True)
    own = {"tokenizer.json": b'{"a": "\xc3\xbc"}', "vocab.txt": b"a", "tokenizer.model": b"\x00\xff"}
    own |= {"chat_template.jinja": b"{{ messages }}", "added_tokens.json": b"{}", "LICENSE": b"free"}
    left = [
        "pytorch_model.bin",
        "model.safetensors.index.json",
        "modeling.py",
        ".hidden",
        "folder/x",
        "export.json",
    ]
    for name, content in {**own, **dict.fromkeys(left, b"{}")}.items():
        (model / name).write_bytes(content)
    (tmp_path / "secret").write_text("of somebody else")
    (model / "link.txt").symlink_to(tmp_path / "secret")
    (model / "within.txt").symlink_to(model / "LICENSE")
    os.mkfifo(model / "pipe.json")
    exported(model, "llama", FOUND["original"], out, ["hugging_face"])
    names = {path.name for path in out.iterdir()}
    made = {"config.json", "generation_config.json", "model.safetensors", "export.json", "README.md"}
    assert names == {*own, "within.txt", *made}
    assert {name: (out / name).read_bytes() for name in own} == own
    (out / "vocab.txt").write_bytes(b"changed by hand")
    (model / "added_tokens.json").unlink()
    with pytest.raises(ExportError, match=r"vocab.txt is there already, and no export wrote it"):
        exported(model, "llama", FOUND["original"], out, ["hugging_face"])
    (model / "vocab.txt").unlink()
    exported(model, "llama", FOUND["original"], out, ["hugging_face"])
    assert not (out / "added_tokens.json").exists()
    assert (out / "vocab.txt").read_bytes() == b"changed by hand"
    remove_export(out)
    assert [path.name for path in out.iterdir()] == ["vocab.txt"]


def test_code_that_an_original_names_does_not_go_along(tmp_path):
    published("llama").save_pretrained(tmp_path)
    named = {"auto_map": {"AutoTokenizer": ["other/model--code.Tokens", None]}, "model_max_length": 9}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    config = json.loads((tmp_path / "config.json").read_text())
    named = {"auto_map": {"AutoModelForCausalLM": "other/model--code.Model"}, "configuration_files": ["config.1.json"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, **named}))
    pool = published_pool(f"hf:{tmp_path}", length=17)
    assert json.loads(pool.beside["tokenizer_config.json"]) == {"model_max_length": 9}
    written = found_model(pool.published.config, [(place.name, place.candidates[0]) for place in pool.positions])
    assert not named.keys() & json.loads(written.files["config.json"]).keys()


def test_the_licence_goes_along_with_another_tokenizer_too(tmp_path):
    published("llama").save_pretrained(tmp_path)
    for name in ("LICENSE", "NOTICE.txt", "vocab.txt"):
        (tmp_path / name).write_text("theirs")
    pool = published_pool(f"hf:{tmp_path}", length=17)
    pool.tokenizer = Bytes()
    assert pool.beside == dict.fromkeys(("LICENSE", "NOTICE.txt"), b"theirs")


def test_a_snapshot_in_the_library_s_cache_is_links_to_its_blobs(tmp_path):
    snapshot, blobs = tmp_path / "cache/snapshots/1", tmp_path / "cache/blobs"
    published("llama").save_pretrained(snapshot)
    blobs.mkdir()
    for path in [*snapshot.iterdir()]:
        path.rename(blobs / path.name)
        path.symlink_to(blobs / path.name)
    assert "generation_config.json" in Folder(snapshot).beside


def test_a_config_that_speaks_of_quantised_weights_does_not_do_so_of_what_is_written(tmp_path):
    published("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    pool = published_pool(f"hf:{tmp_path}", length=17)
    layers = [(place.name, place.candidates[0]) for place in pool.positions]
    written = found_model(pool.published.config, layers).files["config.json"]
    assert "quantization_config" not in json.loads(written)
