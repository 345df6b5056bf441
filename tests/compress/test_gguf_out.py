"""A found network goes out as a GGUF file, from which llama.cpp's steps give the same logits; the rest is refused."""

from __future__ import annotations

import json
import re

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from l2l_nas import AdamW, Data, ParamServer, Problem, Tokens, plain_module
from l2l_nas.compress.pool import published_pool
from l2l_nas.training.export import export_network
from l2l_nas.training.published_format import GGUFFile
from tests.compress.gguf_file import logits_of, metadata_of
from tests.compress.test_families import LLAMA, MODELS, TOKENS
from tests.compress.test_found import exported
from tests.test_readme import PAGES

ORIGINAL = ["original"] * 6
ALIKE = {
    "as it was": ORIGINAL,
    "a block less": [*ORIGINAL[:2], "skip", "skip", *ORIGINAL[4:]],
    "narrower": ["original", "width_24"] * 3,
    "fewer keys": ["key_value_1", "original"] * 3,
}
OTHERS = {  # and heads, heads of keys, and units of each block
    "narrower in one": ([*ORIGINAL[:5], "width_24"], [4, 4, 4], [2, 2, 2], [48, 48, 24]),
    "fewer heads in one": (["heads_2", *ORIGINAL[1:]], [2, 4, 4], [2, 2, 2], [48, 48, 48]),
    "fewer keys in one": (["key_value_1", *ORIGINAL[1:]], [4, 4, 4], [1, 2, 2], [48, 48, 48]),
    "an attention less": ([*ORIGINAL[:2], "skip", *ORIGINAL[3:]], [4, 0, 4], [2, 0, 2], [48, 48, 48]),
    "the first attention less": (["skip", *ORIGINAL[1:]], [1, 4, 4], [1, 2, 2], [48, 48, 48]),
    "a network less": ([*ORIGINAL[:3], "skip", *ORIGINAL[4:]], [4, 4, 4], [2, 2, 2], [48, 32, 48]),
    "networks less": (["original", "skip"] * 3, [4] * 3, [2] * 3, [32] * 3),
    "several": (
        ["skip", "original", "key_value_1", "original", "skip", "width_24"],
        [1, 4, 0],
        [1, 1, 0],
        [48, 48, 24],
    ),
}


def written(tmp_path, name, choices, formats=("gguf",)):
    export, expected = exported(tmp_path / "model", name, choices, tmp_path / "out", [*formats])
    assert not export.refused
    return export, expected, metadata_of(tmp_path / "out" / "model.gguf")


def assert_computes(path, expected):
    torch.testing.assert_close(logits_of(path, TOKENS), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llama, tied", "llama, biased"])
@pytest.mark.parametrize("how", ALIKE)
def test_blocks_that_are_alike_are_a_llama(tmp_path, name, how):
    if how == "fewer keys" and name == "llama, biased":
        pytest.skip("its pool is the same")
    export, expected, about = written(tmp_path, name, ALIKE[how])
    assert about["general.architecture"] == "llama"
    assert export.formats["gguf"].difference == 0
    assert_computes(tmp_path / "out" / "model.gguf", expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llama, tied"])
@pytest.mark.parametrize("how", OTHERS)
def test_blocks_that_are_not_have_their_numbers_as_arrays(tmp_path, name, how):
    choices, heads, shared, widths = OTHERS[how]
    export, expected, about = written(tmp_path, name, choices)
    assert about["general.architecture"] == "deci"
    assert about["deci.attention.head_count"] == heads
    assert about["deci.attention.head_count_kv"] == shared
    assert about["deci.feed_forward_length"] == widths
    assert export.formats["gguf"].difference == 0
    assert_computes(tmp_path / "out" / "model.gguf", expected)


def test_a_folder_with_its_own_code_goes_out_again(tmp_path):
    _, expected, about = written(tmp_path, "llama, tied", OTHERS["several"][0], ("gguf", "hugging_face"))
    pool = published_pool(f"hf:{tmp_path / 'out'}", length=17)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    tokens = TOKENS.repeat(6, 1)
    problem = Problem(pool, Data.from_arrays(tokens, tokens), Tokens())
    formats = ["gguf", "hugging_face"]
    export = export_network(server, pool.original, tmp_path / "2", problem=problem, micro_batch=3, formats=formats)
    assert not export.refused
    assert ": its layers differ." in (tmp_path / "2" / "README.md").read_text()
    again = published_pool(f"hf:{tmp_path / '2'}", length=17)
    assert torch.equal(plain_module(again, again.original)(TOKENS), expected)
    assert_computes(tmp_path / "2" / "model.gguf", expected)
    assert metadata_of(tmp_path / "2" / "model.gguf") == about


def test_numbers_that_were_not_written_are_noticed(tmp_path, monkeypatch):
    def write(how, source, path):
        source.network[2].out.weight.data[0, 0] += 1
        before(how, source, path)
        source.network[2].out.weight.data[0, 0] -= 1

    before = GGUFFile.write
    monkeypatch.setattr(GGUFFile, "write", write)
    export, _ = exported(tmp_path / "model", "llama", OTHERS["several"][0], tmp_path / "out", ["gguf"])
    assert "its outputs differ from the relay's" in str(export.refused["gguf"])


TEXTS = ["<|end|>", *"abcdefghij0123456789", "\u0120", "ab", "\u0120a", "\u0120ab"]
MERGES = ["a b", "\u0120 a", "\u0120 ab"]


def save_tokenizer(folder):
    pairs = [tuple(one.split()) for one in MERGES]
    made = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(TEXTS)}, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def test_its_tokenizer_goes_along(tmp_path):
    save_tokenizer(tmp_path / "model")
    _, _, about = written(tmp_path, "llama", ORIGINAL)
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in about.items()}
    assert (own["model"], own["pre"], own["merges"]) == ("gpt2", "smollm", MERGES)
    assert own["tokens"][: len(TEXTS)] == TEXTS
    assert len(own["tokens"]) == 61  # as many as the embedding has rows
    assert own["token_type"] == [3] + [1] * 24 + [5] * 36
    assert about["tokenizer.chat_template"] == "{{ messages }}"
    assert own["add_bos_token"] is False


