"""A found network as a GGUF file that llama.cpp loads, where it is made of llama's sub-layers.

Blocks that are alike are the architecture `llama`. Others are `deci`, whose heads and widths are arrays, one number a
block: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp. llama.cpp takes the size of all heads from
the first block, and a block of `deci` that has attention has a feed-forward network: where a network lacks these, a
small one of zeros, which adds nothing, stands in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2l_nas.layers import Embedding, FeedForward, Heads, LowRankMap, Rotary, SelfAttention, Style
from l2l_nas.plugins import optional
from l2l_nas.space.candidate import Candidate
from l2l_nas.training.formats import ExportError

_EMPTY = 32  # units of a feed-forward network of zeros: a block of any type of tensor
_ATTENTION = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "out": "attn_output", "norm": "attn_norm"}
_NETWORK = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down", "norm": "ffn_norm"}
_OUTER = {"embedding": "token_embd", "norm": "output_norm", "head": "output"}


@dataclass(frozen=True)
class _Block:
    """A block: the names of its sub-layers in the network, and what they are; None: there is none."""

    attention: tuple[str, Heads] | None = None
    network: tuple[str, int] | None = None  # and how wide it is


class GGUFModel:
    """A network as GGUF has it.

    Args:
        layers: the network's positions and candidates, in order, without those that are skipped.
        length: of its longest sequence.

    Raises:
        ExportError: it has something that llama has not.
    """

    def __init__(self, layers: Sequence[tuple[str, Candidate]], *, length: int) -> None:
        self._length, self._ties = length, {name for name, layer in layers if layer.tied}
        ends = [(name, *_made_by(layer)) for name, layer in (*layers[:1], *layers[-2:])]
        eps = next((options.get("eps") for _, kind, _, options in ends if kind is nn.RMSNorm), None)
        wanted = [
            ("embedding", Embedding, {}),
            ("norm", nn.RMSNorm, {"eps": eps}),
            ("head", nn.Linear, {"bias": False}),
        ]
        if eps is None or [(name, kind, options) for name, kind, _, options in ends] != wanted:
            raise _not_of_llama("its embedding, last norm or head")
        self._style = Style(norm="rms", eps=eps, bias=False)
        self._vocabulary, self._hidden = ends[0][2]
        self.blocks = [*self._parted(layers[1:-2])]
        heads = [block.attention[1] for block in self.blocks if block.attention]
        if not heads:
            raise _not_of_llama("no attention at all")
        self._heads = heads[0]
        assert isinstance(self._heads.rotary, Rotary)
        if len({(one.rotary, one.size or self._hidden // one.count) for one in heads}) > 1:
            raise _not_of_llama("attention with several sizes of heads or rotary positions")
        self._size = self._heads.size or self._hidden // self._heads.count
        counts = {(block.attention and block.attention[1], block.network and block.network[1]) for block in self.blocks}
        self.architecture = "llama" if len(counts) == 1 and all(next(iter(counts))) else "deci"

    def _parted(self, layers: Sequence[tuple[str, Candidate]]) -> Iterator[_Block]:
        block = _Block()
        for name, candidate in layers:
            kind, args, options = _made_by(candidate)
            style = options.get("style", args[2] if kind is SelfAttention and len(args) > 2 else None) or Style()
            if replace(style, bias=False, dropout=0.0, deviation=None, sublayers=1) != self._style:
                raise _not_of_llama(f"the norm of '{name}'")
            if kind is SelfAttention:
                if not _is_llama_s(args[1]):
                    raise _not_of_llama(f"the attention of '{name}'")
                if block != _Block():
                    yield block
                block = _Block(attention=(name, replace(args[1], dropout=0.0)))
            elif kind is FeedForward and options.get("activation") == "silu" and options.get("is_gated"):
                if options.get("rank") is not None:
                    raise _not_of_llama(f"the matrices of '{name}', which are products")
                if block.network:
                    yield block
                    block = _Block()
                block = replace(block, network=(name, args[1]))
            else:
                is_linear = kind is LowRankMap
                raise _not_of_llama(f"the linear map of '{name}'" if is_linear else f"'{name}'")
        yield block

    def write(
        self, path: Path, parameters: Mapping[str, Tensor], tokenizer: Callable[..., None], *, is_half: bool
    ) -> None:
        """Write the file.

        Args:
            parameters: the network's, by name.
            tokenizer: adds it to a writer, for a vocabulary of a size.
            is_half: whether matrices are float16.

        Raises:
            ExportError: parameters or a tokenizer that llama.cpp does not load.
        """
        gguf = optional("gguf", "GGUF files need", extra="gguf")

        tensors = {name: (tensor.detach(), shape) for name, tensor, shape in self._tensors(parameters)}
        if self.architecture == "deci" and any(name.endswith(".bias") for name in tensors):
            raise _not_of_llama("biases in blocks that are not alike")
        writer = gguf.GGUFWriter(str(path), self.architecture)
        self._describe(writer)
        tokenizer(writer, size=self._vocabulary)
        for name, (tensor, shape) in tensors.items():
            kind = np.float16 if is_half and len(shape) > 1 else np.float32
            writer.add_tensor(name, np.ascontiguousarray(tensor.reshape(shape).numpy(), dtype=kind))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def read(self, path: Path, parameters: Mapping[str, Tensor]) -> None:
        """Give a network's parameters the values that a file of this model has."""
        gguf = optional("gguf", "GGUF files need", extra="gguf")
        stored = {one.name: one.data for one in gguf.GGUFReader(path).tensors}
        with torch.no_grad():
            for name, tensor, _ in self._tensors(parameters):
                tensor.copy_(torch.from_numpy(np.array(stored[name])).view(tensor.shape))

    def _describe(self, writer: Any) -> None:
        counts = [self._numbers(index) for index in range(len(self.blocks))]
        heads, shared, widths = map(list, zip(*counts, strict=True))
        is_alike = self.architecture == "llama"
        assert isinstance(self._heads.rotary, Rotary)
        writer.add_block_count(len(self.blocks))
        writer.add_context_length(self._length)
        writer.add_embedding_length(self._hidden)
        writer.add_feed_forward_length(widths[0] if is_alike else widths)
        writer.add_head_count(heads[0] if is_alike else heads)
        writer.add_head_count_kv(shared[0] if is_alike else shared)
        writer.add_key_length(self._size)
        writer.add_value_length(self._size)
        writer.add_layer_norm_rms_eps(self._style.eps)
        writer.add_rope_freq_base(self._heads.rotary.base)
        writer.add_rope_dimension_count(self._size)
        writer.add_vocab_size(self._vocabulary)

    def _numbers(self, index: int) -> tuple[int, int, int]:
        """Heads, heads of keys and values, and units of a block in the file."""
        attention, network = self.blocks[index].attention, self.blocks[index].network
        heads, shared = (attention[1].count, attention[1].shared) if attention else (0, 0)
        if not attention and index == 0:
            heads = shared = 1
        return heads, shared, network[1] if network else _EMPTY

    def _tensors(self, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
        """Tensors of the file: their names, views of the parameters in the file's order of rows, and their shapes."""
        for name, theirs in _OUTER.items():
            if name != "head" or name not in self._ties:
                (parameter,) = (tensor for key, tensor in parameters.items() if key.rpartition(".")[0] in _inside(name))
                yield f"{theirs}.weight", parameter, parameter.shape
        for index, block in enumerate(self.blocks):
            heads, shared, width = self._numbers(index)
            parts = [(block.attention, _ATTENTION), (block.network, _NETWORK)]
            for place, names in parts:
                for part, theirs in names.items() if place else ():
                    assert place is not None
                    for leaf in ("weight", "bias"):
                        tensor = parameters.get(f"{place[0]}.{part}.{leaf}")
                        if tensor is not None:
                            count = {"query": heads, "key": shared}.get(part)
                            ordered = _pairs(tensor, count) if count else tensor
                            yield f"blk.{index}.{theirs}.{leaf}", ordered, tensor.shape
            if not block.attention and index == 0:
                yield from self._zeros(index, _ATTENTION, heads * self._size)
            if not block.network:
                yield from self._zeros(index, _NETWORK, width)

    def _zeros(self, index: int, names: Mapping[str, str], inner: int) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
        for part, theirs in names.items():
            outer = part in ("out", "down")
            shape = (self._hidden,) if part == "norm" else (self._hidden, inner) if outer else (inner, self._hidden)
            yield f"blk.{index}.{theirs}.weight", torch.zeros(shape), shape


def _inside(name: str) -> tuple[str, ...]:
    return name, f"{name}.token"


def _made_by(candidate: Candidate) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    factory = candidate.factory
    if not isinstance(factory, partial):
        return factory, (), {}
    return factory.func, factory.args, factory.keywords


def _is_llama_s(heads: Heads) -> bool:
    rotary = heads.rotary
    plain = Heads(heads.count, heads.key_value, heads.size, rotary, dropout=heads.dropout)
    plain = replace(plain, bias=heads.bias, out_bias=heads.out_bias)
    return heads == plain and isinstance(rotary, Rotary) and rotary == Rotary(rotary.base)


def _pairs(tensor: Tensor, heads: int) -> Tensor:
    """A view of rows of each head, not as halves (0, 1, ..., n/2, n/2 + 1, ...) but as pairs (0, n/2, 1, ...)."""
    halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2)


def _not_of_llama(what: str) -> ExportError:
    return ExportError(f"GGUF files are written of llama's layers, and {what} is not among them; use hugging_face")
