"""A found network goes out as a GGUF file: what is read from it gives the same logits; the rest is refused."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

from l2l_nas import AdamW, Data, ParamServer, Problem, Tokens, plain_module
from l2l_nas.errors import StorageError
from l2l_nas.pretrained.gguf import GGUF
from l2l_nas.pretrained.gguf_header import read_header
from l2l_nas.pretrained.pool import published_pool
from l2l_nas.training.export import export_network
from tests.pretrained.test_families import LLAMA, MODELS, TOKENS, published
from tests.pretrained.test_found import exported
from tests.pretrained.test_gguf import write

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
    return export, expected, read_header(tmp_path / "out" / "model.gguf").metadata


@pytest.mark.parametrize("name", ["llama", "llama, tied", "llama, biased"])
@pytest.mark.parametrize("how", ALIKE)
def test_blocks_that_are_alike_are_a_llama(tmp_path, name, how):
    if how == "fewer keys" and name == "llama, biased":
        pytest.skip("its pool is the same")
    export, expected, about = written(tmp_path, name, ALIKE[how])
    assert about["general.architecture"] == "llama"
    assert export.formats["gguf"].difference == 0
    pool = published_pool(f"gguf:{tmp_path / 'out' / 'model.gguf'}", length=17)
    assert torch.equal(plain_module(pool, pool.original)(TOKENS), expected)


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
    pool = published_pool(f"gguf:{tmp_path / 'out' / 'model.gguf'}", length=17)
    assert torch.equal(plain_module(pool, pool.original)(TOKENS), expected)
    assert pool.published.fingerprint


def test_a_file_of_other_blocks_is_a_pool_and_goes_out_again(tmp_path):
    _, expected, _ = written(tmp_path, "llama, tied", OTHERS["several"][0])
    pool = published_pool(f"gguf:{tmp_path / 'out' / 'model.gguf'}", length=17)
    inner = ["attention_0", "feedforward_0", "attention_1", "feedforward_1", "feedforward_2"]
    assert [place.name for place in pool.positions] == ["embedding", *inner, "norm", "head"]
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    tokens = TOKENS.repeat(6, 1)
    problem = Problem(pool, Data.from_arrays(tokens, tokens), Tokens())
    formats = ["gguf", "hugging_face"]
    export = export_network(server, pool.original, tmp_path / "2", problem=problem, micro_batch=3, formats=formats)
    assert not export.refused
    assert ": the model that it was found in has its own code." in (tmp_path / "2" / "README.md").read_text()
    for name in (f"gguf:{tmp_path / '2' / 'model.gguf'}", f"hf:{tmp_path / '2'}"):
        again = published_pool(name, length=17)
        assert torch.equal(plain_module(again, again.original)(TOKENS), expected)


def test_its_tokenizer_goes_along(tmp_path):
    letters = [*"abcdefghij0123456789", "\u0120"]
    tokens = ["<|end|>", *letters, "ab", "\u0120a", "\u0120ab"]
    model = published("llama")
    write(tmp_path / "model.gguf", model, tokens=tokens, merges=["a b", "\u0120 a", "\u0120 ab"], kinds=[3] + [1] * 24)
    source = GGUF(tmp_path / "model.gguf")
    files = {**source.beside, "chat_template.jinja": b"{{ messages }}"}
    model.save_pretrained(tmp_path / "model")
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content)
    _, _, about = written(tmp_path, "llama", ORIGINAL)
    names = ("tokens", "merges", "token_type", "model", "pre")
    for name in names:
        had = source.metadata[f"tokenizer.ggml.{name}"]
        got = about[f"tokenizer.ggml.{name}"]
        assert got[: len(had)] == had
    assert len(about["tokenizer.ggml.tokens"]) == 61  # as many as the embedding has rows
    assert set(about["tokenizer.ggml.token_type"][25:]) == {5}
    assert about["tokenizer.chat_template"] == "{{ messages }}"
    assert GGUF(tmp_path / "out" / "model.gguf").beside["chat_template.jinja"] == b"{{ messages }}"
    assert about["tokenizer.ggml.add_bos_token"] is False
    text = "ab abcd 12<|end|>a"
    assert GGUF(tmp_path / "out" / "model.gguf").tokenizer().encode(text) == source.tokenizer().encode(text)


def test_a_tokenizer_that_files_have_no_name_for_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

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
    pool = published_pool(f"gguf:{small}", length=17)
    torch.testing.assert_close(plain_module(pool, pool.original)(TOKENS), expected, atol=1e-2, rtol=1e-2)


def test_a_qwen_2_has_a_bias_but_at_the_end_of_attention(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "plain qwen2", lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**LLAMA)))
    export, expected, about = written(tmp_path, "plain qwen2", ALIKE["a block less"])
    assert about["general.architecture"] == "llama"
    assert export.formats["gguf"].difference == 0
    pool = published_pool(f"gguf:{tmp_path / 'out' / 'model.gguf'}", length=17)
    assert torch.equal(plain_module(pool, pool.original)(TOKENS), expected)


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


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"feed_forward_length": [48, 32]}, "a whole number of each of 3 blocks"),
        ({"attention.head_count": [4, 4, -1]}, "whole numbers from 0"),
        ({"attention.head_count": [4, 4, 4]}, "4 heads and 0 of keys in block 2"),
        ({"rope.dimension_count": 4}, "of which 4 turn"),
        ({"block_count": 1 << 40}, "from 1 to 10000"),
    ],
)
def test_numbers_of_blocks_that_do_not_fit_are_refused_in_one_line(tmp_path, changed, words):
    written(tmp_path, "llama", OTHERS["several"][0])
    model = GGUF(tmp_path / "out" / "model.gguf")
    model.metadata.update({f"deci.{name}": value for name, value in changed.items()})
    with pytest.raises(StorageError, match=words):
        model._config_of_blocks()
