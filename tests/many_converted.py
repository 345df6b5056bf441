"""Many more models of torchvision, transformers and timm for `convert`, two layers each, by the name on the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.converted import SIZES, Case, _ids

MANY_CASES: dict[str, Callable[[], Case]] = {}

_SIZES = {**SIZES, "num_hidden_layers": 2}
_NO_DROPS = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_ONE = {"num_key_value_heads": 1}
_HEADS = {**_ONE, "head_dim": 8}
_WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_DROPS = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)


def _mask() -> Tensor:
    mask = torch.ones(4, 7, dtype=torch.int64)
    mask[2:, 5:] = 0
    return mask


def _model(kind: str, head: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    name = head if head[0] != "+" else kind + head[1:]
    labels = settings.pop("num_labels", None)
    config = getattr(transformers, f"{kind}Config")(**settings)
    if labels:
        config.num_labels = labels
    return getattr(transformers, name)(config)


def _decoder(name: str, kind: str, blocks: str = "model.layers", head: str = "+ForCausalLM", **settings: Any) -> None:
    def make() -> Case:
        return Case(_model(kind, head, dict(settings)), {"input_ids": _ids(), "use_cache": False}, blocks)

    MANY_CASES[name] = make


def _encoder(name: str, kind: str, blocks: str, **settings: Any) -> None:
    def make() -> Case:
        model = _model(kind, "+ForMaskedLM", {**_SIZES, **_NO_DROPS, "max_position_embeddings": 32, **settings})
        return Case(model, {"input_ids": _ids(), "attention_mask": _mask()}, blocks)

    MANY_CASES[name] = make


def _translator(name: str, kind: str, head: str = "+ForConditionalGeneration", **settings: Any) -> None:
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 50, "max_position_embeddings": 32}
    sizes |= {
        f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("attention_heads", 2), ("ffn_dim", 32))
    }
    drops = dict.fromkeys(("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop"), 0.0)
    tokens = {**_TOKENS, "decoder_start_token_id": 2, "forced_eos_token_id": 2}

    def make() -> Case:
        example = {"input_ids": _ids(), "decoder_input_ids": _ids(5), "use_cache": False}
        model = _model(kind, head, {**sizes, **drops, **tokens, **settings})
        return Case(model, example, ["model.encoder.layers", "model.decoder.layers"])

    MANY_CASES[name] = make


def _seer(
    name: str,
    kind: str,
    blocks: str,
    head: str = "+ForImageClassification",
    size: int = 16,
    output: str = "",
    **settings: Any,
) -> None:
    def make() -> Case:
        model = _model(kind, head, {"image_size": size, "patch_size": 4, "num_labels": 5, **settings})
        return Case(
            model, {"pixel_values": torch.randn(4, 3, size, size)}, blocks, {"output": output} if output else {}
        )

    MANY_CASES[name] = make


def _listener(name: str, kind: str, blocks: str) -> None:
    drops = (
        "hidden_dropout",
        "attention_dropout",
        "feat_proj_dropout",
        "final_dropout",
        "activation_dropout",
        "layerdrop",
    )
    front = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3), "num_feat_extract_layers": 2}
    places = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}

    def make() -> Case:
        model: Any = _model(kind, "+ForCTC", {**_SIZES, **front, **places, **dict.fromkeys(drops, 0.0)})
        model.freeze_feature_encoder()
        return Case(model, {"input_values": torch.randn(4, 160)}, blocks)

    MANY_CASES[name] = make


def _of_torchvision(
    name: str, make: Callable[[Any], nn.Module], blocks: str, shape: tuple[int, ...] = (3, 16, 16), **settings: Any
) -> None:
    def make_case() -> Case:
        import torchvision

        model = make(torchvision.models)
        for module in model.modules():
            if isinstance(module, nn.Dropout):  # its numbers follow from a layer's position here
                module.p = 0.0
        return Case(model, torch.randn(4, *shape), blocks, settings)

    MANY_CASES[f"torchvision {name}"] = make_case


def _of_timm(name: str, model: str, blocks: str | list[str], size: int = 32, **settings: Any) -> None:
    def make() -> Case:
        timm = pytest.importorskip("timm")
        build = getattr(timm.models, model, None) or (lambda **kwargs: timm.create_model(model, **kwargs))
        return Case(build(num_classes=5, **settings), torch.randn(4, 3, size, size), blocks)

    MANY_CASES[f"timm {name}"] = make


def _decoders() -> None:
    _decoder("Qwen2", "Qwen2", **_SIZES, **_ONE)
    _decoder(
        "Qwen3-MoE", "Qwen3Moe", **_SIZES, **_HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
    )
    _decoder("Gemma", "Gemma", **_SIZES, **_HEADS)
    _decoder("Gemma 3", "Gemma3Text", head="Gemma3ForCausalLM", **_SIZES, **_HEADS, **_WINDOWS)
    _decoder(
        "Llama 4",
        "Llama4Text",
        head="Llama4ForCausalLM",
        **_SIZES,
        **_HEADS,
        intermediate_size_mlp=32,
        num_local_experts=2,
        pad_token_id=0,
    )
    _decoder("OLMo", "Olmo", **_SIZES, pad_token_id=0)
    _decoder("OLMo 2", "Olmo2", **_SIZES, **_ONE, pad_token_id=0)
    _decoder("OLMoE", "Olmoe", **_SIZES, **_ONE, num_experts=4, num_experts_per_tok=2, pad_token_id=0)
    ranks = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    groups = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
    _decoder(
        "DeepSeek-V3",
        "DeepseekV3",
        **_SIZES,
        **ranks,
        **groups,
        num_key_value_heads=2,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
    )
    _decoder("GPT-OSS", "GptOss", **_SIZES, **_HEADS, **_EXPERTS, **_WINDOWS, **_TOKENS)
    falcon = {name: size for name, size in _SIZES.items() if name != "intermediate_size"}
    _decoder("Falcon", "Falcon", "transformer.h", **falcon, ffn_hidden_size=32, bos_token_id=1, eos_token_id=2)
    _decoder(
        "BLOOM",
        "Bloom",
        "transformer.h",
        vocab_size=50,
        hidden_size=16,
        n_layer=2,
        n_head=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    _decoder(
        "MPT",
        "Mpt",
        "transformer.blocks",
        d_model=16,
        n_heads=2,
        n_layers=2,
        vocab_size=50,
        max_seq_len=32,
        expansion_ratio=2,
    )
    gpt = {
        "vocab_size": 50,
        "n_embd": 16,
        "n_layer": 2,
        "rotary_dim": 4,
        "n_positions": 32,
        **_DROPS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    _decoder("GPT-J", "GPTJ", "transformer.h", **gpt, n_head=2)
    _decoder("CodeGen", "CodeGen", "transformer.h", **gpt, n_head=4)
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 16, "dff": 32, "n_layer": 2, "n_head": 2}
    _decoder("CTRL", "CTRL", "transformer.h", "CTRLLMHeadModel", **sizes, resid_pdrop=0.0, embd_pdrop=0.0)
    neo = {"attention_types": [[["global", "local"], 1]], "window_size": 4, "bos_token_id": 1, "eos_token_id": 2}
    neo |= dict.fromkeys(("resid_dropout", "embed_dropout", "attention_dropout"), 0.0)
    _decoder(
        "GPT-Neo",
        "GPTNeo",
        "transformer.h",
        vocab_size=50,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_position_embeddings=32,
        **neo,
    )
    state = {"vocab_size": 50, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, **_TOKENS}
    _decoder("Mamba", "Mamba", "backbone.layers", **state)
    _decoder("Mamba 2", "Mamba2", "backbone.layers", **state, num_heads=4, head_dim=8, n_groups=1, chunk_size=4)
    hybrid = {"mamba_d_state": 4, "mamba_d_conv": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False}
    hybrid |= {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    _decoder("Jamba", "Jamba", **_SIZES, **_ONE, **hybrid, num_experts=2, pad_token_id=0)
    _decoder("Cohere", "Cohere", **_SIZES, **_ONE, **_TOKENS)
    _decoder("StableLM", "StableLm", **_SIZES, **_ONE)
    _decoder("StarCoder2", "Starcoder2", **_SIZES, **_ONE, residual_dropout=0.0, embedding_dropout=0.0)
    _decoder("Granite", "Granite", **_SIZES, **_ONE)
    _decoder("Granite MoE", "GraniteMoe", **_SIZES, **_ONE, **_EXPERTS)
    _decoder("Nemotron", "Nemotron", **_SIZES, **_HEADS)
    _decoder("GLM", "Glm", **_SIZES, **_HEADS, pad_token_id=0)
    _decoder("GLM-4", "Glm4", **_SIZES, **_HEADS, pad_token_id=0)
    _decoder("SmolLM3", "SmolLM3", **_SIZES, **_ONE, **_TOKENS)
    _decoder("Phi", "Phi", **_SIZES, resid_pdrop=0.0, embd_pdrop=0.0)
    _decoder("Persimmon", "Persimmon", **_SIZES)
    _decoder("EXAONE 4", "Exaone4", **_SIZES, **_ONE, **_WINDOWS)
    _decoder("ERNIE 4.5", "Ernie4_5", **_SIZES, **_ONE, pad_token_id=0)
    _decoder("Hunyuan", "HunYuanDenseV1", **_SIZES, **_HEADS, pad_token_id=0)
    _decoder("Seed-OSS", "SeedOss", **_SIZES, **_HEADS, attention_dropout=0.0, residual_dropout=0.0)
    _decoder(
        "XGLM",
        "XGLM",
        vocab_size=50,
        d_model=16,
        ffn_dim=32,
        num_layers=2,
        attention_heads=2,
        max_position_embeddings=32,
        dropout=0.0,
        attention_dropout=0.0,
    )


def _encoders() -> None:
    _encoder("ALBERT", "Albert", "albert.encoder.albert_layer_groups.0.albert_layers", embedding_size=8)
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}
    _encoder("DeBERTa", "Deberta", "deberta.encoder.layer", **relative)
    _encoder("DeBERTa v2", "DebertaV2", "deberta.encoder.layer", **relative, position_buckets=4)
    _encoder("ELECTRA", "Electra", "electra.encoder.layer", embedding_size=8)
    _encoder("XLM-RoBERTa", "XLMRoberta", "roberta.encoder.layer")
    _encoder("MPNet", "MPNet", "mpnet.encoder.layer")
    _encoder(
        "MobileBERT",
        "MobileBert",
        "mobilebert.encoder.layer",
        embedding_size=8,
        true_hidden_size=16,
        intra_bottleneck_size=16,
    )
    _encoder("BigBird", "BigBird", "bert.encoder.layer", attention_type="original_full")
    _encoder("Nyströmformer", "Nystromformer", "nystromformer.encoder.layer", num_landmarks=7, segment_means_seq_len=7)
    _encoder("ConvBERT", "ConvBert", "convbert.encoder.layer", head_ratio=1, embedding_size=16)
    _encoder("RoFormer", "RoFormer", "roformer.encoder.layer")
    _encoder("ESM-2", "Esm", "esm.encoder.layer", mask_token_id=4, pad_token_id=1, position_embedding_type="rotary")
    _translator("BART", "Bart")
    _translator("mBART", "MBart")
    _translator("Marian", "Marian", "MarianMTModel")
    _translator("Pegasus", "Pegasus")
    _translator("M2M-100", "M2M100", activation_dropout=0.0)
    _translator("Blenderbot", "Blenderbot")


def _seers() -> None:
    words = {name: size for name, size in {**_SIZES, **_NO_DROPS}.items() if name != "vocab_size"}
    no_paths = {"drop_path_rate": 0.0}
    _seer("ViT", "ViT", "vit.layers", **words)
    _seer("DeiT", "DeiT", "deit.layers", **words)
    _seer("BEiT", "Beit", "beit.layers", **words, **no_paths)
    dino = {name: size for name, size in words.items() if name != "intermediate_size"}
    _seer("DINOv2", "Dinov2", "dinov2.encoder.layer", **dino, **no_paths, mlp_ratio=2)
    _seer(
        "Swin",
        "Swin",
        "swin.encoder.layers.*.blocks",
        **{**no_paths, "patch_size": 2},
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=2,
    )
    stages = {"hidden_sizes": [8, 16], "depths": [1, 1]}
    _seer("ConvNeXt", "ConvNext", "convnext.encoder.stages.*.layers", **stages, **no_paths, num_stages=2)
    _seer("ResNet", "ResNet", "resnet.encoder.stages.*.layers", **stages, embedding_size=8, layer_type="basic")
    four = {"depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2], "decoder_hidden_size": 16}
    _seer(
        "SegFormer",
        "Segformer",
        "segformer.stages.*.blocks",
        "+ForSemanticSegmentation",
        32,
        **four,
        **_NO_DROPS,
        **no_paths,
        hidden_sizes=[8, 16, 16, 16],
        classifier_dropout_prob=0.0,
    )
    _seer(
        "PoolFormer",
        "PoolFormer",
        "poolformer.encoder.block.*",
        size=32,
        hidden_sizes=[8, 8, 8, 8],
        depths=[1, 1, 1, 1],
        **no_paths,
    )
    sizes = {
        name: _SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    }
    _seer("SigLIP", "SiglipVision", "encoder.layers", "SiglipVisionModel", output="pooler_output", **sizes)
    _seer(
        "CLIP, images",
        "CLIPVision",
        "vision_model.encoder.layers",
        "CLIPVisionModelWithProjection",
        output="image_embeds",
        **sizes,
        projection_dim=8,
    )
    _listener("HuBERT", "Hubert", "hubert.encoder.layers")
    _listener("WavLM", "WavLM", "wavlm.encoder.layers")
    _listener("UniSpeech", "UniSpeech", "unispeech.encoder.layers")


def _of_torchvision_all() -> None:
    add = _of_torchvision
    fires = "features.[3467]"
    add("SqueezeNet", lambda m: m.SqueezeNet("1_1", num_classes=5, dropout=0.0), fires, (3, 32, 32))
    turns = [[1, 8, 1, 1], [2, 8, 2, 2]]
    add("MobileNetV2", lambda m: m.MobileNetV2(5, 0.25, turns, dropout=0.0), "features.[123]")
    add("ShuffleNetV2", lambda m: m.ShuffleNetV2([1, 1, 1], [8, 8, 16, 16, 32], 5), "stage[234]", (3, 32, 32))

    def efficientnet_v2(m: Any) -> nn.Module:
        fused, plain = m.efficientnet.FusedMBConvConfig, m.efficientnet.MBConvConfig
        stages = [fused(1, 3, 1, 8, 8, 1), fused(2, 3, 2, 8, 16, 1), plain(2, 3, 2, 16, 16, 2)]
        return m.EfficientNet(stages, 0.0, 0.0, num_classes=5, last_channel=32)

    add("EfficientNetV2", efficientnet_v2, "features.[123]")

    def swin_v2(m: Any) -> nn.Module:
        kinds = {
            "block": m.swin_transformer.SwinTransformerBlockV2,
            "downsample_layer": m.swin_transformer.PatchMergingV2,
        }
        return m.SwinTransformer([2, 2], 8, [1, 1], [2, 2], [2, 2], stochastic_depth_prob=0.0, num_classes=5, **kinds)

    add("Swin V2", swin_v2, "features.[13]")
    maxvit = {"stochastic_depth_prob": 0.0, "num_classes": 5}
    add("MaxViT", lambda m: m.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 4, **maxvit), "blocks.*.layers", (3, 32, 32))
    wide = {"num_classes": 5, "groups": 4, "width_per_group": 4}
    add("ResNeXt", lambda m: m.ResNet(m.resnet.Bottleneck, [1, 1, 1, 1], **wide), "layer[1-4]")
    google = {"num_classes": 5, "init_weights": False, "aux_logits": False}
    add("GoogLeNet", lambda m: m.GoogLeNet(**google), "inception*", (3, 64, 64))
    inception = {"num_classes": 5, "aux_logits": False, "init_weights": False, "dropout": 0.0}
    add("Inception v3", lambda m: m.Inception3(**inception), "Mixed_*", (3, 80, 80))
    bare = {"weights": None, "weights_backbone": None, "num_classes": 5}
    add("FCN", lambda m: m.segmentation.fcn_resnet50(**bare), "backbone.layer[1-4]", output="out")
    stages = "backbone.[1-9]"
    add("DeepLabV3", lambda m: m.segmentation.deeplabv3_mobilenet_v3_large(**bare), stages, (3, 32, 32), output="out")
    add("LR-ASPP", lambda m: m.segmentation.lraspp_mobilenet_v3_large(**bare), stages, (3, 32, 32), output="out")

    def mvit(m: Any) -> nn.Module:
        block = m.video.mvit.MSBlockConfig(1, 8, 8, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2])
        flags = {
            "residual_pool": False,
            "residual_with_cls_embed": True,
            "rel_pos_embed": False,
            "proj_after_attn": False,
        }
        drops = {"dropout": 0.0, "attention_dropout": 0.0, "stochastic_depth_prob": 0.0}
        return m.video.MViT((16, 16), 4, [block, block], num_classes=5, **flags, **drops)

    add("MViT", mvit, "blocks", (3, 4, 16, 16))

    def r3d(m: Any) -> nn.Module:
        parts = m.video.resnet
        return parts.VideoResNet(
            parts.BasicBlock, [parts.Conv3DSimple] * 4, [1, 1, 1, 1], parts.BasicStem, num_classes=5
        )

    add("R3D", r3d, "layer[1-4]", (3, 2, 8, 8))


def _of_timm_all() -> None:
    words = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    _of_timm("ResNet", "resnet18", "layer[1-4]")
    _of_timm("DeiT 3", "deit3_small_patch16_224", "blocks", img_size=32, **words)
    _of_timm("BEiT v2", "beitv2_base_patch16_224", "blocks", img_size=32, **words)
    _of_timm("EVA-02", "eva02_tiny_patch14_224", "blocks", 28, img_size=28, **words)
    _of_timm("MLP-Mixer", "MlpMixer", "blocks", img_size=32, patch_size=8, num_blocks=2, embed_dim=16)
    four = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)}
    _of_timm("ConvNeXt V2", "ConvNeXt", "stages.*.blocks", **four, use_grn=True, ls_init_value=None)
    _of_timm("MobileNetV4", "mobilenetv4_conv_small", "blocks.*")
    _of_timm("RegNet", "regnetx_002", "s[1-4].*")
    _of_timm(
        "PVT v2",
        "pvt_v2_b0",
        "stages.*.blocks",
        depths=(1, 1, 1, 1),
        embed_dims=(8, 16, 16, 16),
        num_heads=(1, 2, 2, 2),
    )
    _of_timm("CaiT", "cait_xxs24_224", ["blocks", "blocks_token_only"], img_size=32, **words)
    _of_timm("MobileViT", "mobilevit_xxs", "stages.*")
    small = {"layers": (1, 1, 1, 1), "patch_sizes": (7, 2, 2, 1), "embed_dims": (16,) * 4, "hidden_sizes": (4,) * 4}
    _of_timm("Sequencer", "Sequencer2d", "stages.*", 28, img_size=28, **small)


_decoders()
_encoders()
_seers()
_of_torchvision_all()
_of_timm_all()
