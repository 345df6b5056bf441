"""GGUF files of the llama family: their metadata as a config, their tensors by the names of `transformers`.

Files of the architecture `deci` have blocks that differ; the config of such a model names each layer.

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

from l2l_nas.contents.fields import Fields
from l2l_nas.contents.tensors import refuse_misplaced
from l2l_nas.errors import StorageError
from l2l_nas.files import open_file, parsing
from l2l_nas.plugins import optional
from l2l_nas.pretrained.coded_family import CODED
from l2l_nas.pretrained.gguf_header import Header, Stored, read_header
from l2l_nas.pretrained.gguf_out import ATTENTION, NETWORK
from l2l_nas.pretrained.gguf_tokenizer import tokenizer_of
from l2l_nas.pretrained.tensors import Published
from l2l_nas.text.tokenizer import Library, Tokenizer, texts_of

_MOST_BLOCKS, _MOST_WIDTH = 10_000, 1 << 24  # damaged files name more
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
_OURS = {  # the same in models whose config names each layer
    "token_embd.weight": "network.embedding.token.weight",
    "output_norm.weight": "network.norm.weight",
    "output.weight": "network.head.weight",
    **{theirs: f"attention_{{}}.{ours}" for ours, theirs in ATTENTION.items()},
    **{theirs: f"feedforward_{{}}.{ours}" for ours, theirs in NETWORK.items()},
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUF(Published):
    """A model in a GGUF file.

    Raises:
        SettingError: the `gguf` library is missing.
        StorageError: no such file, damaged, or of another family.
    """

    def __init__(self, path: Path) -> None:
        optional("gguf", "GGUF files need", extra="gguf")
        self.path = path
        header = read_header(path)
        self.metadata = header.metadata
        self._fields = Fields(header.metadata, path, advice="is it a whole llama model?")
        self._family = family = self._fields.text("general.architecture")
        if family not in ("llama", "deci"):
            raise StorageError(f"{path} is a model of architecture {family!r}; GGUF files of llama and deci are read")
        if f"{family}.expert_count" in self.metadata:
            raise StorageError(f"{path} has experts ({family}.expert_count); use the model's Hugging Face folder")
        scales = [key for key in self.metadata if key.startswith(f"{family}.rope.scal")]
        if any(self.metadata[key] not in ("none", 1) for key in scales) or "rope_freqs.weight" in header.tensors:
            raise StorageError(f"{path} scales its rotary positions, which is not supported")
        if self.metadata.get(f"{family}.attention.causal") is False:
            raise StorageError(f"{path} is not causal ({family}.attention.causal), and its layers here are")
        published = _published if family == "llama" else _coded
        self._stored = {published(name): stored for name, stored in header.tensors.items()}
        self.shapes = {name: stored.shape for name, stored in self._stored.items()}
        self._refuse_damage(header)
        # of the tensors whose rows lie otherwise
        self._heads: dict[str, int] = {}
        self.config: dict[str, Any] = self._config() if family == "llama" else self._config_of_blocks()

    def _read(self, name: str) -> Tensor:
        from gguf.quants import dequantize

        stored = self._stored[name]
        block, width = _sizes(stored.kind)
        with open_file(self.path) as file:
            file.seek(stored.offset)
            raw = np.fromfile(file, np.uint8, self._num_bytes(stored))
        if raw.size != self._num_bytes(stored):
            raise StorageError(f"{self.path} ends within {name}; get it again")
        rows = raw.reshape(*stored.shape[:-1], stored.shape[-1] // block * width)
        with parsing(self.path, f"a file with {name} in it"), np.errstate(all="ignore"):
            tensor = torch.from_numpy(np.ascontiguousarray(dequantize(rows, _type(stored.kind)), np.float32))
        return _halves(tensor, self._heads[name]) if name in self._heads else tensor

    def tokenizer(self) -> Tokenizer:
        """See `Published.tokenizer`."""
        library = tokenizer_of(self.metadata, self.path)
        end = self.metadata.get("tokenizer.ggml.eos_token_id")
        tokenizer = Library(library, end=None if end is None else library.id_to_token(end), place=self.path)
        for name in ("eot", "eom"):  # of a turn, of a message
            tokenizer.ends |= {*self._fields.wholes(f"tokenizer.ggml.{name}_token_id")}
        return tokenizer

    @property
    def beside(self) -> dict[str, bytes]:
        """See `Published.beside`; empty without the `tokenizers` library, or where the file's kind is not known."""
        if importlib.util.find_spec("tokenizers") is None:
            return {}
        try:
            tokenizer = tokenizer_of(self.metadata, self.path)
        except StorageError:
            return {}
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        numbers = {ours: self.metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
        texts = texts_of(tokenizer, numbers)
        template = self.metadata.get("tokenizer.chat_template")
        if isinstance(template, str):
            texts["chat_template.jinja"] = template
        return {name: text.encode() for name, text in texts.items()}

    def sample(self, name: str) -> bytes:
        """At its begin, its middle and its end."""
        stored = self._stored[name]
        size = self._num_bytes(stored)
        samples = []
        with open_file(self.path) as file:
            for start in (0, size // 2, max(0, size - _SAMPLED)):
                file.seek(stored.offset + start)
                samples.append(file.read(min(_SAMPLED, size - start)))
        return b"".join(samples)

    def _num_bytes(self, stored: Stored) -> int:
        block, width = _sizes(stored.kind)
        return int(np.prod(stored.shape, dtype=np.int64)) // block * width

    def _refuse_damage(self, header: Header) -> None:
        """Refuse types that hold no weights, and tensors that do not lie one behind the other."""
        from gguf.quants import dequantize

        with parsing(self.path, "a GGUF file of weights"):
            for kind in {stored.kind for stored in header.tensors.values()}:
                dequantize(np.zeros((1, _sizes(kind)[1]), np.uint8), _type(kind))  # which refuses whole numbers
            spans = {}
            for name, stored in header.tensors.items():
                block, _ = _sizes(stored.kind)
                if not stored.shape or stored.shape[-1] % block:
                    raise ValueError(f"{name} is of shape {list(stored.shape)}, and its type has blocks of {block}")
                spans[name] = stored.offset, self._num_bytes(stored)
            end = self.path.stat().st_size
            refuse_misplaced(spans, begin=header.begin, end=end, alignment=header.alignment)

    def _config(self) -> dict[str, Any]:
        fields, blocks = self._fields, self._fields.whole("llama.block_count", least=1, most=_MOST_BLOCKS)
        heads = fields.whole("llama.attention.head_count", least=1)
        shared = fields.whole("llama.attention.head_count_kv", least=1, default=heads)
        outer = self._outer(heads)
        if outer["head_dim"] * heads == outer["hidden_size"]:
            del outer["head_dim"]  # which configs need not say
        for index in range(blocks):
            for part, count in (("q_proj", heads), ("k_proj", shared)):
                for leaf in ("weight", "bias"):
                    self._heads[f"model.layers.{index}.self_attn.{part}.{leaf}"] = count
        biased, other = (f"model.layers.0.self_attn.{part}_proj.bias" in self.shapes for part in "qo")
        name = "Qwen2" if biased and not other else "Llama"  # whose attention is one but for the last bias
        return {
            **outer,
            "model_type": name.lower(),
            "architectures": [f"{name}ForCausalLM"],
            "num_hidden_layers": blocks,
            "num_attention_heads": heads,
            "num_key_value_heads": shared,
            "intermediate_size": fields.whole("llama.feed_forward_length", least=1),
            "hidden_act": "silu",
            **({"attention_bias": biased} if name == "Llama" else {}),  # Qwen 2 always has them
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self.shapes,
        }

    def _config_of_blocks(self) -> dict[str, Any]:
        """The config of a model whose blocks differ: each layer, as an expression."""
        fields, blocks = self._fields, self._fields.whole("deci.block_count", least=1, most=_MOST_BLOCKS)
        names = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
        counts = [fields.wholes(f"deci.{name}", most=_MOST_WIDTH) for name in names]
        counts = [found * blocks if len(found) == 1 else found for found in counts]
        for name, found in zip(names, counts, strict=True):
            if len(found) != blocks:
                fields.refuse(f"deci.{name}", f"a whole number of each of {blocks} blocks")
        outer = self._outer(counts[0][0])
        hidden, size, rows = outer["hidden_size"], outer.pop("head_dim"), outer["vocab_size"]
        base, eps = outer.pop("rope_theta"), outer.pop("rms_norm_eps")
        style = f"Style(norm='rms', eps={eps}, bias=False)"
        layers = [("embedding", f"Embedding({rows}, {hidden})")]
        for index, (heads, shared, width) in enumerate(zip(*counts, strict=True)):
            if bool(heads) != bool(shared):
                raise StorageError(f"{self.path} has {heads} heads and {shared} of keys in block {index}; get it again")
            if heads:
                how = f"Heads(count={heads}, key_value={shared}, size={size}, rotary=Rotary(base={base}))"
                layers.append((f"attention_{index}", f"SelfAttention({hidden}, {how}, {style})"))
                for part, count in (("query", heads), ("key", shared)):
                    self._heads[f"network.attention_{index}.{part}.weight"] = count
            if width:
                how = f"FeedForward({hidden}, {width}, activation='silu', style={style}, is_gated=True)"
                layers.append((f"feedforward_{index}", how))
        layers += [("norm", f"RMSNorm({hidden}, eps={eps})"), ("head", f"Linear({hidden}, {rows}, bias=False)")]
        tied = ("embedding.token.weight", "head.weight") if outer["tie_word_embeddings"] else ()
        own = {"layers": [*map(list, layers)], "tied": dict.fromkeys(tied, "embedding")}
        return {**outer, "model_type": CODED, "found_in": "deci", **own}

    def _outer(self, heads: int) -> dict[str, Any]:
        """What all kinds of models have, of which the first block has so many heads."""
        fields, family = self._fields, self._family
        hidden = fields.whole(f"{family}.embedding_length", least=1, most=_MOST_WIDTH)
        given = f"{family}.attention.key_length"
        if given not in self.metadata and (not heads or hidden % heads):
            raise StorageError(f"{self.path} has {heads} attention heads for an embedding_length of {hidden}")
        size = fields.whole(given, least=1, most=_MOST_WIDTH, default=None) or hidden // heads
        rotary = fields.whole(f"{family}.rope.dimension_count", default=size)
        if rotary != size or size % 2 or fields.whole(f"{family}.attention.value_length", default=size) != size:
            raise StorageError(f"{self.path} has heads of {size} of which {rotary} turn; all must")
        name = "model.embed_tokens.weight" if family == "llama" else _OURS["token_embd.weight"]
        embedding = self.shapes.get(name)
        if embedding is None or len(embedding) != 2:
            raise StorageError(f"{self.path} lacks token_embd.weight; is it a whole llama model?")
        config = {
            "vocab_size": embedding[0],
            "hidden_size": hidden,
            "head_dim": size,
            "max_position_embeddings": fields.whole(f"{family}.context_length", least=1),
            # saved in single precision; the shortest number that gives it is the one that was meant
            "rms_norm_eps": _shortest(fields.number(f"{family}.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(fields.number(f"{family}.rope.freq_base", default=10000.0)),
            "tie_word_embeddings": not {"lm_head.weight", _OURS["output.weight"]} & self.shapes.keys(),
        }
        for ours, theirs in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
            number = fields.whole(f"tokenizer.ggml.{theirs}_token_id", most=embedding[0] - 1, default=None)
            if number is not None:
                config[ours] = number
        return config


def _published(name: str) -> str:
    """The name that `transformers` gives a tensor."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _IN_BLOCK:
        return f"model.layers.{int(block[1])}.{_IN_BLOCK[block[2]]}.{block[3]}"
    return _TOP.get(name, name)  # an unknown one is refused as a tensor too many


def _coded(name: str) -> str:
    """The name that we give a tensor of a model whose config names each layer."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _OURS:
        return f"network.{_OURS[block[2]].format(int(block[1]))}.{block[3]}"
    return _OURS.get(name, name)


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
