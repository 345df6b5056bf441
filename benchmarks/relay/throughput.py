"""Time of a training step of every side over PyTorch with activation checkpointing, by depth.

    OMP_NUM_THREADS=1 python -m benchmarks throughput --threads 1 [--sides relay plain] [--depths 4 12 24] [--rounds 8]
        [--steps 2] [--device cpu] [--out FILE]

Encoder blocks of width 256, sequence 128, 32 samples in micro-batches of 4. Sides take turns in one process, ratios are
formed round by round, and `control` is the reference once more. Losses of all sides are compared. Other libraries
stand beside the relay where they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.paired import shown
from benchmarks.relay.peers import REFERENCE, SIDES, Runner, Side, agreement, repeat, tolerance_of
from benchmarks.relay.work import StackSizes
from benchmarks.timing import interleave, machine, ratio
from l2l_nas.files import write_json

_SIDES = (
    *("relay", "relay_exact", "relay_half", "relay_kept", "relay_bf16"),
    *("plain", "fsdp2", "l2l_pytorch", "deepspeed"),
)
# compared beyond the reference: the promise each of them is about
_PAIRS = {"relay_exact": ("relay",), "relay_bf16": ("relay",), "relay_half": ("plain",), "relay_kept": ("plain",)}


def timed(sides: Mapping[str, Side], work: StackSizes, *, rounds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each side at one depth; `control` is the reference once more."""
    with contextlib.ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for name, side in {**sides, "control": sides[REFERENCE]}.items():
            runners[name] = side.build(work)
            stack.callback(runners[name].close)
        losses: dict[str, list[float]] = {name: [] for name in runners}

        def go(name: str, number: int) -> None:
            losses[name].append(repeat(runners[name], steps, number * steps))

        seconds = interleave({name: partial(go, name) for name in runners}, rounds=rounds, warmup=1)
    rows = []
    for name in runners:
        own = statistics.median(seconds[name]) / steps
        others = [other for other in (REFERENCE, *_PAIRS.get(name, ())) if other in runners and other != name]
        tolerance = tolerance_of(sides.get(name, sides[REFERENCE]), work.torch_device)
        rows.append(
            {
                "depth": work.depth,
                "side": name,
                "seconds_a_step": round(own, 5),
                "tokens_a_second": round(work.tokens.numel() / own),
                "over": {other: ratio(seconds[name], seconds[other]) for other in others},
                "agreement": agreement(losses[name], losses[REFERENCE], tolerance),
            }
        )
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(_SIDES), metavar="SIDE")
    parser.add_argument("--depths", nargs="+", type=at_least(1), default=[4, 12, 24], metavar="N")
    parser.add_argument("--rounds", type=at_least(1), default=8)
    parser.add_argument("--steps", type=at_least(1), default=2, help="of a round")
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, default=RESULTS / "throughput_1_thread.json")


def main(options: argparse.Namespace) -> int:
    """Measure and write; 1 if losses do not agree."""
    torch.set_num_threads(options.threads)
    sides = {name: SIDES[name] for name in dict.fromkeys([REFERENCE, *options.sides])}
    left_out = {name: side.unavailable() for name, side in sides.items() if side.unavailable()}
    sides = {name: side for name, side in sides.items() if name not in left_out}
    rows = []
    for depth in options.depths:
        rows += timed(sides, StackSizes(depth, device=options.device), rounds=options.rounds, steps=options.steps)
    for row in rows:
        told = ", ".join(f"{shown(value)} of {other}'s" for other, value in row["over"].items())
        off = row["agreement"]["largest_difference"]
        print(f"{row['depth']:3} {row['side']:14}{row['seconds_a_step']:.4f} s, losses differ by {off:.0e}; {told}")
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    about = {"benchmark": "throughput", "machine": machine(), "over": REFERENCE, "left_out": left_out}
    write_json(options.out, {**about, "rounds": options.rounds, "steps": options.steps, "rows": rows})
    return int(not all(row["agreement"]["agrees"] for row in rows))
