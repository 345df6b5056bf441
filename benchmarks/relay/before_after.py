"""The time of training steps over that of another checkout, such as the commit before.

    python -m benchmarks before_after BEFORE [--kinds relay files] [--depth 12] [--threads 1] [--rounds 12]

Encoder blocks of width 256 between an embedding and a head, each checkout in a process that lives on, and BEFORE in a
second one as a control. They take turns, in an order that changes from round to round; each ratio is a median with its
95 % interval. A process keeps a percent or two of its own, by where its memory comes to lie, so there are three of
each. Losses must be equal, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.options import at_least
from benchmarks.paired import Seconds, Side, ratios, shown, timed

SIDES, PROCESSES = ("before", "now", "control"), 3
KINDS: dict[str, dict[str, Any]] = {
    "relay": {},
    "exact": {"update": "exact", "clip": 1.0},
    "everything held": {"device_budget": "all"},
    "bf16": {"precision": "bf16"},
    "files": {"storage": "file"},
}
WIDTH, SEQUENCE, VOCABULARY = 256, 128, 1000


class Worker:
    """Holds one relay at a time. The library is that of the checkout that the process was started in."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.relay: Any = None

    def open(self, kind: str, depth: int) -> list[float]:
        """A relay of a kind; the losses of its first steps."""
        import torch
        from torch import nn

        from l2l_nas import AdamW, Candidate, Clip, FileStorage, LayerPool, ParamServer, Position, Relay, TensorSpec

        def block() -> nn.Module:
            return nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

        options = dict(KINDS[kind])
        is_file = options.pop("storage", None) == "file"
        storage = FileStorage(Path(tempfile.mkdtemp(dir=self.folder.name))) if is_file else None
        if "clip" in options:
            options["clip"] = Clip(options["clip"])
        if self.relay is not None:
            self.relay.close()
        positions = [Position("embedding", Candidate("tokens", lambda: nn.Embedding(VOCABULARY, WIDTH)))]
        positions += [Position(f"block_{index:02d}", Candidate("encoder", block)) for index in range(depth)]
        positions.append(Position("head", Candidate("linear", lambda: nn.Linear(WIDTH, VOCABULARY))))
        pool = LayerPool(positions, inputs=TensorSpec((SEQUENCE,), torch.int64))
        self.architecture = pool.architecture(position.candidates[0].name for position in positions)
        self.batch = torch.randint(VOCABULARY, (8, SEQUENCE), generator=torch.Generator().manual_seed(0))
        self.step = 0
        self.relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0, storage=storage), device="cpu", **options)
        return [self._step() for _ in range(3)]

    def _step(self) -> float:
        from l2l_nas import Tokens

        self.step += 1
        result = self.relay.train_step(
            self.architecture, (self.batch,), self.batch,
            objective=Tokens(), micro_batch=4, lr=1e-4, step=self.step, upcoming=self.architecture,
        )  # fmt: skip
        self.relay.drain()
        return float(result.loss)

    def train(self) -> dict[str, float]:
        return timed(self._step)


_worker = cache(Worker)


def answer(what: str, **options: Any) -> Any:
    """What a process is asked: to open a relay, or to train."""
    return getattr(_worker(), what)(**options)


def steps(checkouts: dict[str, Path], options: argparse.Namespace) -> dict[str, dict[str, Seconds]]:
    found: dict[str, dict[str, Seconds]] = {k: {s: {"cpu": [], "wall": []} for s in SIDES} for k in options.kinds}
    for number in range(PROCESSES):
        sides = {name: Side(answer, path, threads=options.threads) for name, path in checkouts.items()}
        for kind in options.kinds:
            losses = {name: side.ask(what="open", kind=kind, depth=options.depth) for name, side in sides.items()}
            if len(set(map(tuple, losses.values()))) > 1:
                raise SystemExit(f"{kind}: losses differ: {losses}")
            for repeat in range(options.rounds):
                for name in random.Random(f"{number} {repeat}").sample(SIDES, len(SIDES)):
                    for clock, seconds in sides[name].ask(what="train").items():
                        found[kind][name][clock].append(seconds)
        for side in sides.values():
            side.process.communicate()
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--depth", type=at_least(1), default=12)
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--rounds", type=at_least(1), default=6, help="of each process")


def main(options: argparse.Namespace) -> None:
    checkouts = {"before": options.before.resolve(), "now": ROOT, "control": options.before.resolve()}
    for kind, found in steps(checkouts, options).items():
        for side, by in ratios(found, over="before").items():
            least = ", ".join(f"{1e3 * min(found[one]['cpu']):.1f}" for one in ("before", side))
            print(
                f"{kind:16}{side:8}cpu {shown(by['cpu'])}, wall {shown(by['wall'])}, least cpu {least} ms", flush=True
            )
