"""Models of torchvision and transformers at small random configurations, and what `convert` must know of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 32,
}


@dataclass
class Case:
    """A model and its words.

    Args:
        example: its tensors are the inputs of every step, in other samples.
        blocks: as `convert` takes them.
    """

    model: nn.Module
    example: Any
    blocks: Any
    settings: dict[str, Any] = field(default_factory=dict)


def _images(model: nn.Module, blocks: str) -> Case:
    return Case(model, torch.randn(4, 3, 16, 16), blocks)


def _ids(length: int = 7) -> Tensor:
    return torch.randint(0, 50, (4, length))


def resnet(**kwargs):
    import torchvision

    model = torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 2, 1, 1], num_classes=5)
    return _images(model, "layer[1-4]")


def efficientnet(dropout=0.0):
    import torchvision

    block = torchvision.models.efficientnet.MBConvConfig
    stages = [block(1, 3, 1, 8, 8, 1, 1, 1), block(4, 3, 2, 8, 16, 2, 1, 1), block(4, 5, 1, 16, 16, 2, 1, 1)]
    model = torchvision.models.EfficientNet(
        stages, dropout=dropout, stochastic_depth_prob=dropout, num_classes=5, last_channel=32
    )
    return _images(model, "features.[1-3]")


def vit(dropout=0.0):
    import torchvision

    sizes = {"image_size": 16, "patch_size": 4, "num_layers": 3, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    model = torchvision.models.VisionTransformer(**sizes, num_classes=5, dropout=dropout)
    nn.init.normal_(model.heads.head.weight)  # it begins with zeros
    return _images(model, "encoder.layers")


def swin(dropout=0.0):
    import torchvision

    sizes = {"patch_size": [2, 2], "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": [2, 2]}
    model = torchvision.models.SwinTransformer(**sizes, num_classes=5, dropout=dropout, stochastic_depth_prob=dropout)
    return _images(model, "features.[13]")


def gpt2(dropout=0.0):
    import transformers

    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 16}
    drops = {"embd_pdrop": dropout, "resid_pdrop": dropout, "attn_pdrop": dropout}
    config = transformers.GPT2Config(**sizes, **drops, bos_token_id=0, eos_token_id=0)
    return Case(transformers.GPT2LMHeadModel(config), {"input_ids": _ids(), "use_cache": False}, "transformer.h")


def bert(dropout=0.0):
    import transformers

    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **drops, max_position_embeddings=16))
    mask = torch.ones(4, 7, dtype=torch.int64)  # as a tokenizer gives it
    mask[2:, 5:] = 0
    return Case(model, {"input_ids": _ids(), "attention_mask": mask}, "bert.encoder.layer")


def llama(dropout=0.0):
    import transformers

    config = transformers.LlamaConfig(**SIZES, attention_dropout=dropout)
    return Case(transformers.LlamaForCausalLM(config), {"input_ids": _ids(), "use_cache": False}, "model.layers")


def qwen3(dropout=0.0):
    import transformers

    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=8, attention_dropout=dropout)
    return Case(transformers.Qwen3ForCausalLM(config), {"input_ids": _ids(), "use_cache": False}, "model.layers")


def modernbert(dropout=0.0):
    import transformers

    drops = {"embedding_dropout": dropout, "mlp_dropout": dropout, "attention_dropout": dropout}
    names = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**SIZES, **drops, **names, local_attention=4, attn_implementation="eager")
    return Case(transformers.ModernBertForMaskedLM(config), {"input_ids": _ids()}, "model.layers")


def t5(dropout=0.0):
    import transformers

    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "decoder_start_token_id": 0}
    config = transformers.T5Config(**sizes, num_layers=3, num_decoder_layers=3, dropout_rate=dropout)
    example = {"input_ids": _ids(), "decoder_input_ids": _ids(5), "use_cache": False}
    return Case(transformers.T5ForConditionalGeneration(config), example, ["encoder.block", "decoder.block"])


def mixtral(dropout=0.0):
    import transformers

    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=1, num_local_experts=4, attention_dropout=dropout)
    return Case(transformers.MixtralForCausalLM(config), {"input_ids": _ids(), "use_cache": False}, "model.layers")


CASES = {
    case.__name__: case for case in (resnet, efficientnet, vit, swin, gpt2, bert, llama, qwen3, modernbert, t5, mixtral)
}


class ManyClasses:
    """Cross entropy over the last dimension; classes of samples, or of places."""

    def loss(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0].flatten(0, -2), targets.flatten(), reduction="sum")

    def count(self, targets: Tensor) -> int:
        return targets.numel()


def batch(case: Case, pool, step: int, size: int = 4) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs in the order of the pool, and targets."""
    torch.manual_seed(step)
    example = case.example if isinstance(case.example, dict) else {next(iter(pool.sources)): case.example}
    inputs = {}
    for name in pool.sources:
        rows = example[name][torch.randperm(len(example[name]))[:size]]
        if name.endswith("ids"):
            rows = torch.randint(0, 50, rows.shape)
        inputs[name] = rows + step if name == "x" else rows
    places = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    targets = torch.randint(0, 5, (size,)) if places is None else torch.randint(0, 50, places.shape)
    return tuple(inputs.values()), targets
