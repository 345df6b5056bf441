"""A published language model made smaller by a search, beside three ways to prune it.

    python -m benchmarks pruning corpus --text FILE ... --out FILE.jsonl       pieces of texts, one behind the other
    python -m benchmarks pruning run --model gguf:FILE --corpus FILE.jsonl --folder FOLDER [--arms search ...]
    python -m benchmarks pruning figures --model gguf:FILE --folder FOLDER --lambada FILE --text FILE [--out FILE.json]

`run` prints and runs a command for each arm, each a search of the command line that ends with the same fine-tuning
towards the original's probabilities:

    search     `strategy=blockwise`
    random     whole blocks dropped at random: 20 draws are scored, the best two are fine-tuned
    effect     the blocks dropped whose loss, each dropped alone, is least
    uniform    feed-forward networks of one width, whose units do most

`figures` measures what each arm found, as plain PyTorch: perplexity and last words, as `published` does.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.published import by_loop
from benchmarks.options import at_least, need
from benchmarks.timing import machine
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.files import read_json, write_json
from l2l_nas.pretrained.pool import open_published
from l2l_nas.runs.saved import load_found
from l2l_nas.text.cloze import Passage, read_passages
from l2l_nas.training.export import build_network

PIECE = 2_000  # characters


# what is fine-tuned, how long, and the data are the same for all
COMMON = (
    "data=text data.length=256 data.splits=[99.4,0.3,0.3] objectives.names=[loss] search.trial_weights=fork "
    "search.steps_per_trial=0 search.finalist_steps=60 train.batch_size=4 train.micro_batch=4 "
    "train.learning_rate=0.0001 relay.precision=bf16 relay.budget=none relay.threads=1"
)
ARMS = {
    "search": "strategy=blockwise strategy.samples=32 strategy.steps=20 strategy.learning_rate=0.0003 "
    "space.args.widths=[0.85,0.7,0.5] search.trials=6 search.finalists=1 search.limits.parameters=116680000",
    "random": "strategy=benchmarks/models/prune.py:random_blocks search.trials=20 search.finalists=2",
    "effect": "strategy=benchmarks/models/prune.py:least_effect search.trials=1 search.finalists=1",
    "uniform": "strategy=benchmarks/models/prune.py:uniform space.args.widths=[0.776] search.trials=1 "
    "search.finalists=1",
}


def corpus(texts: Sequence[Path], out: Path) -> None:
    """Pieces of all texts, in an order that mixes them, as loose JSON."""
    pieces = []
    for path in texts:
        text = path.read_text(errors="replace")
        pieces += [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    random.Random(0).shuffle(pieces)
    out.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))


def run(model: str, texts: Path, folder: Path, arms: Sequence[str]) -> None:
    """The arms, one after the other; an arm that is done is left."""
    for arm in arms:
        seconds = folder / f"{arm}.json"
        if seconds.exists():
            continue
        words = f"search space.pool={model} data.source={texts} folder={folder / arm} {COMMON} {ARMS[arm]}"
        print(f"python -m l2l_nas {words}", flush=True)
        begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "l2l_nas", *shlex.split(words)], check=True)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        write_json(seconds, {"seconds": round(time.monotonic() - begun), "processor_seconds": round(processor)})


def measured(model: str, folder: Path, arm: str, text: str, passages: list[Passage]) -> dict[str, Any]:
    """What an arm found, and its figures."""
    run = load_found(str(folder / arm), pool=model)
    pool = run.problem.pool
    network = build_network(run.server, run.architecture).eval()
    names = zip(pool.positions, run.architecture.choices, strict=True)
    return {
        **by_loop(network, open_published(model).tokenizer(), text, passages, length=512),
        "parameters": num_parameters(pool, run.architecture),
        "changed": {position.name: name for position, name in names if name != "original"},
        **read_json(folder / f"{arm}.json"),
    }


_NEEDED = {
    "corpus": ("text", "out"),
    "run": ("model", "corpus", "folder"),
    "figures": ("model", "folder", "lambada", "text"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("corpus", "run", "figures"))
    parser.add_argument("--model", default="")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--text", type=Path, nargs="+", default=[])
    parser.add_argument("--lambada", type=Path)
    parser.add_argument("--bytes", type=at_least(1), default=24_000)
    parser.add_argument("--items", type=at_least(1), default=300)
    parser.add_argument("--out", type=Path)


def main(options: argparse.Namespace) -> None:
    """One of the three."""
    need(options, options.what, *_NEEDED[options.what])
    if options.what == "corpus":
        corpus(options.text, options.out)
        return
    if options.what == "run":
        run(options.model, options.corpus, options.folder, options.arms)
        return
    torch.set_num_threads(1)
    text = options.text[0].read_bytes()[: options.bytes].decode(errors="ignore")
    passages = read_passages(options.lambada)[: options.items]
    result: dict[str, Any] = {"machine": machine(), "common": COMMON, "arms": ARMS}
    if options.out is not None and options.out.exists():
        result = read_json(options.out)
    for arm in options.arms:
        result[arm] = measured(options.model, options.folder, arm, text, passages)
        print(arm, {name: value for name, value in result[arm].items() if name != "changed"}, flush=True)
        if options.out is not None:
            write_json(options.out, result)
