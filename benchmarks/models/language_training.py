"""A byte-level GPT-2 and a BERT on real text, in the relay and in a plain PyTorch loop: the same losses, step by step.

    python -m benchmarks language_training [--source FILE] [--minutes 10] [--objective causal] [--out FILE.json]

Both sides have the same first weights, batches, masks, learning rates and AdamW (`fused=True`); no dropout. Each step
is run by one side, then by the other, and their losses are compared bit for bit, at last the weights too. The loss is
in nats a token; a byte is a token.
"""

from __future__ import annotations

import os

from benchmarks.options import at_least

os.environ.setdefault("MKL_CBWR", "AVX2")  # sums that do not depend on where memory begins; before torch is loaded

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.timing import machine
from l2l_nas import AdamW, Batches, ParamServer, Relay, Tokens
from l2l_nas.compress.families import family_of
from l2l_nas.files import write_json
from l2l_nas.text.data import TextForm, text_data
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.export import build_network
from l2l_nas.training.fit import score
from l2l_nas.training.schedule import Cosine

LENGTH, HIDDEN, DEPTH, HEADS, BATCH = 128, 128, 4, 4, 16
PEAK = 2e-3
CONFIGS: dict[str, dict[str, Any]] = {
    "causal": {"model_type": "gpt2", "n_embd": HIDDEN, "n_layer": DEPTH, "n_head": HEADS, "n_positions": LENGTH}
    | {"activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "masked": {"model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}
    | {"intermediate_size": 4 * HIDDEN, "max_position_embeddings": LENGTH, "hidden_act": "gelu"}
    | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}


def begin_as_gpt2(server: ParamServer, keys: Iterable[str]) -> None:
    """Draw the weights of all matrices as GPT-2 does."""
    with torch.no_grad():
        for key in keys:
            for name, parameter in server.state(key).parameters().items():
                if name.endswith("weight") and parameter.dim() == 2:
                    parameter.normal_(0, 0.02, generator=torch.Generator().manual_seed(parameter.numel()))


def run(source: str, objective: str, *, minutes: float, steps: int) -> dict[str, Any]:
    """Train both sides for some time, or all steps, and say what came of it."""
    tokenizer = Bytes()
    form = TextForm(length=LENGTH, objective=objective)
    data = text_data(source, tokenizer, form)
    pool = family_of({**CONFIGS[objective], "vocab_size": tokenizer.size}).pool()
    path, task, rule = pool.original, Tokens(), AdamW(weight_decay=0.05)
    server = ParamServer(pool, optimizer=rule, seed=0)
    relay = Relay(server, device="cpu")
    begin_as_gpt2(server, dict.fromkeys(state for layer in pool.path(path) for state in layer.states))
    plain = build_network(server, path).train()
    optimizer = torch.optim.AdamW(
        plain.parameters(), lr=0.0, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True
    )
    batches = Batches(data.train, batch_size=BATCH, seed=0)
    schedule = Cosine(PEAK, steps)
    differing, started = 0, time.monotonic()
    spent = {"relay": 0.0, "plain": 0.0}
    for step in range(steps):
        inputs, targets = batches.at(step)
        rate = schedule.at(step)
        begun = time.perf_counter()
        ours = relay.train_step(path, inputs, targets, objective=task, micro_batch=BATCH, lr=rate, step=step)
        relay.drain()
        between = time.perf_counter()
        optimizer.param_groups[0]["lr"] = rate
        logits = plain(*inputs)
        loss = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-1
        ) / int((targets >= 0).sum())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        spent["relay"] += between - begun
        spent["plain"] += time.perf_counter() - between
        differing += ours.loss != float(loss.detach())
        if step % 100 == 0:
            print(f"step {step}: loss {ours.loss:.4f}, differing {differing}", flush=True)
        if time.monotonic() - started > 60 * minutes:
            break
    equal = all(
        torch.equal(one, other)
        for one, other in zip(build_network(server, path).parameters(), plain.parameters(), strict=True)
    )
    assert data.test is not None
    test = score(relay, path, data.test, task=task, micro_batch=BATCH)
    return {
        "machine": machine(), "source": Path(source).name, "objective": objective, "steps": step + 1,
        "parameters": sum(p.numel() for p in plain.parameters()), "steps_with_another_loss": differing,
        "weights_are_equal": equal, "seconds": spent, "test_loss": test.values["loss"],
    }  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", default="pydoc")
    parser.add_argument("--objective", choices=("causal", "masked"), default="causal")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=at_least(1), default=2000)
    parser.add_argument("--out", type=Path, default=None)


def main(options: argparse.Namespace) -> None:
    """Run it, print the end, write the file."""
    torch.set_num_threads(1)
    result = run(options.source, options.objective, minutes=options.minutes, steps=options.steps)
    print(result)
    if options.out is not None:
        write_json(options.out, result)
