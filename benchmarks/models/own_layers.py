"""Published models by this package's layers, and by the modules of `transformers` themselves.

    python -m benchmarks own_layers [--rounds 12] [--out FILE]

A small Llama and a small Gemma 3 with weights that are drawn: training steps and scoring by the relay, on this
package's sub-layers, on whole blocks of `transformers`, and on its sub-layers, which `convert` takes apart, with norms
and sums between them. All compute the same; the control is the first once more.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import interleave, machine, ratio
from l2l_nas import AdamW, LayerPool, ParamServer, Relay, Tokens
from l2l_nas.compress.library import LibraryModel
from l2l_nas.compress.pool import open_published, published_pool
from l2l_nas.files import write_json
from l2l_nas.space.convert.convert import convert

OURS, CONTROL = "own sub-layers", "control"
BLOCKS, PARTS = "whole blocks", "sub-layers taken apart"
LENGTH, BATCH, MICRO_BATCH, STEPS = 128, 8, 4, 2
_SMALL = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8}
_SMALL |= {"num_key_value_heads": 4, "intermediate_size": 704, "max_position_embeddings": LENGTH, "head_dim": 32}


def models() -> dict[str, Any]:
    import transformers as hf

    torch.manual_seed(0)
    return {
        "Llama": hf.LlamaForCausalLM(hf.LlamaConfig(**_SMALL)),
        "Gemma 3": hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**_SMALL, query_pre_attn_scalar=32, sliding_window=64)),
    }


def pools(model: Any, folder: str) -> dict[str, LayerPool]:
    """The same model in each way."""
    model.save_pretrained(folder)
    library = LibraryModel(open_published(f"hf:{folder}"))
    example = {"input_ids": torch.zeros(1, LENGTH, dtype=torch.int64), "use_cache": False}
    count = _SMALL["num_hidden_layers"]
    names = [f"{library.blocks}.{number}.{part}" for number in range(count) for part in ("self_attn", "mlp")]
    ours = (published_pool(f"hf:{folder}", length=LENGTH, skips=False) for _ in range(2))
    found = dict(zip((OURS, CONTROL), ours, strict=True))
    return {
        **found,
        BLOCKS: library.pool(length=LENGTH, skips=False),
        PARTS: convert(library.model, example, blocks=names),
    }


class Side:
    """A pool, and what runs it."""

    def __init__(self, pool: LayerPool, *, budget: str | None) -> None:
        self.pool, self.step = pool, 0
        self.relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", device_budget=budget)

    def train(self, tokens: Tensor) -> float:
        loss = 0.0
        for _ in range(STEPS):
            self.step += 1
            given = self.pool.original, (tokens[:, :-1],), tokens[:, 1:]
            how: dict[str, Any] = {"objective": Tokens(), "micro_batch": MICRO_BATCH, "lr": 1e-4, "step": self.step}
            loss = float(self.relay.train_step(*given, **how).loss)
        self.relay.drain()
        return loss

    def score(self, tokens: Tensor) -> Tensor:
        return self.relay.predict(self.pool.original, (tokens[:, :-1],), micro_batch=MICRO_BATCH)[0]


def measured(model: Any, folder: str, *, rounds: int) -> dict[str, Any]:
    """Ratios over this package's layers, of each way to run them."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, _SMALL["vocab_size"], (BATCH, LENGTH + 1), generator=generator)
    found: dict[str, Any] = {}
    for words, budget in (("streamed", None), ("on the device", "all")):
        sides = {name: Side(pool, budget=budget) for name, pool in pools(model, folder).items()}
        losses = [side.train(tokens) for side in sides.values()]
        assert max(losses) - min(losses) < 1e-4, losses
        for what in ("train", "score"):
            runs = {name: partial(_run, getattr(side, what), tokens) for name, side in sides.items()}
            seconds = interleave(runs, rounds=rounds)
            found[f"{what}, {words}"] = {name: ratio(seconds[name], seconds[OURS]) for name in (CONTROL, BLOCKS, PARTS)}
            print(f"{what}, {words}: {found[f'{what}, {words}']}", flush=True)
    return found


def _run(work: Callable[[Tensor], object], tokens: Tensor, number: int) -> None:
    work(tokens)


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    result: dict[str, Any] = {"machine": machine(), "rounds": options.rounds, "models": {}}
    for name, model in models().items():
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            result["models"][name] = measured(model, folder, rounds=options.rounds)
    write_json(options.out, result)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=at_least(6), default=12)
    parser.add_argument("--out", type=Path, default=RESULTS / "own_layers.json")
