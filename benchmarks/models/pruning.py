"""A published language model made smaller by a search, beside other ways to prune it.

    python -m benchmarks pruning --model hf:FOLDER --corpus FILE ... --text FILE --lambada FILE --folder FOLDER
        --out FILE.json [--arms search flap ...] [--shares 15 25 40] [--steps 60] [--rate 3e-4] [--precision bf16]

The corpus is pieces of all its texts, in an order that mixes them. The model is made smaller by each arm and share of
the layers' parameters in per cent; all get the same fine-tuning towards the original's probabilities, and are measured
by the same plain loop. A row is written when it is done: called again, it goes on with those that are left. The arms:

    original    the model as it is
    search      `strategy=blockwise`, one search of the command line for all shares, without fine-tuning of its own
    shortgpt, flap, wanda_sp, slicegpt, llm_pruner
                from their papers, see `benchmarks/models/pruners`
    uniform     feed-forward networks of one width, whose units do most

Perplexity is that of windows of 512 tokens from a place of the text on; before fine-tuning, of the first 16. Each
window begins with the token that the tokenizer begins texts with, if there is one. Last words are those of passages
behind the first ones. What each window and passage gives is kept, so that rows are compared pair by pair.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.equal import PRECISIONS, fine_tune, in_precision, last_words, window_losses
from benchmarks.models.pruners import PRUNERS
from benchmarks.models.pruners.llama import LONGEST, num_layer_parameters, plain_llama
from benchmarks.models.pruning_table import name_of, perplexity, table
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas.compress.pool import open_published
from l2l_nas.errors import SettingError
from l2l_nas.files import read_json, write_json
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.saved import load_found
from l2l_nas.runs.section_settings import DataConf
from l2l_nas.text.cloze import lambada, read_passages
from l2l_nas.training.data import Batches
from l2l_nas.training.export import build_network
from l2l_nas.training.samples import Split

PIECE = 4_000  # characters
LENGTH, BATCH = LONGEST, 2  # of fine-tuning
BEFORE = 16  # windows that tell what a network loses before fine-tuning
WINDOW = LONGEST  # tokens
WORDS = 224  # tokens of the longest passage, about
VALIDATION, TEST = 0.006, 0.003  # shares of the corpus
WHOLE = "original"
SEARCH = (
    "strategy=blockwise strategy.scores=divergence strategy.samples=32 strategy.steps=20 strategy.rounds=2 "
    "strategy.pairs=16 strategy.learning_rate=0.0003 space.args.widths=[0.85,0.7,0.5,0.3] space.args.heads=[6] "
    "search.trials=9"
)
ARMS = (WHOLE, "search", *PRUNERS)


def corpus(texts: Sequence[Path], out: Path) -> Path:
    """Pieces of all texts, in an order that mixes them, as loose JSON."""
    pieces = []
    for path in texts:
        text = path.read_text(errors="replace")
        pieces += [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    random.Random(0).shuffle(pieces)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
    return out


class Comparison:
    """What all arms have in common: the original, its data, and what is measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.original = plain_llama(options.model)
        self.corpus = corpus(options.corpus, options.folder / "corpus.jsonl")
        data = replace(DataConf(), source=str(self.corpus), length=LENGTH, validation_fraction=VALIDATION)
        data = replace(data, test_fraction=TEST)
        problem = load_problem(options.model, {}, **asdict(data))
        self.batches = Batches(problem.data.train, batch_size=BATCH, seed=0)
        self.windows, self.words = self._measured()

    def _measured(self) -> tuple[Tensor, Split]:
        options = self.options
        tokenizer = open_published(options.model).tokenizer()
        text = options.text.read_bytes()[options.text_from :].decode(errors="ignore")
        numbers = tokenizer.encode(text[: 8 * WINDOW * options.windows])[: WINDOW * options.windows]
        passages = read_passages(options.lambada)[options.items_from :][: options.items]
        begin = [] if tokenizer.begin is None else [tokenizer.begin]
        size = WINDOW - len(begin)
        windows = torch.tensor(numbers[: len(numbers) // size * size]).view(-1, size)
        windows = functional.pad(windows[: options.windows], (len(begin), 0), value=sum(begin))
        return windows, lambada(passages, tokenizer, length=WORDS, begin=tokenizer.begin)[1]

    def calibration(self) -> Tensor:
        """Tokens that networks are judged by: the first sequences of the fine-tuning."""
        count = self.options.samples
        parts = [self.batches.at(step)[0][0] for step in range(-(-count // BATCH))]
        return torch.cat(parts)[:count]

    def row(self, arm: str, share: int) -> dict[str, Any]:
        """What an arm makes of the original, and its figures."""
        network: nn.Module = self.original
        row: dict[str, Any] = {}
        if arm != WHOLE:
            network, row = self._searched(share) if arm == "search" else self._pruned(arm, share)
            row |= self._tuned(network)
        begun = time.process_time()
        measured = in_precision(network, self.options.precision)
        losses = window_losses(measured, self.windows)
        words = last_words(measured, self.words)
        return {
            **row,
            "layer_parameters": num_layer_parameters(network),
            "parameters": sum(one.numel() for one in network.parameters()),
            "measure_processor_seconds": round(time.process_time() - begun),
            "losses": [round(loss, 5) for loss in losses],
            "hits": "".join(str(int(hit)) for hit, _ in words),
            "word_losses": [round(loss, 4) for _, loss in words],
        }

    def _pruned(self, arm: str, share: int) -> tuple[nn.Module, dict[str, Any]]:
        begun, network = time.process_time(), copy.deepcopy(self.original)
        network = PRUNERS[arm](network, self.calibration(), share / 100)
        return network, {"prune_processor_seconds": round(time.process_time() - begun)}

    def _tuned(self, network: nn.Module) -> dict[str, Any]:
        """Fine-tune a network; what it loses before, the losses of the steps, and their time."""
        options = self.options
        before = window_losses(in_precision(network, options.precision), self.windows[:BEFORE])
        begun = time.process_time()
        losses = fine_tune(
            network, self.original, self.batches, steps=options.steps, rate=options.rate, precision=options.precision
        )
        return {
            "tune_processor_seconds": round(time.process_time() - begun),
            "losses_before": [round(loss, 5) for loss in before],
            "tuning_losses": [round(loss, 4) for loss in losses],
        }

    def _searched(self, share: int) -> tuple[nn.Module, dict[str, Any]]:
        """Run the search of all shares where its folder has no result yet, and load what it found for this one."""
        options = self.options
        folder = options.folder / f"search_{'_'.join(map(str, options.shares))}"
        seconds, words = folder.with_suffix(".json"), f"search {self._words()} folder={folder}"
        if not seconds.exists():
            print(f"python -m l2l_nas {words}", flush=True)
            used = _children()
            code = subprocess.run([sys.executable, "-m", "l2l_nas", *shlex.split(words)], check=False).returncode
            if code:
                raise SettingError(f"{folder}: its search ended with {code}, and said why; see --search and --folder")
            write_json(seconds, {"search_processor_seconds": round(_children() - used), "words": words})
        known = read_json(seconds)
        if known.pop("words", words) != words:
            raise SettingError(f"{folder}: its search had other settings; name another --folder")
        run = load_found(str(folder / "sizes" / f"{share / 100:g}"), pool=options.model)
        names = zip(run.problem.pool.positions, run.architecture.choices, strict=True)
        changed = {position.name: name for position, name in names if name != "original"}
        network = build_network(run.server, run.architecture).eval()
        return network, {**known, "search": options.search, "changed": changed}

    def _words(self) -> str:
        """A search of one network for each share that goes."""
        options = self.options
        sizes = ",".join(f"{share / 100:g}" for share in options.shares)
        return (
            f"space.pool={options.model} data=text data.source={self.corpus} data.length={LENGTH} "
            f"data.validation_fraction={VALIDATION} data.test_fraction={TEST} "
            f"objectives.names=[loss,parameters] search.trial_weights=fork "
            f"search.steps_per_trial=0 search.finalist_steps=0 train.batch_size={BATCH} "
            f"train.micro_batch={BATCH} relay.precision={options.precision} "
            f"relay.budget=none relay.threads=1 export=false strategy.sizes=[{sizes}] "
            f"search.finalists={len(options.shares)} search.finalist_rounds=1 {options.search}"
        )


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# what rows must have in common
_COMMON = (
    *("model", "corpus", "samples", "steps", "rate", "precision"),
    *("text", "text_from", "windows", "lambada", "items_from", "items"),
)


def main(options: argparse.Namespace) -> None:
    """All rows that are not there yet; those that are must have been measured in the same way."""
    torch.set_num_threads(1)
    common = {name: _plain(getattr(options, name)) for name in _COMMON}
    result: dict[str, Any] = {"machine": machine(), "common": common, "rows": {}}
    if options.out.exists():
        result = read_json(options.out)
        other = [name for name, value in common.items() if result["common"].get(name) != value]
        if other:
            raise SettingError(
                f"{options.out}: its rows have another --{other[0].replace('_', '-')}; name another file"
            )
    wanted = [(WHOLE, 0)] * (WHOLE in options.arms)
    wanted += [(arm, share) for share in options.shares for arm in options.arms if arm != WHOLE]
    left = [one for one in wanted if name_of(*one) not in result["rows"]]
    comparison = Comparison(options) if left else None
    for arm, share in left:
        assert comparison is not None
        row = comparison.row(arm, share)
        result["rows"][name_of(arm, share)] = row
        write_json(options.out, result)
        print(f"{name_of(arm, share)}: perplexity {perplexity(row['losses']):.2f}", flush=True)
    print(table({"": result}))


def _plain(value: Any) -> Any:
    """As it stands in the results: of a file its name."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.name if isinstance(value, Path) else Path(value).name if isinstance(value, str) else value


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    for name in ("text", "lambada", "folder", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--shares", nargs="+", type=at_least(1), default=[15, 25, 40], help="per cent")
    parser.add_argument("--search", default=SEARCH, help="settings of the search but those that all arms share")
    parser.add_argument("--samples", type=at_least(1), default=64, help="sequences of 512 tokens that others judge by")
    parser.add_argument("--steps", type=at_least(0), default=60, help="of fine-tuning")
    parser.add_argument("--rate", type=float, default=3e-4, help="of fine-tuning, at its peak")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="bf16", help="of fine-tuning and measuring")
    parser.add_argument("--text-from", type=at_least(0), default=600_000, help="byte of the first window")
    parser.add_argument("--windows", type=at_least(2), default=96)
    parser.add_argument("--items-from", type=at_least(0), default=1_000)
    parser.add_argument("--items", type=at_least(2), default=1_000)
