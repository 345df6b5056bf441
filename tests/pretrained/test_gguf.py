"""GGUF files: their model is the one that they were made of, whatever the type of its tensors; damage is named."""

from __future__ import annotations

import re
import struct

import gguf
import numpy as np
import pytest
import torch
import transformers as hf

from l2l_nas import plain_module
from l2l_nas.errors import L2LError, StorageError
from l2l_nas.pretrained.gguf import GGUF
from l2l_nas.pretrained.pool import published_pool
from tests.pretrained.test_families import LLAMA, MODELS, TOKENS

KINDS = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
    "Q8_0": gguf.GGMLQuantizationType.Q8_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
}
EOS = "tokenizer.ggml.eos_token_id"
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def stored_name(name):
    if name in NAMES:
        return NAMES[name]
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blk.{found[1]}.{IN_BLOCK[found[2]]}.weight"


def interleaved(weight, heads):
    """Rows as llama.cpp stores them: (0, n/2, 1, n/2 + 1, ...)."""
    size = len(weight) // heads
    order = [
        head * size + row + half * size // 2 for head in range(heads) for row in range(size // 2) for half in (0, 1)
    ]
    return weight[order]


def write(path, model, kind="F32", *, leave_out=(), **metadata):
    """The file of a model; returns the weights as it holds them."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if "tokens" in metadata:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(metadata["tokens"])
        writer.add_token_merges(metadata["merges"])
        writer.add_token_types(metadata["kinds"])
        writer.add_eos_token_id(0)
    held = {}
    for name, tensor in dict(model.named_parameters()).items():
        if stored_name(name) in leave_out:
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        array = tensor.detach()
        for part, count in heads.items():
            array = interleaved(array, count) if part in name else array
        used = KINDS[kind] if array.dim() > 1 else KINDS["F32"]
        data = gguf.quants.quantize(array.numpy(), used)
        writer.add_tensor(stored_name(name), data, raw_dtype=used)
        held[name] = data
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.parametrize("name", ["llama", "llama, tied"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_s_model_is_the_one_it_was_made_of(tmp_path, name, kind):
    torch.manual_seed(4)
    tied = "tied" in name
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, "intermediate_size": 64}, tie_word_embeddings=tied)).eval()
    write(tmp_path / "model.gguf", model, kind)
    with torch.no_grad():  # each matrix as the library gives it back
        for parameter in model.parameters():
            if parameter.dim() > 1:
                packed = gguf.quants.quantize(parameter.numpy(), KINDS[kind])
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, KINDS[kind]).astype(np.float32)))
        expected = model(input_ids=TOKENS).logits
        pool = published_pool(f"gguf:{tmp_path / 'model.gguf'}", length=17)
        got = plain_module(pool, pool.original)(TOKENS)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


def test_a_tokenizer_comes_along(tmp_path):
    letters = [*"abcdefghij0123456789", "Ġ"]
    tokens = ["<|end|>", *letters, "ab", "Ġa", "Ġab"]
    model = MODELS["llama"]()
    kinds = [3] + [1] * (len(tokens) - 1)
    write(tmp_path / "m.gguf", model, tokens=tokens, merges=["a b", "Ġ a", "Ġ ab"], kinds=kinds)
    beside = GGUF(tmp_path / "m.gguf").beside
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(beside["tokenizer.json"].decode())
    text = "ab abcd 12<|end|>a"
    numbers = tokenizer.encode(text).ids
    assert [tokens[number] for number in numbers] == ["ab", "Ġab", "c", "d", "Ġ", "1", "2", "<|end|>", "a"]
    assert tokenizer.decode(numbers, skip_special_tokens=False) == text


def _cut(path):
    path.write_bytes(path.read_bytes()[:-64])


def _at(place, value):
    def change(path):
        content = bytearray(path.read_bytes())
        content[place : place + len(value)] = value
        path.write_bytes(content)

    return change


DAMAGE = {
    "no file": (lambda path: path.unlink(), "no such file"),
    "another kind of file": (lambda path: path.write_bytes(b"x" * 500), "it does not begin with GGUF"),
    "an old version": (_at(4, b"\x01\x00\x00\x00"), "version 1, expected 2 or 3"),
    "as many tensors as bytes in the world": (_at(8, b"\xff" * 8), "items in"),
    "as many keys": (_at(16, b"\xff" * 8), "items in"),
    "cut at its end": (_cut, "does not lie within the file"),
    "cut in its head": (lambda path: path.write_bytes(path.read_bytes()[:100]), "it ends early|items in"),
    "empty": (lambda path: path.write_bytes(b""), "it ends early"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, how):
    write(tmp_path / "model.gguf", MODELS["llama"]())
    damage, words = DAMAGE[how]
    damage(tmp_path / "model.gguf")
    with pytest.raises(L2LError) as caught:
        published_pool(f"gguf:{tmp_path / 'model.gguf'}")
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0), "scales its rotary positions"),
        (lambda writer: writer.add_bool("llama.attention.causal", False), "is not causal"),
    ],
)
def test_what_the_layers_do_not_do_is_refused(tmp_path, monkeypatch, add, says):
    monkeypatch.setattr(gguf.GGUFWriter, "add_layer_norm_rms_eps", also(gguf.GGUFWriter.add_layer_norm_rms_eps, add))
    write(tmp_path / "model.gguf", MODELS["llama"]())
    with pytest.raises(StorageError, match=says):
        published_pool(f"gguf:{tmp_path / 'model.gguf'}")


def also(method, more):
    def both(writer, value):
        method(writer, value)
        more(writer)

    return both


def test_a_file_without_one_of_its_tensors_names_it(tmp_path):
    write(tmp_path / "model.gguf", MODELS["llama"](), leave_out=["blk.1.attn_q.weight"])
    with pytest.raises(L2LError, match=r"lacks tensor model\.layers\.1\.self_attn\.q_proj\.weight"):
        published_pool(f"gguf:{tmp_path / 'model.gguf'}")


def test_every_byte_of_the_head_may_be_damaged(tmp_path):
    """Whatever a damaged head says, it is a pool or one line, soon."""
    path = tmp_path / "model.gguf"
    write(path, MODELS["llama"]())
    content = path.read_bytes()
    for place in range(0, 1500, 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            published_pool(f"gguf:{path}")
        except L2LError as error:
            assert "\n" not in str(error)  # noqa: PT017


def _tensor_infos(path):
    """Of each tensor: the file's bytes before its number of dimensions, and where its type and offset stand."""
    reader = gguf.GGUFReader(path)
    return [(tensor.name, tensor.field.offset + sum(part.nbytes for part in tensor.field.parts[:4]))
            for tensor in reader.tensors]  # fmt: skip


