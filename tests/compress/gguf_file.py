"""GGUF files by the package `gguf`, and the steps that llama.cpp runs on one of the llama family, in plain PyTorch."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch.nn import functional


def metadata_of(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items() if "." in name}


def logits_of(path, tokens):
    about = metadata_of(path)
    family = about["general.architecture"]
    weights = {one.name: torch.from_numpy(np.array(one.data, np.float32)) for one in gguf.GGUFReader(path).tensors}

    def figure(name, block=0):
        value = about[f"{family}.{name}"]
        return value[block] if isinstance(value, list) else value

    def linear(states, name):
        return functional.linear(states, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(states, name):
        eps = figure("attention.layer_norm_rms_epsilon")
        return functional.rms_norm(states, states.shape[-1:], weights[f"{name}.weight"], eps)

    def turned(heads):
        """Each pair of numbers side by side by an angle of its own."""
        size = figure("rope.dimension_count")
        angles = torch.arange(heads.shape[-2])[:, None] * figure("rope.freq_base") ** (-torch.arange(0, size, 2) / size)
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    def attention(states, block):
        counts = figure("attention.head_count", block), figure("attention.head_count_kv", block)
        query, key, value = (
            linear(states, f"blk.{block}.attn_{part}").unflatten(-1, (count, -1)).transpose(-2, -3)
            for part, count in zip("qkv", (counts[0], counts[1], counts[1]), strict=True)
        )
        made = functional.scaled_dot_product_attention(
            turned(query), turned(key), value, is_causal=True, enable_gqa=True
        )
        return linear(made.transpose(-2, -3).flatten(-2), f"blk.{block}.attn_output")

    states = weights["token_embd.weight"][tokens]
    for block in range(figure("block_count")):
        if figure("attention.head_count", block):
            states = states + attention(norm(states, f"blk.{block}.attn_norm"), block)
        inner = norm(states, f"blk.{block}.ffn_norm")
        gated = functional.silu(linear(inner, f"blk.{block}.ffn_gate")) * linear(inner, f"blk.{block}.ffn_up")
        states = states + linear(gated, f"blk.{block}.ffn_down")
    return linear(norm(states, "output_norm"), "output" if "output.weight" in weights else "token_embd")
