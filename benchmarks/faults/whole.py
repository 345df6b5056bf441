"""Whole files of every kind that the product opens, beside those of a run: what `mutations.py` damages.

A model in a Hugging Face folder, its tokenizer, tokenizers of other kinds, token files, arrays,
images, texts, a profile of a machine, and a folder of configs. All are tiny, drawn from a seed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "bos_token_id": 99,
    "eos_token_id": [99, 98],
    "torch_dtype": "float32",
}
PICTURES = """\
import torch
from torch import nn
from l2l_nas import Candidate, LayerPool, Position, TensorSpec

def pool():
    kinds = [Candidate("a", lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2)))]
    return LayerPool([Position("all", kinds)], inputs=TensorSpec((3, 4, 4)))
"""
TEXT = "some words of a text that a model reads, abc ab ab cab\n" * 12
_ON_TEXT = "task=text file=text.txt"
HF = f"evaluate space.pool=hf:hf {_ON_TEXT}"
_WRITES = "generate space.pool=hf:hf prompt=ab tokens=3"
_ONE = "architecture=original folder=new train.steps=1 train.validation_steps=1 export=false"
_SMALL = "space=gpt2 space.args.hidden=16 space.args.depth=1 space.args.heads=2 data=text data.length=16"
ON_CACHE = f"train {_SMALL} {_ONE} data.source=text.txt data.tokenizer=bpe data.cache=cache"
_IMAGES = f"train space.pool=pictures.py:pool {_ONE} data.source=images"
_CONFIGS = (
    "search --config-dir conf +mine=size experiment=night sampler=few space.pool=tiny.py:build search.trials=2 "
    "search.steps_per_trial=1 search.warmup_steps=2 search.finalists=0 export=false folder=new"
)
TARGETS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("hf/model.safetensors", 14, (HF,)),
    ("hf/config.json", 10, (HF, HF, _WRITES)),
    ("hf/tokenizer.json", 6, (HF, _WRITES)),
    ("hf/tokenizer_config.json", 2, (HF, _WRITES)),
    ("hf/generation_config.json", 3, (_WRITES,)),
    ("sharded/*", 8, (HF.replace("hf:hf", "hf:sharded"),)),
    ("bpe/*", 4, (ON_CACHE.replace("cache=cache", "cache=fresh"),)),
    ("words/vocab.txt", 3, (ON_CACHE.replace("bpe", "words").replace("cache=cache", "cache=fresh"),)),
    ("cache/*/manifest.json", 5, (ON_CACHE,)),
    ("cache/*/documents.npy", 4, (ON_CACHE,)),
    ("cache/*/tokens.bin", 2, (ON_CACHE,)),
    ("text.txt", 2, (ON_CACHE, HF)),
    ("lines.jsonl", 3, (ON_CACHE.replace("text.txt", "lines.jsonl"),)),
    ("passages.jsonl", 2, (HF.replace("task=text file=text.txt", "task=lambada file=passages.jsonl"),)),
    ("arrays/*.npy", 10, (f"train space.pool=tiny.py:pool {_ONE} data.source=arrays",)),
    ("images/*/*.png", 6, (_IMAGES, f"{_IMAGES} data.workers=1")),
    ("machine.json", 6, ("plan space.pool=tiny.py:build hardware=machine.json",)),
    ("conf/*/*.yaml", 8, (_CONFIGS,)),
)
# what these say may not be another model's: weights at other places, of other types
JUDGED = {"hf/model.safetensors": HF, "sharded/model": HF.replace("hf:hf", "hf:sharded")}


def _tensors() -> dict[str, torch.Tensor]:
    from l2l_nas.pretrained.families import family_of

    generator = torch.Generator().manual_seed(0)
    shapes = family_of(CONFIG).shapes
    return {
        name: torch.ones(shape) if len(shape) == 1 else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def _letters() -> list[str]:
    return [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "ab", "Ġa"]


def write_models(place: Path) -> None:
    """`hf` and `sharded`: the same model."""
    from safetensors.torch import save_file

    from l2l_nas.text.tokenizer import load_tokenizer

    (place / "bpe").mkdir()
    tokens = [*_letters(), "<|pad|>", "<|endoftext|>"]
    (place / "bpe/vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (place / "bpe/merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    (place / "words").mkdir()
    (place / "words/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "a"]))
    (place / "hf").mkdir()
    tensors = _tensors()
    save_file(tensors, place / "hf/model.safetensors", metadata={"format": "pt"})
    (place / "hf/config.json").write_text(json.dumps(CONFIG))
    (place / "hf/generation_config.json").write_text(json.dumps({"eos_token_id": [99, 98], "pad_token_id": 98}))
    for name, text in load_tokenizer(str(place / "bpe")).texts.items():
        (place / "hf" / name).write_text(text)
    shutil.copytree(place / "hf", place / "sharded")
    (place / "sharded/model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-{part + 1:05}-of-00002.safetensors": names[part::2] for part in range(2)}
    for file, some in shards.items():
        save_file({name: tensors[name] for name in some}, place / "sharded" / file)
    index = {name: file for file, some in shards.items() for name in some}
    (place / "sharded/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_data(place: Path) -> None:
    """Texts, arrays, images, a machine and configs."""
    from PIL import Image

    from l2l_nas.cost.profiles import PROFILES

    random = np.random.default_rng(0)
    (place / "text.txt").write_text(TEXT)
    (place / "lines.jsonl").write_text("".join(json.dumps({"text": TEXT}) + "\n" for _ in range(40)))
    (place / "passages.jsonl").write_text('{"text": "some words of a text"}\n{"context": "ab", "target": "ab"}\n')
    (place / "arrays").mkdir()
    x = random.random((160, 2), dtype=np.float32)
    np.save(place / "arrays/x.npy", x)
    np.save(place / "arrays/y.npy", (x[:, 0] > x[:, 1]).astype(np.int64))
    for name in ("cat", "dog"):
        (place / "images" / name).mkdir(parents=True)
        for index in range(6):
            picture = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(picture).save(place / "images" / name / f"{index}.png")
    (place / "pictures.py").write_text(PICTURES)
    (place / "machine.json").write_text(json.dumps(PROFILES["h100"].to_json()))
    for name, text in (
        ("experiment/night", "# @package _global_\nseed: 5\nobjectives:\n  names: [accuracy, parameters]\n"),
        ("sampler/few", "name: tpe\nn_startup_trials: 3\n"),
        ("mine/size", "# @package space.args\nwidth: 6\n"),
    ):
        (place / "conf" / name).parent.mkdir(parents=True)
        (place / f"conf/{name}.yaml").write_text(text)
