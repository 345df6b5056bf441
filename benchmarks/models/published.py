"""A published model's figures: by this library, layer by layer, and by a plain loop over `transformers`.

    python -m benchmarks published --model hf:FOLDER --lambada FILE.jsonl --text FILE [--items 300] [--out FILE.json]

Perplexity is that of the first `--bytes` of a text in windows of `--length` tokens, whole ones alone, of which each
gives all its tokens but the first. Last words are those of the first `--items` passages: all tokens of the word must
be the likeliest ones.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas import SGD, ParamServer, Relay
from l2l_nas.compress.pool import open_published, published_pool
from l2l_nas.files import write_json
from l2l_nas.text.cloze import Passage, lambada, read_passages
from l2l_nas.training.fit import score
from l2l_nas.training.samples import Split
from l2l_nas.training.task import Tokens

WORDS = 224  # tokens of the longest passage, about


def windows(numbers: list[int], length: int) -> list[list[int]]:
    return [numbers[at : at + length] for at in range(0, len(numbers) - length + 1, length)]


def by_library(model: str, text: str, passages: list[Passage], *, length: int) -> dict[str, Any]:
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
    import transformers

    network = transformers.AutoModelForCausalLM.from_pretrained(model.partition(":")[2], dtype=torch.float32).eval()
    tokenizer = open_published(model).tokenizer()
    loss, count, hits, likelihood = 0.0, 0, 0, 0.0
    with torch.no_grad():
        for window in windows(tokenizer.encode(text), length):
            row = torch.tensor([window])
            loss += float(functional.cross_entropy(network(row).logits[0, :-1], row[0, 1:], reduction="sum"))
            count += length - 1
        for passage in passages:
            context = tokenizer.encode(passage.context)
            word = tokenizer.encode(passage.between + passage.target)
            logits = network(torch.tensor([context + word])).logits[0, len(context) - 1 : -1]
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
    parser.add_argument("--out", type=Path, default=RESULTS / "published.json")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    text = options.text.read_bytes()[: options.bytes].decode(errors="ignore")
    passages = read_passages(options.lambada)[: options.items]
    result: dict[str, Any] = {"machine": machine(), "model": Path(options.model).name}
    for name, side in (("l2l_nas", by_library), ("transformers", by_transformers)):
        result[name] = side(options.model, text, passages, length=options.length)
        print(name, result[name], flush=True)
    write_json(options.out, result)
