"""More models of torchvision, transformers and timm for `convert`, at small random configurations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.converted import SIZES, Case, _ids, _images


def convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return _images(ConvNeXt([CNBlockConfig(8, 16, 2), CNBlockConfig(16, None, 2)], num_classes=5), "features.[13]")


def densenet():
    from torchvision.models import DenseNet

    return _images(DenseNet(4, (2, 2), 8, 2, num_classes=5), "features.denseblock[12]")


def mobilenet_v3():
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    settings = [
        InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1),
        InvertedResidualConfig(16, 5, 32, 24, True, "HS", 2, 1, 1),
    ]
    return _images(MobileNetV3(settings, 32, num_classes=5, dropout=0.0), "features.[12]")


def regnet():
    from torchvision.models.regnet import BlockParams, RegNet

    parameters = BlockParams([1, 2], [8, 16], [8, 8], [1.0, 1.0], [2, 2], 0.25)
    return _images(RegNet(parameters, num_classes=5), "trunk_output.*.*")


def vgg():
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([8, "M", 16, 16, "M"], batch_norm=True), num_classes=5)
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)
    return _images(model, "features")


def distilbert():
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    sizes = {"vocab_size": 50, "dim": 16, "hidden_dim": 32, "n_layers": 3, "n_heads": 2, "max_position_embeddings": 16}
    model = DistilBertForMaskedLM(DistilBertConfig(**sizes, dropout=0.0, attention_dropout=0.0))
    return Case(model, {"input_ids": _ids()}, "distilbert.transformer.layer")


def roberta():
    from transformers import RobertaConfig, RobertaForMaskedLM

    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = RobertaForMaskedLM(RobertaConfig(**SIZES, **drops, max_position_embeddings=16))
    return Case(model, {"input_ids": _ids()}, "roberta.encoder.layer")


def _language_model(name, blocks, **settings):
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    return Case(model, {"input_ids": _ids(), "use_cache": False}, blocks)


def opt():
    sizes = {"vocab_size": 50, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    places = {"max_position_embeddings": 16, "word_embed_proj_dim": 16, "pad_token_id": 0}
    return _language_model("OPT", "model.decoder.layers", **sizes, **places, dropout=0.0)


def gemma2():
    sizes = {"num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4}
    return _language_model("Gemma2", "model.layers", **SIZES, **sizes)


def phi3():
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return _language_model("Phi3", "model.layers", **SIZES, **tokens, num_key_value_heads=1)


def mistral():
    return _language_model("Mistral", "model.layers", **SIZES, num_key_value_heads=1, sliding_window=4)


def gpt_neox():
    return _language_model("GPTNeoX", "gpt_neox.layers", **SIZES, max_position_embeddings=16)


def clip_text():
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    tokens = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    config = CLIPTextConfig(**SIZES, **tokens, projection_dim=8, max_position_embeddings=16)
    model = CLIPTextModelWithProjection(config)
    return Case(model, {"input_ids": _ids()}, "text_model.encoder.layers", {"output": "text_embeds"})


def wav2vec2():
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    drops = ("hidden_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout", "activation_dropout")
    front = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3), "num_feat_extract_layers": 2}
    places = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    settings = {**SIZES, **front, **places, **dict.fromkeys((*drops, "layerdrop"), 0.0)}
    model = Wav2Vec2ForCTC(Wav2Vec2Config(**settings, apply_spec_augment=False))
    model.freeze_feature_encoder()  # else its forward sets requires_grad
    return Case(model, {"input_values": torch.randn(4, 160)}, "wav2vec2.encoder.layers")


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    layers |= {name.replace("encoder", "decoder"): size for name, size in layers.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"vocab_size": 50, "d_model": 16, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16}
    model = WhisperForConditionalGeneration(WhisperConfig(**layers, **tokens, **sizes, dropout=0.0))
    example = {"input_features": torch.randn(4, 8, 20), "decoder_input_ids": _ids(5), "use_cache": False}
    return Case(model, example, ["model.encoder.layers", "model.decoder.layers"])


def timm_vit():
    timm = pytest.importorskip("timm")

    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
    return _images(timm.create_model("vit_tiny_patch16_224", **sizes), "blocks")


def mixtral_with_its_router_loss():
    case = _language_model(
        "Mixtral", "model.layers", **SIZES, num_key_value_heads=1, num_local_experts=4, output_router_logits=True
    )
    case.settings["losses"] = {"aux_loss": 0.5}
    return case


MORE_CASES = {
    case.__name__: case
    for case in (
        convnext,
        densenet,
        mobilenet_v3,
        regnet,
        vgg,
        distilbert,
        roberta,
        opt,
        gemma2,
        phi3,
        mistral,
        gpt_neox,
        clip_text,
        wav2vec2,
        whisper,
        timm_vit,
        mixtral_with_its_router_loss,
    )
}
