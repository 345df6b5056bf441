"""Families of published language models, as data: what each is, and what its configs and its tensors call things."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from l2l_nas.compress.config import FULL, SLIDING, RopeFields

Names = Mapping[str, str]

# what configs call what; a family that has no field of a kind has no such name
_KEYS: Names = {
    "hidden": "hidden_size",
    "vocabulary": "vocab_size",
    "length": "max_position_embeddings",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "intermediate_size",
    "eps": "rms_norm_eps",
    "activation": "hidden_act",
}
_LLAMA_KEYS: Names = {
    **_KEYS,
    "key_value": "num_key_value_heads",
    "size": "head_dim",
    "attention_dropout": "attention_dropout",
}


# what the tensors of llama are called, by position and part of ours; `*` is the number of an expert
_LLAMA: Names = {
    "embedding.token": "model.embed_tokens",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.norm": "input_layernorm",
    **{f"feed_forward.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "feed_forward.norm": "post_attention_layernorm",
    "norm": "model.norm",
    "head": "lm_head",
}
_QUERY_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}
_ADDED_NORMS = {
    "attention.added_norm": "post_attention_layernorm",
    "feed_forward.added_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class FamilyRow:
    """One family: what differs from llama."""

    names: Names = field(default_factory=lambda: _LLAMA)  # of its tensors
    block: str = "model.layers.{}."  # what names of tensors of a block begin with, `{}` for its number
    # tensors that hold several of our parts, one behind the other, and which
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_by_head: bool = False  # whether they do so within each head
    is_transposed: bool = False  # whether matrices of blocks are [in, out]
    base: str = "model."  # what names of a model without its head lack
    ignored: tuple[str, ...] = ()  # beginnings of names that may be there in addition: other heads
    copies: Names = field(default_factory=dict)  # names that may be there in addition: each a copy of which tensor
    keys: Names = field(default_factory=lambda: _LLAMA_KEYS)  # fields of the config by what they mean
    # of fields, where those of `transformers` and of our layers differ, or those of families
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)  # fields, and the one value of each that our layers do
    rope: RopeFields | None = RopeFields({FULL: ("rope_theta", 10_000.0)})  # None: learned positions
    norm: str = "rms"  # a name in `NORMS`
    norm_place: str = "before"  # norms are "before" a sub-layer, of what is "added", "both", or of the "sum"
    query_norm: str = ""  # what of queries and keys has a norm: each "head", the "whole", or nothing
    # whether there is a bias, or the field that says so: of queries, keys and values; of attention's last layer (None:
    # as of those); of feed-forward networks
    bias: bool | str = False
    out_bias: bool | str | None = None
    inner_bias: bool | str = False
    windows: str = "none"  # see `Config.kinds`
    is_gated: bool = True  # whether feed-forward networks have a gate
    is_mixture: bool = False  # whether they are mixtures of experts
    is_masked: bool = False  # a masked language model: tokens see later ones, and the head is BERT's
    is_scaled: bool = False  # whether embeddings are multiplied by the root of their width
    # the width of feed-forward networks over that of the model, where the config has no such field; 0: it must have one
    width_factor: int = 0
    parallel: str = ""  # the field that says whether attention and feed-forward network work beside each other
    activations: Names = field(default_factory=dict)  # as our layers name those that the family means otherwise
    harmless: tuple[str, ...] = ()  # further fields of which no logit follows

    @property
    def unread(self) -> frozenset[str]:
        """Fields that its configs may have although nothing reads them, as another one says more."""
        known = HARMLESS.union(self.harmless, self.defaults)
        if self.rope is None:
            return known
        own = [*self.rope.base.values(), *([self.rope.share] if self.rope.share else [])]
        return known.union(_ROPE_FIELDS, (name for name, _ in own))


# fields that any config may have with this one value, where its family does not read them
ONLY: Mapping[str, Any] = {
    "is_causal": True,
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "use_bidirectional_attention": False,
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "rope_interleaved": False,
    "use_mrope": False,
    "pruned_heads": {},
    "pretraining_tp": 1,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "tie_encoder_decoder": False,
}
# fields of which no logit follows: names, tokens, precision, training, heads of other tasks, generation
HARMLESS = frozenset(
    re.findall(
        r"\S+",
        """
        model_type architectures auto_map transformers_version transformers.js_config _name_or_path _commit_hash
        _model_name_or_path dtype torch_dtype torchscript use_bfloat16 tf_legacy_loss return_dict use_return_dict
        output_attentions output_hidden_states use_cache cache_implementation gradient_checkpointing attn_implementation
        _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled chunk_size_feed_forward
        reorder_and_upcast_attn initializer_range is_llama_config unsloth_fixed unsloth_version n_ctx
        bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id
        decoder_start_token_id tokenizer_class prefix id2label label2id num_labels _num_labels problem_type
        finetuning_task task_specific_params classifier_dropout classifier_bias classifier_activation
        summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout directionality
        pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
        max_length min_length max_new_tokens min_new_tokens do_sample early_stopping num_beams num_beam_groups
        diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
        encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
        forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
        begin_suppress_tokens cross_attention_hidden_size configuration_files quantization_config
        """,
    )
)
# which `rope_parameters` may make idle
_ROPE_FIELDS = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")

_UNTIED = {"tie_word_embeddings": False}
_LATE = {"sliding_window": 4096, "max_window_layers": 28}
_GEMMA_NAMES = {**_LLAMA, **_ADDED_NORMS, "feed_forward.norm": "pre_feedforward_layernorm"}
_GEMMA = FamilyRow(
    defaults={
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    norm="offset_rms",
    is_scaled=True,
    activations={"gelu": "gelu_tanh"},
    bias="attention_bias",
)
_GEMMA_2 = replace(
    _GEMMA,
    names=_GEMMA_NAMES,
    keys={
        **_LLAMA_KEYS,
        "activation": "hidden_activation",
        "scale": "query_pre_attn_scalar",
        "attention_cap": "attn_logit_softcapping",
        "cap": "final_logit_softcapping",
    },
    defaults={
        **_GEMMA.defaults,
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window_pattern": 2,
    },
    norm_place="both",
    windows="each",
    activations={},
)

FAMILIES: Mapping[str, FamilyRow] = {
    "bert": FamilyRow(
        names={
            **{f"attention.{name}": f"attention.self.{name}" for name in ("query", "key", "value")},
            "attention.out": "attention.output.dense",
            "attention.norm": "attention.output.LayerNorm",
            "feed_forward.up": "intermediate.dense",
            "feed_forward.down": "output.dense",
            "feed_forward.norm": "output.LayerNorm",
            "embedding.token": "bert.embeddings.word_embeddings",
            "embedding.place": "bert.embeddings.position_embeddings",
            "embedding.kind": "bert.embeddings.token_type_embeddings",
            "embedding.norm": "bert.embeddings.LayerNorm",
            "head.dense": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.LayerNorm",
            "head.out": "cls.predictions.decoder",
            "head.out.bias": "cls.predictions.bias",
        },
        block="bert.encoder.layer.{}.",
        base="bert.",
        ignored=("bert.pooler.", "cls.seq_relationship."),
        copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
        keys={
            **_KEYS,
            "eps": "layer_norm_eps",
            "kinds": "type_vocab_size",
            "dropout": "hidden_dropout_prob",
            "embedding_dropout": "hidden_dropout_prob",
            "attention_dropout": "attention_probs_dropout_prob",
        },
        defaults={
            "tie_word_embeddings": True,
            "layer_norm_eps": 1e-12,
            "type_vocab_size": 2,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        },
        only={"position_embedding_type": "absolute", "is_causal": False},
        rope=None,
        norm="layer",
        norm_place="sum",
        bias=True,
        inner_bias=True,
        is_gated=False,
        is_masked=True,
    ),
    "gpt2": FamilyRow(
        names={
            "attention.out": "attn.c_proj",
            "attention.norm": "ln_1",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
            "feed_forward.norm": "ln_2",
            "embedding.token": "transformer.wte",
            "embedding.place": "transformer.wpe",
            "norm": "transformer.ln_f",
            "head": "lm_head",
        },
        block="transformer.h.{}.",
        fused={"attn.c_attn": ("query", "key", "value")},
        is_transposed=True,
        base="transformer.",
        keys={
            "hidden": "n_embd",
            "vocabulary": "vocab_size",
            "length": "n_positions",
            "layers": "n_layer",
            "heads": "n_head",
            "width": "n_inner",
            "eps": "layer_norm_epsilon",
            "activation": "activation_function",
            "dropout": "resid_pdrop",
            "embedding_dropout": "embd_pdrop",
            "attention_dropout": "attn_pdrop",
        },
        defaults={
            "tie_word_embeddings": True,
            "layer_norm_epsilon": 1e-5,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
        },
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
        rope=None,
        norm="layer",
        bias=True,
        inner_bias=True,
        is_gated=False,
        width_factor=4,
    ),
    "llama": FamilyRow(
        defaults={**_UNTIED, "rms_norm_eps": 1e-6},
        bias="attention_bias",
        inner_bias="mlp_bias",
    ),
    "mistral": FamilyRow(
        defaults={**_UNTIED, "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096},
        windows="all",
    ),
    "mixtral": FamilyRow(
        names={
            **_LLAMA,
            "feed_forward.router": "block_sparse_moe.gate",
            "feed_forward.experts.*.gate": "block_sparse_moe.experts.*.w1",
            "feed_forward.experts.*.up": "block_sparse_moe.experts.*.w3",
            "feed_forward.experts.*.down": "block_sparse_moe.experts.*.w2",
        },
        defaults={**_UNTIED, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
        only={"router_jitter_noise": 0.0},
        harmless=("router_aux_loss_coef",),
        rope=RopeFields({FULL: ("rope_theta", 1e6)}),
        windows="all",
        is_mixture=True,
    ),
    "qwen3": FamilyRow(
        names={**_LLAMA, **_QUERY_NORMS},
        defaults={**_UNTIED, **_LATE, "rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128},
        query_norm="head",
        windows="late",
        bias="attention_bias",
    ),
    "qwen2": FamilyRow(
        defaults={**_UNTIED, **_LATE, "rms_norm_eps": 1e-6, "num_key_value_heads": 32},
        bias=True,
        out_bias=False,
        windows="late",
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3_text": replace(
        _GEMMA_2,
        names={**_GEMMA_NAMES, **_QUERY_NORMS},
        keys={what: name for what, name in _GEMMA_2.keys.items() if what != "attention_cap"},
        defaults={
            **_GEMMA.defaults,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
            "sliding_window_pattern": 6,
        },
        rope=RopeFields({FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 10_000.0)}),
        query_norm="head",
        harmless=("_sliding_window_pattern",),
    ),
    "phi3": FamilyRow(
        fused={"self_attn.qkv_proj": ("query", "key", "value"), "mlp.gate_up_proj": ("gate", "up")},
        keys={**_LLAMA_KEYS, "dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop"},
        defaults={**_UNTIED, "rms_norm_eps": 1e-5},
        rope=RopeFields({FULL: ("rope_theta", 10_000.0)}, share=("partial_rotary_factor", 1.0), kinds=("default",)),
        windows="all",
    ),
    "olmo2": FamilyRow(
        names={**_LLAMA, **_QUERY_NORMS, **_ADDED_NORMS},
        defaults={**_UNTIED, "rms_norm_eps": 1e-5},
        norm_place="added",
        query_norm="whole",
        bias="attention_bias",
    ),
    "gpt_neox": FamilyRow(
        names={
            **_LLAMA,
            "attention.out": "attention.dense",
            "feed_forward.up": "mlp.dense_h_to_4h",
            "feed_forward.down": "mlp.dense_4h_to_h",
            "embedding.token": "gpt_neox.embed_in",
            "norm": "gpt_neox.final_layer_norm",
            "head": "embed_out",
        },
        block="gpt_neox.layers.{}.",
        fused={"attention.query_key_value": ("query", "key", "value")},
        is_by_head=True,
        base="gpt_neox.",
        keys={
            **_KEYS,
            "eps": "layer_norm_eps",
            "dropout": "hidden_dropout",
            "embedding_dropout": "hidden_dropout",
            "attention_dropout": "attention_dropout",
        },
        defaults={**_UNTIED, "layer_norm_eps": 1e-5, "use_parallel_residual": True, "attention_bias": True},
        rope=RopeFields({FULL: ("rotary_emb_base", 10_000.0)}, share=("rotary_pct", 0.25)),
        norm="layer",
        inner_bias=True,
        is_gated=False,
        parallel="use_parallel_residual",
        bias="attention_bias",
    ),
}
