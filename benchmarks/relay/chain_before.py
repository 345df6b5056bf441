"""The time of a chain's training step now, over that of an earlier commit.

    python -m benchmarks chain_before COMMIT [--rounds 16] [--out FILE]

Three processes take turns in an order that changes from round to round: the commit, this working tree, and the commit
again as a control. Each trains encoder blocks between an embedding and a head, for some steps on one path and for as
many on a new path each. Compared is processor time, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.options import at_least
from benchmarks.paired import check_library, command_of

BLOCKS, WIDTH, TOKENS, BATCH, MICRO, STEPS = 12, 64, 32, 16, 4, 12
SIDES = ("before", "now", "control")
KINDS = ("one path", "a new path each step")


def work() -> None:
    """What a process does: for each line that it reads, the seconds of a step on one path and on new ones."""
    import torch
    from torch import nn

    from l2l_nas import AdamW, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec

    check_library()
    torch.set_num_threads(1)

    def block(wide: int) -> nn.Module:
        return nn.TransformerEncoderLayer(WIDTH, 4, wide * WIDTH, dropout=0.0, batch_first=True)

    blocks = [Candidate(f"wide_{wide}", partial(block, wide)) for wide in (2, 4)]
    head = Candidate("head", lambda: nn.Sequential(nn.Flatten(), nn.Linear(WIDTH * TOKENS, 4)))
    positions = [Position(f"block_{i}", blocks) for i in range(BLOCKS)]
    pool = LayerPool([*positions, Position("head", [head])], inputs=TensorSpec((TOKENS, WIDTH)))
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    x, y = torch.randn(BATCH, TOKENS, WIDTH), torch.randint(0, 4, (BATCH,))
    draw, step = random.Random(0), 0

    def steps(path: Callable[[], Any]) -> float:
        nonlocal step
        before = time.process_time()
        for _ in range(STEPS):
            relay.train_step(path(), (x,), y, objective=Classification(), micro_batch=MICRO, lr=1e-3, step=step)
            step += 1
        relay.drain()
        return (time.process_time() - before) / STEPS

    def drawn() -> Any:
        return pool.architecture([draw.choice(("wide_2", "wide_4")) for _ in range(BLOCKS)] + ["head"])

    fixed = drawn()
    for _ in range(4):  # all layers have states
        steps(drawn)
    for _ in sys.stdin:
        print(steps(lambda: fixed), steps(drawn), flush=True)


def measured(commit: str, rounds: int) -> dict[str, Any]:
    """Ratios by kind and side, over `before`: the median, and the 95 % interval of the median by its ranks."""
    packed = subprocess.run(["git", "archive", commit, "l2l_nas"], cwd=ROOT, capture_output=True, check=True).stdout
    found: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in KINDS} for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            tar.extractall(folder, filter="data")
        children = {side: _child(str(ROOT) if side == "now" else folder) for side in SIDES}
        for number in range(rounds):
            order = random.Random(number).sample(SIDES, len(SIDES))
            for side in order:
                stdin, stdout = children[side].stdin, children[side].stdout
                assert stdin is not None
                assert stdout is not None
                stdin.write("\n")
                stdin.flush()
                for kind, seconds in zip(KINDS, map(float, stdout.readline().split()), strict=True):
                    found[side][kind].append(seconds)
        for child in children.values():
            child.communicate()
    report: dict[str, Any] = {"commit": commit, "rounds": rounds, "seconds": found}
    for kind in KINDS:
        for side in SIDES[1:]:
            ratios = sorted(a / b for a, b in zip(found[side][kind], found["before"][kind], strict=True))
            rank = max(0, int((rounds - 1.96 * rounds**0.5) / 2))
            report[f"{kind}: {side}"] = [statistics.median(ratios), ratios[rank], ratios[-1 - rank]]
    return report


def _child(tree: str) -> subprocess.Popen[str]:
    place = {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command_of(work), env=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=at_least(1), default=16)
    parser.add_argument("--out", type=Path)


def main(told: argparse.Namespace) -> None:
    from l2l_nas.files import write_json

    report = measured(told.commit, told.rounds)
    for name, value in report.items():
        if ": " in name:
            print(f"{name:35} {value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})")
    if told.out is not None:
        write_json(told.out, report)