def test_a_tensor_at_any_other_place_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    write(path, MODELS["llama"]())
    content = path.read_bytes()
    for _, kind_place in _tensor_infos(path):
        place = kind_place + 4
        (offset,) = struct.unpack_from("<Q", content, place)
        for other in {0, offset + 32, offset - 32, offset + 1, offset + 64, 1 << 62, (1 << 64) - 32} - {offset}:
            path.write_bytes(content[:place] + struct.pack("<Q", other % (1 << 64)) + content[place + 8 :])
            with pytest.raises(StorageError, match=r"model\.gguf: damaged, not a GGUF file of weights"):
                GGUF(path)
    for other in (content[:-32], content + bytes(1), content + content[-32:]):
        path.write_bytes(other)
        with pytest.raises(StorageError, match=r"does not lie within the file|lie behind the last tensor"):
            GGUF(path)


@pytest.mark.parametrize("kind", [24, 26, 31, 99])  # I8, I32, one that was removed, none
def test_a_type_that_holds_no_weights_is_refused(tmp_path, kind):
    path = tmp_path / "model.gguf"
    write(path, MODELS["llama"]())
    _at(_tensor_infos(path)[1][1], struct.pack("<I", kind))(path)
    with pytest.raises(StorageError, match=r"model\.gguf: damaged, not a GGUF file of weights"):
        GGUF(path)


@pytest.mark.parametrize("number", [-1, 10**6])
def test_a_token_that_the_embedding_has_not_is_refused(tmp_path, number, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_eos_token_id", lambda self, _: self.add_int64(EOS, number))
    write(tmp_path / "m.gguf", MODELS["llama"](), tokens=["a"], merges=["a a"], kinds=[1])
    with pytest.raises(StorageError, match=rf"{EOS} is {number}, expected a whole number from 0 to"):
        GGUF(tmp_path / "m.gguf")


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_a_weight_that_is_no_number_is_refused_by_name(tmp_path, kind):
    path = tmp_path / "model.gguf"
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**LLAMA, "intermediate_size": 64}))
    write(path, model, kind)
    tensor = next(one for one in gguf.GGUFReader(path).tensors if one.name == "blk.0.ffn_up.weight")
    nan = {"F32": b"\x00\x00\xc0\x7f"}.get(kind, b"\x00\x7e")
    _at(tensor.data_offset, nan)(path)
    opened = GGUF(path)
    opened.read("model.layers.0.mlp.down_proj.weight")
    with pytest.raises(StorageError, match=r"model\.layers\.0\.mlp\.up_proj\.weight holds NaN or infinity"):
        opened.read("model.layers.0.mlp.up_proj.weight")
