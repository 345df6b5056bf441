"""Device memory of a training step by the number of layers: the relay beside plain PyTorch.

    python -m benchmarks depth [--sides relay_host relay] [--depths 12 96] [--device cpu] [--out FILE]

Encoder blocks of width 64, sequence 32, 8 samples in micro-batches of 4. Bytes are the peak of a second step: the
allocator's on an accelerator; on a CPU what a side holds on its device side, and the most that its operators make on
top of that. Losses of all sides are compared.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.pages.writing import format_bytes, markdown
from benchmarks.relay.peers import SIDES, Side, agreement, allocated, peak_bytes, repeat, synchronize, tolerance_of
from benchmarks.relay.work import StackSizes
from benchmarks.timing import machine
from l2l_nas.files import write_json

_SIDES = ("relay_host", "relay", "checkpointed", "plain")
_DEPTHS = [12, 24, 48, 96, 192, 384]


def measured(side: Side, work: StackSizes) -> tuple[int | None, list[float]]:
    """Peak bytes and losses of two steps of one side, alone on the device."""
    before = allocated(work.torch_device)
    with contextlib.closing(side.build(work)) as runner:
        losses = [repeat(runner, 1, 0)]
        peak = peak_bytes(
            lambda: losses.append(repeat(runner, 1, 1)), work.torch_device, owned=runner.device_bytes, before=before
        )
    synchronize(work.torch_device)
    return peak, losses


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(_SIDES), metavar="SIDE")
    parser.add_argument("--depths", nargs="+", type=at_least(1), default=_DEPTHS, metavar="N")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, default=RESULTS / "depth.json")


def main(options: argparse.Namespace) -> int:
    """Measure and write; 1 if losses do not agree."""
    rows: list[dict[str, Any]] = []
    for depth in options.depths:
        work = StackSizes(depth, hidden=64, feedforward=256, sequence=32, batch=8, device=options.device)
        reference: list[float] = []
        for name in options.sides:
            peak, losses = measured(SIDES[name], work)
            reference = reference or losses
            about = agreement(losses, reference, tolerance_of(SIDES[name], work.torch_device))
            rows.append({"side": name, "depth": depth, "device_bytes": peak, "agreement": about})
    found = {(row["side"], row["depth"]): format_bytes(row["device_bytes"]) for row in rows}
    lines = [[f"{depth}", *(found[name, depth] for name in options.sides)] for depth in options.depths]
    print(markdown(["blocks", *options.sides], lines))
    write_json(options.out, {"benchmark": "depth", "machine": machine(work.torch_device), "rows": rows})
    return int(not all(row["agreement"]["agrees"] for row in rows))
