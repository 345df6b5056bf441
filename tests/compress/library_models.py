"""Small models of types that no row describes, as `transformers` saves them."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers as hf

from tests.compress.small_model import save_small_llama

_SMALL = {
    "vocab_size": 264, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 2,
}  # fmt: skip
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
}  # fmt: skip
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16}
_LATENT = {
    **_EXPERTS, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": None,
    "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
_MAMBA = {f"mamba_{name}": 8 for name in ("n_heads", "d_head", "d_state", "chunk_size")} | {"mamba_n_groups": 1}
_WINDOW = {"sliding_window": 8}
TYPES = {
    "qwen3_moe": _EXPERTS,
    "qwen3_next": {**_SHARED, **{f"linear_{name}_head_dim": 8 for name in ("key", "value")},
                   "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "qwen2_moe": _SHARED,
    "smollm3": {},
    "olmo": {},
    "olmo3": _WINDOW,
    "olmoe": _EXPERTS,
    "flex_olmo": _EXPERTS,
    "granite": {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "granitemoe": _EXPERTS,
    "granitemoeshared": _SHARED,
    "granitemoehybrid": {**_SHARED, **_MAMBA, "layer_types": ["mamba", "attention"] * 2},
    "glm": {},
    "glm4": {},
    "glm4_moe": {**_EXPERTS, "first_k_dense_replace": 1},
    "cohere": {},
    "cohere2": _WINDOW,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_ff_dim": 64, "block_multiple_of": 8},
    "gpt_oss": {**_EXPERTS, **_WINDOW},
    "phi": {},
    "phimoe": {**_EXPERTS, "sliding_window": None},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "nemotron": {},
    "arcee": {},
    "helium": {},
    "exaone4": _WINDOW,
    "ernie4_5": {},
    "ernie4_5_moe": _EXPERTS,
    "ministral": _WINDOW,
    "stablelm": {},
    "starcoder2": _WINDOW,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "seed_oss": {},
    "hunyuan_v1_dense": {},
    "apertus": {},
    "minimax": {**_EXPERTS, "block_size": 8, "layer_types": ["linear_attention", "full_attention"] * 2},
    "persimmon": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "gptj": {"rotary_dim": 4, "n_inner": 64},
    "bloom": {},
    "biogpt": {},
}  # fmt: skip


def save_model(folder: Path, kind: str, **more: object) -> hf.PreTrainedModel:
    """Write one with random weights, and the tokenizer of `save_small_llama`."""
    save_small_llama(folder)
    torch.manual_seed(0)
    config = hf.AutoConfig.for_model(kind, **{**_SMALL, **TYPES.get(kind, {}), **more})
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    return model