def test_transformers_makes_a_folder_of_a_file(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    _, expected, _ = written(tmp_path, "llama", ORIGINAL)
    (tmp_path / "out" / "model.gguf").rename(tmp_path / "out" / "smollm2.gguf")
    (tmp_path / "out").rename(tmp_path / "models")
    (program,) = re.findall(r"```python\n([^`]*gguf_file[^`]*)```", PAGES["docs/tutorials/pretrained.md"])
    exec(compile(program, "pretrained.md", "exec"), {})
    pool = published_pool("hf:models/smollm2", length=17)
    torch.testing.assert_close(plain_module(pool, pool.original)(TOKENS), expected, atol=2e-5, rtol=1e-5)


def test_a_tokenizer_that_files_have_no_name_for_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "model" / "tokenizer.json"))
    export, _ = exported(tmp_path / "model", "llama", ORIGINAL, tmp_path / "out", ["gguf"])
    assert "no byte-level BPE that cuts text as gpt-2, smollm, llama-bpe, qwen2 do" in str(export.refused["gguf"])


def test_matrices_may_be_float16(tmp_path):
    export, expected = exported(tmp_path / "model", "llama", ORIGINAL, tmp_path / "out", ["gguf_f16", "gguf"])
    assert not export.refused
    assert 0 < export.formats["gguf_f16"].difference < 1e-2
    small, large = (tmp_path / "out" / name for name in ("model-f16.gguf", "model.gguf"))
    assert small.stat().st_size < 0.6 * large.stat().st_size
    torch.testing.assert_close(logits_of(small, TOKENS), expected, atol=1e-2, rtol=1e-2)


def test_a_qwen_2_has_a_bias_but_at_the_end_of_attention(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "plain qwen2", lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA)))
    export, expected, about = written(tmp_path, "plain qwen2", ALIKE["a block less"])
    assert about["general.architecture"] == "llama"
    assert export.formats["gguf"].difference == 0
    assert_computes(tmp_path / "out" / "model.gguf", expected)


REFUSED = {
    "gpt2": (["original"] * 6, "its embedding, last norm or head"),
    "qwen3": (ORIGINAL, "the attention of 'attention_0'"),
    "mixtral": (ORIGINAL, "'feedforward_0'"),
    "mistral": (ORIGINAL, "the attention of 'attention_0'"),
    "gemma": (ORIGINAL, "its embedding, last norm or head"),
    "llama, biased": ([*ORIGINAL[:5], "width_24"], "biases in blocks that are not alike"),
    "llama": (["skip", "original"] * 3, "no attention at all"),
    "llama, tied": ([*ORIGINAL[:4], "linear_8", "original"], "llama's layers, and the linear map of 'attention_2'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_has_not_is_refused_in_one_line(tmp_path, name):
    choices, words = REFUSED[name]
    export, _ = exported(tmp_path / "model", name, choices, tmp_path / "out", ["gguf"])
    assert words in str(export.refused["gguf"])
    assert "\n" not in str(export.refused["gguf"])
    assert not (tmp_path / "out" / "model.gguf").exists()
