"""The time of training steps and of whole searches, over that of another checkout, such as the commit before.

    python -m benchmarks before_after steps BEFORE [--depths 12 24] [--threads 1 2] [--rounds 12]
    python -m benchmarks before_after search BEFORE [--rounds 5] [SETTING=VALUE ...]

`steps`: encoder blocks of width 256 between an embedding and a head, each checkout in a process that lives on, and
BEFORE in a second one as a control. They take turns, in an order that changes from round to round; each ratio is a
median with its 95 % interval. A process keeps a percent or two of its own, by where its memory comes to lie, so there
are several of each. Losses must be equal, bit for bit.

`search`: `python -m l2l_nas search` with these settings, whole runs in turns. What they find must be equal, bit for
bit: values of all trials, the front, and weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.options import at_least
from benchmarks.paired import Seconds, Side, ratios, shown, timed

SIDES = ("before", "now", "control")
WIDTH, SEQUENCE, VOCABULARY = 256, 128, 1000
KINDS: Mapping[str, dict[str, Any]] = {
    "relay": {},
    "exact": {"update": "exact", "clip": 1.0},
    "everything held": {"device_budget": "all"},
    "bf16": {"precision": "bf16"},
    "files": {"storage": "file"},
}
FEWER = {"bf16": 4}  # blocks, where a step takes twice as long
# what two runs of one commit do not have in common; and how slots are laid out
_LEFT_OUT = ("seconds", "time", "latency", "version", "folder", "device_bytes", "streamed_bytes")
_EVENTS = ("trial", "finalist", "done")


def stack(depth: int) -> Any:
    """Embedding, encoder blocks, head."""
    from torch import int64, nn

    from l2l_nas import Candidate, LayerPool, Position, TensorSpec

    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    positions = [Position("embedding", Candidate("tokens", lambda: nn.Embedding(VOCABULARY, WIDTH)))]
    positions += [Position(f"block_{index:02d}", Candidate("encoder", block)) for index in range(depth)]
    positions.append(Position("head", Candidate("linear", lambda: nn.Linear(WIDTH, VOCABULARY))))
    return LayerPool(positions, inputs=TensorSpec((SEQUENCE,), int64))


def tokens(batch: int) -> Any:
    """Inputs, and targets as well."""
    import torch

    return torch.randint(VOCABULARY, (batch, SEQUENCE), generator=torch.Generator().manual_seed(0))


class Worker:
    """Holds one relay at a time."""

    def __init__(self) -> None:
        from l2l_nas import Tokens

        self.folder, self.task = tempfile.TemporaryDirectory(), Tokens()
        self.relay: Any = None
        self.pool: Any = None
        self.batch: Any = None
        self.step = 0

    def open(self, kind: str, depth: int, batch: int) -> list[float]:
        """A relay of a kind; the losses of its first steps."""
        from l2l_nas import AdamW, Clip, FileStorage, ParamServer, Relay

        if self.relay is not None:
            self.relay.close()
        options = dict(KINDS[kind])
        storage = None
        if options.pop("storage", None) == "file":
            storage = FileStorage(Path(tempfile.mkdtemp(dir=self.folder.name)))
        if "clip" in options:
            options["clip"] = Clip(options["clip"])
        self.pool, self.batch, self.step = stack(depth), tokens(batch), 0
        self.relay = Relay(ParamServer(self.pool, optimizer=AdamW(), seed=0, storage=storage), device="cpu", **options)
        return [self._step() for _ in range(3)]

    def _step(self) -> float:
        architecture = self.pool.architecture(position.candidates[0].name for position in self.pool.positions)
        result = self.relay.train_step(
            architecture, (self.batch,), self.batch,
            objective=self.task, micro_batch=4, lr=1e-4, step=self.step, upcoming=architecture,
        )  # fmt: skip
        self.step += 1
        return float(result.loss)

    def train(self) -> dict[str, float]:
        """Seconds of a step."""

        def steps() -> None:
            self._step()
            self.relay.drain()

        return timed(steps)


_worker = cache(Worker)


def answer(what: str, **options: Any) -> Any:
    """What a process is asked: to open a relay, or to train."""
    return getattr(_worker(), what)(**options)


def steps(before: Path, *, threads: int, depth: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind."""
    checkouts = {"before": before, "now": ROOT, "control": before}
    found: dict[str, dict[str, Seconds]] = {
        kind: {side: {"cpu": [], "wall": []} for side in SIDES} for kind in options.kinds
    }
    for number in range(options.processes):
        sides = {name: Side(answer, path, threads=threads) for name, path in checkouts.items()}
        for kind in options.kinds:
            blocks = min(depth, FEWER.get(kind, depth))
            losses = {
                name: side.ask(what="open", kind=kind, depth=blocks, batch=options.batch)
                for name, side in sides.items()
            }
            if len(set(map(tuple, losses.values()))) > 1:
                raise SystemExit(f"{kind}: losses differ: {losses}")
            for repeat in range(options.rounds):
                for name in random.Random(f"{number} {repeat}").sample(SIDES, len(SIDES)):
                    for clock, seconds in sides[name].ask(what="train").items():
                        found[kind][name][clock].append(seconds)
        for side in sides.values():
            side.process.communicate()
    rows = []
    for kind, own in found.items():
        row: dict[str, Any] = {"kind": kind, "depth": min(depth, FEWER.get(kind, depth)), "threads": threads}
        row |= {"ratios": ratios(own, over="before")}
        row["least_cpu_ms"] = {side: round(1e3 * min(seconds["cpu"]), 2) for side, seconds in own.items()}
        rows.append(row)
        now, control = row["ratios"]["now"], row["ratios"]["control"]
        print(
            f"{threads} threads, {row['depth']:2} blocks, {kind:16} "
            f"cpu {shown(now['cpu'])}, wall {shown(now['wall'])}, "
            f"control {shown(control['cpu'])}, wall {shown(control['wall'])}, "
            f"least {row['least_cpu_ms']['before']} and {row['least_cpu_ms']['now']} ms",
            flush=True,
        )
    return rows


