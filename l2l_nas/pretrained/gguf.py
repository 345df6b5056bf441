"""GGUF files of the llama family: their metadata as a config, their tensors by the names of `transformers`.

Quantised tensors are dequantised by the `gguf` library when they are read. Rows of queries and keys are stored so that
the two numbers that a rotary position turns lie side by side; `transformers` has them half a head apart, and so do we.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import named_failures
from l2l_nas.pretrained.gguf_header import Stored, read_header
from l2l_nas.pretrained.gguf_tokenizer import tokenizer_of
from l2l_nas.pretrained.tensors import Published
from l2l_nas.text.tokenizer import Library, Tokenizer, texts_of

_SAMPLED = 64  # bytes at each of three places
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUF(Published):
    """A model in a GGUF file.

    Args:
        path: the file.

    Raises:
        SettingError: the `gguf` library is missing.
        StorageError: no such file, damaged, or of another family.
    """

    def __init__(self, path: Path) -> None:
        if importlib.util.find_spec("gguf") is None:
            raise SettingError("GGUF files need the package gguf: pip install 'l2l-nas[gguf]'")
        self.path = path
        header = read_header(path)
        self.metadata = header.metadata
        family = self._get("general.architecture", str)
        if family != "llama":
            raise StorageError(f"{path} is a model of architecture {family!r}; GGUF files of llama are read")
        if "llama.expert_count" in self.metadata:
            raise StorageError(f"{path} has experts (llama.expert_count); use the model's Hugging Face folder")
        scaling = self.metadata.get("llama.rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in header.tensors:
            raise StorageError(f"{path} scales its rotary positions, which is not supported")
        self._stored = {self._published(name): one for name, one in header.tensors.items()}
        self.shapes = {name: one.shape for name, one in self._stored.items()}
        self._refuse_cut()
        self.config: dict[str, Any] = self._config()

    def read(self, name: str) -> Tensor:
        """See `Published.read`; float32."""
        from gguf.quants import dequantize

        stored = self._stored[name]
        block, width = _sizes(stored.kind)
        with named_failures(self.path), self.path.open("rb") as file:
            file.seek(stored.offset)
            raw = np.fromfile(file, np.uint8, self._num_bytes(stored))
        if raw.size != self._num_bytes(stored):
            raise StorageError(f"{self.path} ends within {name}; get it again")
        rows = raw.reshape(*stored.shape[:-1], stored.shape[-1] // block * width)
        tensor = torch.from_numpy(np.ascontiguousarray(dequantize(rows, _type(stored.kind)), np.float32))
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if f".{part}." in name:
                return _halves(tensor, self.config[heads])
        return tensor

    def tokenizer(self) -> Tokenizer:
        """See `Published.tokenizer`."""
        made = tokenizer_of(self.metadata, self.path)
        end = self.metadata.get("tokenizer.ggml.eos_token_id")
        return Library(made, end=None if end is None else made.id_to_token(end))

    @property
    def texts(self) -> dict[str, str]:
        """See `Published.texts`; empty without the `tokenizers` library, or where the file's kind is not known."""
        if importlib.util.find_spec("tokenizers") is None:
            return {}
        try:
            tokenizer = tokenizer_of(self.metadata, self.path)
        except StorageError:
            return {}
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        numbers = {ours: self.metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
        return texts_of(tokenizer, numbers)

    def sample(self, name: str) -> bytes:
        """At its begin, its middle and its end."""
        stored = self._stored[name]
        size = self._num_bytes(stored)
        found = []
        with named_failures(self.path), self.path.open("rb") as file:
            for place in (0, size // 2, max(0, size - _SAMPLED)):
                file.seek(stored.offset + place)
                found.append(file.read(min(_SAMPLED, size - place)))
        return b"".join(found)

    def _published(self, name: str) -> str:
        found = _BLOCK.fullmatch(name)
        if found and found[2] in _IN_BLOCK:
            return f"model.layers.{int(found[1])}.{_IN_BLOCK[found[2]]}.{found[3]}"
        return _TOP.get(name, name)  # an unknown one is refused as a tensor too many

    def _num_bytes(self, stored: Stored) -> int:
        block, width = _sizes(stored.kind)
        return int(np.prod(stored.shape, dtype=np.int64)) // block * width

    def _refuse_cut(self) -> None:
        end = self.path.stat().st_size
        for name, stored in self._stored.items():
            try:
                block, _ = _sizes(stored.kind)
            except ValueError:
                raise StorageError(f"{self.path}: {name} is of the unknown type {stored.kind}") from None
            if not stored.shape or stored.shape[-1] % block or stored.offset + self._num_bytes(stored) > end:
                raise StorageError(f"{self.path} is damaged: {name} does not lie within the file; get it again")

    def _get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "lacks" if value is None else f"has {value!r} as"
            raise StorageError(f"{self.path} {what} {key}; is it a whole llama model?")
        return value

    def _config(self) -> dict[str, Any]:
        heads = self._get("llama.attention.head_count", int)
        hidden = self._get("llama.embedding_length", int)
        if heads < 1 or hidden % heads:
            raise StorageError(f"{self.path} has {heads} attention heads for an embedding_length of {hidden}")
        size = hidden // heads
        rotary = self._get("llama.rope.dimension_count", int, size)
        if rotary != size or self.metadata.get("llama.attention.key_length", size) != size:
            raise StorageError(f"{self.path} has heads of {size} of which {rotary} turn; all must")
        embedding = self.shapes.get("model.embed_tokens.weight")
        if embedding is None or len(embedding) != 2:
            raise StorageError(f"{self.path} lacks token_embd.weight; is it a whole llama model?")
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": embedding[0],
            "hidden_size": hidden,
            "num_hidden_layers": self._get("llama.block_count", int),
            "num_attention_heads": heads,
            "num_key_value_heads": self._get("llama.attention.head_count_kv", int, heads),
            "intermediate_size": self._get("llama.feed_forward_length", int),
            "max_position_embeddings": self._get("llama.context_length", int),
            # saved in single precision; the shortest number that gives it is the one that was meant
            "rms_norm_eps": _shortest(self._get("llama.attention.layer_norm_rms_epsilon", float)),
            "rope_theta": _shortest(self._get("llama.rope.freq_base", float, 10000.0)),
            "hidden_act": "silu",
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self.shapes,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self.shapes,
            "tie_word_embeddings": "lm_head.weight" not in self.shapes,
        }
        for ours, theirs in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
            if f"tokenizer.ggml.{theirs}_token_id" in self.metadata:
                config[ours] = self._get(f"tokenizer.ggml.{theirs}_token_id", int)
        return config


def _type(kind: int) -> Any:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(kind)


def _sizes(kind: int) -> tuple[int, int]:
    """Numbers in a block of a type, and its bytes."""
    from gguf import GGML_QUANT_SIZES

    block, width = GGML_QUANT_SIZES[_type(kind)]
    return block, width


def _shortest(number: float) -> float:
    return float(str(np.float32(number)))


def _halves(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head from pairs (0, n/2, 1, n/2 + 1, ...) to halves (0, 1, ..., n/2, n/2 + 1, ...)."""
    pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
