"""A published model of random weights that `experiment=smaller` makes smaller, and whether two runs found the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.faults import forks
from l2l_nas.files import read_json, write_json
from l2l_nas.pretrained.families import family_of

WHOLE = "whole"  # the folder of the run that nothing interrupts
WORDS = (
    "search",
    "experiment=smaller",
    "space.pool=hf:model",
    "space.args.heads=[2]",
    "data.source=corpus.jsonl",
    "data.tokenizer=bytes",
    "data.length=64",
    "strategy.samples=16",
    "strategy.steps=6",
    "strategy.sizes=[0.15,0.3]",
    "search.finalists=2",
    "search.finalist_steps=40",
    "search.checkpoint_seconds=0.05",
    "export=false",
)
MOMENTS = (
    *("blocks", "blocks, saving", "scores", "networks", "pairs"),
    *("search", "finalists", "blocks, saving", "finalists, saving", "report"),
)
_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "intermediate_size": 96,
    "vocab_size": 257,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
_PATIENCE_S = 600.0
_SPREAD = 0.15  # of its weights: so much that layers depend on each other
_TEXT = "It jumped over the dogs, and over the cats; it did not jump over the river.\n"
# what differs between two runs that find the same
_OF_THE_RUN = {"seconds", "latency_ms", "token_latency_ms", "versions", "folder", "time", "started", "process"}


def build(place: Path) -> None:
    """A Llama whose tokens are bytes, a corpus, and a run that nothing interrupts."""
    model = place / "model"
    model.mkdir()
    write_json(model / "config.json", _CONFIG)
    generator = torch.Generator().manual_seed(0)
    shapes = family_of(_CONFIG).shapes
    tensors = {name: torch.randn(shape, generator=generator) * _SPREAD for name, shape in shapes.items()}
    save_file({name: 1 + one if one.dim() == 1 else one for name, one in tensors.items()}, model / "model.safetensors")
    lines = [json.dumps({"text": f"{number}. {_TEXT * 3}"}) for number in range(600)]
    (place / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    made = forks.command(place, *WORDS, f"folder={WHOLE}")
    assert made.wait(_PATIENCE_S) == 0, made.errors


def check(folder: Path) -> str:
    """Whether a run found what the one without interruption did: results and all weights, bit for bit."""
    found, expected = (_content(path) for path in (folder, folder.parent / WHOLE))
    different = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    return f"differs from a run without interruption in {', '.join(different[:8])}" if different else ""


def _content(folder: Path) -> dict[str, Any]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.safetensors")}
    weights = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return weights | _of_all_runs(read_json(folder / "result.json"))


def _of_all_runs(content: Any) -> Any:
    if isinstance(content, list):
        return [_of_all_runs(one) for one in content]
    if not isinstance(content, dict):
        return content
    return {key: _of_all_runs(value) for key, value in content.items() if key not in _OF_THE_RUN}