def run_search(checkout: Path, folder: Path, settings: list[str]) -> dict[str, float]:
    """Seconds of a whole run."""
    places = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "l2l_nas", "search", f"folder={folder}", *settings]
    used, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder.parent, env=places, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"cpu": cpu, "wall": time.perf_counter() - started}


def found_in(folder: Path) -> dict[str, Any]:
    """What a run found, without its times: results, trials, and a hash of each file of weights."""
    result = _timeless(json.loads((folder / "result.json").read_text()))
    events = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    lines = [_timeless(event) for event in events if event["event"] in _EVENTS]
    weights = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "best").glob("*.safetensors"))
    }
    return {"result": result, "log": lines, "weights": weights}


def _timeless(value: Any) -> Any:
    """Without what `_LEFT_OUT` names."""
    if isinstance(value, dict):
        return {name: _timeless(own) for name, own in value.items() if not any(word in name for word in _LEFT_OUT)}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def search(before: Path, *, rounds: int, settings: list[str]) -> dict[str, Any]:
    """Ratios of whole runs."""
    checkouts = {"before": before, "now": ROOT, "control": before}
    seconds: dict[str, Seconds] = {side: {"cpu": [], "wall": []} for side in SIDES}
    differs: list[str] = []
    for number in range(rounds):
        results = {}
        with tempfile.TemporaryDirectory() as name:
            for side in random.Random(number).sample(SIDES, len(SIDES)):
                folder = Path(name) / side / "run"  # as long a path on each side
                folder.parent.mkdir()
                for clock, value in run_search(checkouts[side], folder, settings).items():
                    seconds[side][clock].append(value)
                results[side] = found_in(folder)
        for side in SIDES[1:]:
            differs += [f"{side}: {part}" for part, own in results[side].items() if own != results["before"][part]]
    found = ratios(seconds, over="before")
    least = {side: {clock: round(min(own), 2) for clock, own in by.items()} for side, by in seconds.items()}
    for side, by in found.items():
        print(
            f"search, {side:8} cpu {shown(by['cpu'])}, wall {shown(by['wall'])}, "
            f"least {least[side]} of {least['before']}"
        )
    print("what they found is equal, bit for bit" if not differs else f"DIFFERS: {', '.join(sorted(set(differs)))}")
    return {"settings": settings, "ratios": found, "least": least, "differs": sorted(set(differs))}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("steps", "search"))
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--depths", type=at_least(1), nargs="+", default=[12, 24])
    parser.add_argument("--threads", type=at_least(1), nargs="+", default=[1, 2])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--batch", type=at_least(1), default=8, help="of a step, in micro-batches of 4")
    parser.add_argument("--rounds", type=at_least(1), default=6, help="of each process, or of whole runs")
    parser.add_argument("--processes", type=at_least(1), default=3)
    parser.add_argument("--out", type=Path)


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    from benchmarks.timing import machine
    from l2l_nas.files import write_json

    before = options.before.resolve()
    report: dict[str, Any] = {"benchmark": f"before_after_{options.what}", "machine": machine()}
    if options.what == "search":
        report |= search(before, rounds=options.rounds, settings=options.settings)
    else:
        report["rows"] = [
            row
            for threads in options.threads
            for depth in options.depths
            for row in steps(before, threads=threads, depth=depth, options=options)
        ]
    default = RESULTS / f"before_after_{options.what}.json"
    write_json(options.out or default, report)
