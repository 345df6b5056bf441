"""A published model's figures: by this library, layer by layer, and by a plain loop over `transformers`.

    python -m benchmarks published --model hf:FOLDER --lambada FILE.jsonl --text FILE [--items 300]
        [--sides l2l_nas transformers] [--rounds 7 --threads 2] [--out FILE.json]

Perplexity is that of the first `--bytes` of a text in windows of `--length` tokens, whole ones alone, of which each
gives all its tokens but the first. Last words are those of the first `--items` passages: all tokens of the word must
be the likeliest ones.

With `--rounds` the seconds of both sides are compared instead, on the same batches in turns; see
`benchmarks.models.own_lengths`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.models.own_lengths import compared
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas import SGD, ParamServer, Relay
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.files import read_json, write_json
from l2l_nas.pretrained.pool import open_published, published_pool
from l2l_nas.text.cloze import Passage, lambada, read_passages
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.fit import score
from l2l_nas.training.samples import Split
from l2l_nas.training.task import Tokens

WORDS = 224  # tokens of the longest passage, about


def windows(numbers: list[int], length: int) -> list[list[int]]:
    """Whole windows, one behind the other."""
    return [numbers[at : at + length] for at in range(0, len(numbers) - length + 1, length)]


def by_library(model: str, text: str, passages: list[Passage], *, length: int) -> dict[str, Any]:
    """The figures through the relay."""
    pool = published_pool(model, length=length)
    tokenizer = open_published(model).tokenizer()
    relay = Relay(ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0), device="cpu", slots=2)
    rows = torch.tensor(windows(tokenizer.encode(text), length))
    targets = torch.cat((rows[:, 1:], torch.full_like(rows[:, :1], -1)), dim=1)
    found = score(relay, pool.original, Split((rows,), targets), task=Tokens(), micro_batch=1)
    task, samples = lambada(passages, tokenizer, length=WORDS)
    short = published_pool(model, length=WORDS)
    relay = Relay(ParamServer(short, optimizer=SGD(momentum=0.0), seed=0), device="cpu", slots=2)
    words = score(relay, short.original, samples, task=task, micro_batch=4)
    return {"token_perplexity": math.exp(found.values["loss"]), **words.values}


def by_transformers(model: str, text: str, passages: list[Passage], *, length: int) -> dict[str, Any]:
    """The same figures, by a loop that anybody would write."""
    network = network_of(model)
    tokenizer: Tokenizer = open_published(model).tokenizer()
    return by_loop(lambda tokens: network(tokens).logits, tokenizer, text, passages, length=length)


def network_of(model: str) -> Any:
    """The model of `transformers`."""
    import transformers

    folder = Path(model.removeprefix("hf:"))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def by_loop(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    tokenizer: Tokenizer,
    text: str,
    passages: list[Passage],
    *,
    length: int,
) -> dict[str, Any]:
    """The figures of a function from tokens [1, length] to logits [1, length, vocabulary]."""
    loss, count, hits, likelihood = 0.0, 0, 0, 0.0
    with torch.no_grad():
        for window in windows(tokenizer.encode(text), length):
            row = torch.tensor([window])
            loss += float(functional.cross_entropy(logits_of(row)[0, :-1], row[0, 1:], reduction="sum"))
            count += length - 1
        for passage in passages:
            context = tokenizer.encode(passage.context)
            word = tokenizer.encode(passage.between + passage.target)
            logits = logits_of(torch.tensor([context + word]))[0, len(context) - 1 : -1]
            hits += logits.argmax(dim=-1).tolist() == word
            likelihood += float(functional.cross_entropy(logits, torch.tensor(word), reduction="sum"))
    return {
        "token_perplexity": math.exp(loss / count),
        "accuracy": hits / len(passages),
        "target_perplexity": math.exp(likelihood / len(passages)),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--lambada", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--bytes", type=at_least(1), default=24_000)
    parser.add_argument("--items", type=at_least(1), default=300)
    parser.add_argument("--length", type=at_least(1), default=512)
    parser.add_argument("--sides", nargs="+", default=["l2l_nas", "transformers"])
    parser.add_argument("--rounds", type=at_least(1), default=None)
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--micro-batch", type=at_least(1), default=8)
    parser.add_argument("--out", type=Path, default=None)


def main(options: argparse.Namespace) -> None:
    """Both sides, one after the other."""
    torch.set_num_threads(options.threads)
    text = options.text.read_bytes()[: options.bytes].decode(errors="ignore")
    passages = read_passages(options.lambada)[: options.items]
    result: dict[str, Any] = {"machine": machine(), "model": Path(options.model).name}
    if options.out is not None and options.out.exists():
        result |= read_json(options.out)
    if options.rounds is not None:
        about = {"rounds": options.rounds, "micro_batch": options.micro_batch}
        found = compared(options.model, network_of(options.model), text, passages, **about)
        result["own_lengths"] = {**about, "threads": options.threads, "items": len(passages), **found}
        options.sides = []
    for name, side in (("l2l_nas", by_library), ("transformers", by_transformers)):
        if name not in options.sides:
            continue
        begun = time.monotonic()
        result[name] = side(options.model, text, passages, length=options.length)
        result[f"{name}_seconds"] = round(time.monotonic() - begun, 1)
        print(name, result[name], flush=True)
    pool = published_pool(options.model, length=options.length)
    result["parameters"] = num_parameters(pool, pool.original)
    if options.out is not None:
        write_json(options.out, result)
