"""How often updates ahead of the check are put back, on two real tasks, for several limits of the gradient's norm.

    python -m benchmarks put_back --text FILE [--steps 300] [--out FILE.json]

A network on handwritten digits and a byte-level GPT-2 on a text are trained with updates ahead of the check and behind
it, step by step, whoever begins changing. Losses must be equal bit for bit. `waited` are steps in which updates did not
run ahead, as a step had been put back not long before.
"""

from __future__ import annotations

import os

from benchmarks import RESULTS
from benchmarks.options import at_least

os.environ.setdefault("MKL_CBWR", "AVX2")  # sums that do not depend on where memory begins; before torch is loaded

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models.language_training import BATCH, CONFIGS, LENGTH
from benchmarks.relay.moments import flat, pool, width_of
from benchmarks.timing import machine
from l2l_nas import AdamW, Batches, Classification, Clip, ParamServer, Relay, Tokens
from l2l_nas.files import write_json
from l2l_nas.pretrained.families import family_of
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.runs.locate import load_data
from l2l_nas.text.data import TextForm, text_data
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.schedule import Cosine

LIMITS = (0.25, 1.0, 4.0)


def digits(text: str) -> tuple[Any, Any, Batches, Any]:
    """Four linear layers on images."""
    del text
    data = flat(load_data("digits", 0.2, 0.2))
    space = pool(width_of(data))
    return space, space.architecture(["linear"] * 4), Batches(data.train, batch_size=64, seed=0), Classification()


def language(text: str) -> tuple[Any, Any, Batches, Any]:
    """A byte-level GPT-2."""
    tokenizer = Bytes()
    data = text_data(text, tokenizer, TextForm(length=LENGTH, objective="causal", splits=(90, 5, 5)))
    space = family_of({**CONFIGS["causal"], "vocab_size": tokenizer.size}).pool()
    return space, space.original, Batches(data.train, batch_size=BATCH, seed=0), Tokens()


def compared(task: Callable[[str], Any], text: str, *, limit: float, steps: int) -> dict[str, Any]:
    """Train both."""
    space, path, batches, objective = task(text)
    relays = {
        order: Relay(ParamServer(space, optimizer=AdamW(), seed=0), device="cpu", update=order, clip=Clip(limit))
        for order in (UpdateOrder.AHEAD, UpdateOrder.CHECKED)
    }
    schedule, clipped, waited, differing = Cosine(2e-3, steps), 0, 0, 0
    ratios = []
    for step in range(steps):
        inputs, targets = batches.at(step)
        size, spent, losses = len(inputs[0]), {}, {}
        waited += relays[UpdateOrder.AHEAD]._training._next_order() is UpdateOrder.CHECKED
        for update in list(relays)[:: -1 if step % 2 else 1]:
            begun = time.process_time()
            result = relays[update].train_step(
                path, inputs, targets, objective=objective, micro_batch=size, lr=schedule.at(step), step=step
            )
            relays[update].drain()
            spent[update], losses[update] = time.process_time() - begun, result.loss
        clipped += result.gradient_norm is not None and result.gradient_norm > limit
        differing += losses[UpdateOrder.AHEAD] != losses[UpdateOrder.CHECKED]
        ratios.append(spent[UpdateOrder.AHEAD] / spent[UpdateOrder.CHECKED])
    return {
        "limit": limit, "steps": steps, "clipped": clipped, "ahead": steps - waited,
        "put_back": relays[UpdateOrder.AHEAD].put_back, "steps_with_another_loss": differing,
        "processor_time_over_exact": statistics.median(ratios),
    }  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", required=True)
    parser.add_argument("--steps", type=at_least(1), default=300)
    parser.add_argument("--out", type=Path, default=RESULTS / "put_back.json")


def main(options: argparse.Namespace) -> None:
    """Both tasks."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine()}
    for task in (digits, language):
        found[task.__name__] = [compared(task, options.text, limit=limit, steps=options.steps) for limit in LIMITS]
        for row in found[task.__name__]:
            print(task.__name__, row, flush=True)
    write_json(options.out, found)
