"""Steps a second of ranks that share a step, over one process with the same mini-batch; beside DDP and FSDP2.

    OMP_NUM_THREADS=1 python -m benchmarks scaling [--ranks 2] [--rounds 12] [--depth 2] [--batch 32] [--out FILE]

A stack of encoder blocks of width 256, AdamW, processes of this machine joined by gloo, each with one thread of torch.
Layers but the last are recomputed in the backward by all sides. All take turns, in an order that changes from round to
round, and a control is the same once more. Losses must agree; those of the relay with chunks are equal to the bit for
any number of ranks. Ranks that share processors with other work wait for each other: measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.paired import shown
from benchmarks.relay.peers import agreement
from benchmarks.relay.ranks import WAYS, Ranks
from benchmarks.relay.work import StackSizes
from benchmarks.timing import machine, ratio
from l2l_nas.errors import SettingError
from l2l_nas.files import write_json

ONE, CHUNKED = "relay, 1 process", "relay_chunks, 1 process"
_TOLERANCE = 1e-4  # of losses, relative


@dataclass
class Side:
    """One way with a number of ranks, and what was measured: losses, and seconds of each turn."""

    way: str
    size: int
    label: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def sides_of(size: int) -> list[Side]:
    """One process, then so many ranks; each relay with a control."""
    sides = [Side(way, 1, f"{way}, 1 process") for way in ("relay", "relay_chunks", "plain")]
    sides.append(Side("relay", 1, f"{ONE}, control"))
    sides += [Side(way, size, f"{way}, {size} ranks") for way in WAYS if way not in ("relay", "plain")]
    return [*sides, Side("relay_chunks", size, f"relay_chunks, {size} ranks, control")]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=at_least(2), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=12)
    for name, default in {"depth": 6, "hidden": 256, "sequence": 128, "batch": 16, "micro-batch": 4}.items():
        parser.add_argument(f"--{name}", type=at_least(1), default=default)
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling_quiet.json")


def main(options: argparse.Namespace) -> int:
    """Measure and write; 1 if losses do not agree."""
    names = ("depth", "hidden", "sequence", "batch", "micro_batch")
    sizes = {name: getattr(options, name) for name in names}
    work = StackSizes(device="cpu", feedforward=4 * options.hidden, **sizes)
    if work.batch % (options.ranks * work.micro_batch):
        raise SettingError(f"{options.ranks} ranks must divide the micro-batches of {work.batch} samples")
    sides, draw = sides_of(options.ranks), random.Random(0)
    with contextlib.ExitStack() as stack:
        worlds = {size: stack.enter_context(Ranks(size, work)) for size in (1, options.ranks)}

        def ask(side: Side, what: str, *words: object) -> list[Any]:
            answers = worlds[side.size].ask(what, side.label, *words)
            side.losses += map(sum, zip(*(one["losses"] for one in answers), strict=True))
            return answers

        for side in sides:
            ask(side, "open", side.way)
        for _ in range(options.rounds):
            for side in draw.sample(sides, len(sides)):
                side.seconds.append(max(one["wall"] for one in ask(side, "train")))
    by_label = {side.label: side for side in sides}
    rows: list[dict[str, Any]] = []
    for side in sides:
        # with chunks the relay's losses do not depend on how many ranks there are
        reference, tolerance = (CHUNKED, 0.0) if side.way == "relay_chunks" else (ONE, _TOLERANCE)
        about = agreement(side.losses, by_label[reference].losses, tolerance)
        speed = ratio(by_label[ONE].seconds, side.seconds)
        rows.append({"side": side.label, "losses": about, "speed_over_relay": {"wall": speed}})
        print(f"{side.label:34}{shown(speed)} times as fast; losses differ by {about['largest_difference']:.0e}")
    write_json(options.out, {"benchmark": "scaling", "machine": machine(), "stack": sizes, "rows": rows})
    return int(not all(row["losses"]["agrees"] for row in rows))
