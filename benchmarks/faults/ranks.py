"""Ranks that fail, and go on: the others end within a minute, with one line that names the rank and what it did.

    python -m benchmarks ranks [--kind kill] [--moments 20] [--seed 0] [--out FILE]

A rank of a training is killed, stopped, raises, meets NaN or lacks memory, at moments drawn from the seed, a part of
them within saves. The others end within 60 s, with one line; no exit code is 0; and every fourth run (of those in
saves, each) is resumed, to the bits of one that was never stopped. Ranks are processes forked from one that has
imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.faults import forks
from benchmarks.options import at_least
from benchmarks.timing import free_port
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.files import read_json, write_json
from l2l_nas.parallel.ranks import GroupExchange
from l2l_nas.parallel.world import World
from tests.cli.runs import write_pool

KINDS = ("kill", "stop", "raise", "nan", "nan_gradient", "memory")


@dataclass(frozen=True)
class Fault:
    """What happens to a rank: before which exchange of its own, from 1; with `in_save`, of those within saves."""

    kind: str
    rank: int
    at: int
    in_save: bool = False


class Harm:
    """Counts the moments of this rank, and does what is said."""

    def __init__(self, fault: Fault | None, mark: Path) -> None:
        self._fault, self._mark = fault, mark
        self._all = self._in_saves = 0
        self._is_saving = False
        self._is_armed: Fault | None = None
        self._doing = ""

    def install(self) -> None:
        """Wrap what is counted. The process is one that ends soon."""
        for name in ("all_gather", "all_to_all"):
            _wrap(GroupExchange, name, self._exchange)
        _wrap(Checkpoint, "save", self._save)
        _wrap(World, "leave", self._leave)
        _wrap(nn.Linear, "forward", self._forward)

    def _note(self, **content: Any) -> None:
        with self._mark.open("a") as file:
            file.write(json.dumps({**content, "at_s": time.monotonic()}) + "\n")
            file.flush()

    def _exchange(self, call: Callable[..., Any], exchange: GroupExchange, *words: Any, **named: Any) -> Any:
        self._all += 1
        self._in_saves += self._is_saving
        self._doing = exchange._watch.doing
        fault = self._fault
        if fault and fault.at == (self._in_saves * self._is_saving if fault.in_save else self._all):
            self._fault = None
            if fault.kind in ("kill", "stop") or fault.in_save:
                self._happen(fault)
            else:
                self._is_armed = fault
        return call(exchange, *words, **named)

    def _happen(self, fault: Fault) -> None:
        self._note(fault=fault.kind, doing=self._doing)
        if fault.kind in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        elif fault.kind == "raise":
            raise ValueError("my layer is broken")
        elif fault.kind == "memory":
            raise MemoryError

    def _forward(self, call: Callable[..., Any], layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = call(layer, x)
        if x.is_meta or not layer.training or self._is_saving:
            return result
        armed = self._is_armed
        if armed is None or (armed.kind == "nan_gradient" and not result.requires_grad):
            return result  # in the second case, a layer that is run again before its backward
        self._is_armed = None
        self._happen(armed)
        if armed.kind == "nan":
            return result * torch.nan
        result.register_hook(lambda gradient: gradient * torch.nan)
        return result

    def _save(self, call: Callable[..., Any], *words: Any, **named: Any) -> Any:
        self._is_saving = True
        try:
            return call(*words, **named)
        finally:
            self._is_saving = False

    def _leave(self, call: Callable[..., Any], world: World) -> Any:
        self._note(exchanges=self._all, in_saves=self._in_saves)
        return call(world)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    inner = getattr(owner, name)

    @wraps(inner)
    def outer(*words: Any, **named: Any) -> Any:
        return around(inner, *words, **named)

    setattr(owner, name, outer)


Found = dict[str, Any]
SIZE = 2
MOST_S = 60.0  # within which the others end
TRAIN = (
    *("train", "space.pool=tiny.py:build", "space.args.width=200", "train.micro_batch=16", "relay.threads=1"),
    *("architecture=original", "train.steps=24", "train.validation_steps=4", "relay.clip=0.5", "relay.update=exact"),
    *("schedule=constant", "export=false"),
)
_LAST = 0.85  # of all moments: behind them no layer trains
_SAVED = 5  # moments within saves, for each 20 of all
_EVERY = 4  # which run is resumed
_NAMED = r"error: rank {rank} \([^ ]+, pid \d+\) "
_SAID = {
    "kill": "ended (.+): it was killed, or crashed; see its own output",
    "stop": r"did not answer for \S+ s; it was (.+) \(its process is stopped\)",
    "raise": r"failed (.+): (position \S+ candidate \S+ its layer raised )?ValueError: my layer is broken \(\S+, .*\)",
    "nan_gradient": r"failed (.+): gradient of layer '\S+' is not finite.*",
    "nan": "failed (.+): .* not finite.*",
    "memory": r"failed (.+): out of memory \([^;]*\); take [^;]*",
}


class Ranks:
    """`torchrun --nproc-per-node 2 -m l2l_nas WORDS`, without the launcher; faults happen to one of them."""

    def __init__(self, place: Path, *words: str, fault: Fault | None = None, is_counted: bool = True) -> None:
        port = free_port()

        def work(rank: int) -> int:
            from l2l_nas.__main__ import main

            world = {"RANK": rank, "WORLD_SIZE": SIZE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in world.items()})
            if is_counted:
                Harm(fault if fault and fault.rank == rank else None, place / f"mark{rank}").install()
            sys.argv = ["l2l_nas", *words]
            return main()

        self.processes = [
            forks.start(place, lambda rank=rank: work(rank), name=f"{rank}")  # type: ignore[misc]
            for rank in range(SIZE)
        ]
        self.codes: dict[int, int] = {}
        self.ended_s: dict[int, float] = {}

    def wait(self, most_s: float, without: Sequence[int] = ()) -> None:
        """Until all have ended, or those but some, or no time is left."""
        end = time.monotonic() + most_s
        while time.monotonic() < end and len({*self.codes, *without}) < SIZE:
            self.look()

    def look(self) -> None:
        """Note who has ended."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes and (code := process.wait(0)) is not None:
                self.codes[rank], self.ended_s[rank] = code, time.monotonic()
        time.sleep(0.003)

    def end(self) -> None:
        """`kill -9` what is left."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes:
                process.kill_group()
                self.codes[rank] = process.wait(10) or -signal.SIGKILL

    @property
    def lines(self) -> list[str]:
        """What they said of errors."""
        said = "\n".join(process.errors for process in self.processes)
        return [line for line in said.splitlines() if line.startswith("error: ")]

    def said(self) -> str:
        """All that they said, where something is wrong."""
        texts = [f"rank {n}: {self.codes.get(n)} {process.errors[-1500:]}" for n, process in enumerate(self.processes)]
        return " | ".join(texts)


def marks(place: Path, rank: int) -> list[Found]:
    """What a rank noted."""
    path = place / f"mark{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def outcome(folder: Path) -> Found:
    """Result and digests of all states of a finished training, without times."""
    states = {name: read_json(folder / name / "manifest.json")["states"] for name in ("weights", "best")}
    digests = {name: {key: entry["sha256"] for key, entry in own.items()} for name, own in states.items()}
    return {"result": _without_times(read_json(folder / "result.json")), **digests}


def _without_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _without_times(one) for name, one in content.items() if "seconds" not in name}
    return [_without_times(one) for one in content] if isinstance(content, list) else content


def whole(place: Path, words: Sequence[str]) -> Found:
    """A run that nothing happens to; the counts of each rank's moments."""
    ranks = Ranks(place, *words, "folder=run")
    ranks.wait(300)
    ranks.end()
    assert set(ranks.codes.values()) == {0}, ranks.said()
    return {"counts": [marks(place, rank)[-1] for rank in range(SIZE)], "outcome": outcome(place / "run")}


def failure(place: Path, words: Sequence[str], fault: Fault, wanted: Found | None) -> Found:
    """One rank fails; `wanted` is what a run ends with that is never stopped. None: it is not resumed."""
    ranks = Ranks(place, *words, "folder=run", fault=fault)
    found: Found = {"fault": asdict(fault), "wrong": []}
    begun = time.monotonic()
    while not marks(place, fault.rank) and len(ranks.codes) < SIZE and time.monotonic() < begun + 120:
        ranks.look()
    fired = marks(place, fault.rank)
    if not fired or "fault" not in fired[0]:
        ranks.end()
        return {**found, "wrong": [f"nothing happened: {ranks.said()}"]}
    ranks.wait(MOST_S + 5, without=[fault.rank])
    if fault.kind != "stop":
        ranks.wait(5)
    ended = {rank: round(ranks.ended_s[rank] - fired[0]["at_s"], 2) for rank in ranks.ended_s}
    codes = dict(ranks.codes)
    ranks.end()
    found |= {"doing": fired[0]["doing"], "ended_s": ended, "codes": codes, "lines": ranks.lines}
    (other,) = {*range(SIZE)} - {fault.rank}
    if ended.get(other, MOST_S + 1) > MOST_S:
        found["wrong"].append(f"the other has not ended: {ranks.said()}")
    if codes.get(other) in (0, None):
        found["wrong"].append("exit code 0")
    line = _NAMED.format(rank=fault.rank) + _SAID[fault.kind]
    if len(ranks.lines) != 1 or not re.fullmatch(line, ranks.lines[0]):
        found["wrong"].append(f"other lines: {ranks.said()}")
    found["wrong"] += [left for left in [forks.left_of([one.number for one in ranks.processes])] if left]
    if wanted is not None and not found["wrong"]:
        _resume(place, words, wanted, found)
    return found


def _resume(place: Path, words: Sequence[str], wanted: Found, found: Found) -> None:
    is_saved = (place / "run/weights/manifest.json").exists()
    if not is_saved:
        shutil.rmtree(place / "run", ignore_errors=True)
    ranks = Ranks(place, *words, "resume=run" if is_saved else "folder=run", is_counted=False)
    ranks.wait(300)
    ranks.end()
    found["resumed"] = "from its last save" if is_saved else "from the start: nothing was saved"
    if set(ranks.codes.values()) != {0}:
        found["wrong"].append(f"resume: {ranks.said()}")
    elif (got := outcome(place / "run")) != wanted:
        found["wrong"].append(f"resumed to other bits: {[name for name in wanted if got[name] != wanted[name]]}")


def in_folder(scratch: Path, life: Any, *words: Any) -> Found:
    """A life in a folder of its own that has the pool."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    write_pool(place)
    found: Found = life(place, *words)
    shutil.rmtree(place, ignore_errors=True)
    return found


def failures(scratch: Path, asked: argparse.Namespace) -> Found:
    """Each kind on each rank."""
    generator = random.Random(f"{asked.seed} failures")
    ways = {False: [*TRAIN, "train.checkpoint_seconds=1000"], True: [*TRAIN, "train.checkpoint_seconds=0"]}
    undisturbed = {in_save: in_folder(scratch, whole, words) for in_save, words in ways.items()}
    runs, table = [], {}
    for kind in asked.kind or KINDS:
        own = []
        for rank in range(SIZE):
            counts = {way: undisturbed[way]["counts"][rank] for way in ways}
            for number in range(asked.moments + (0 if "nan" in kind else asked.moments * _SAVED // 20)):
                in_save = number >= asked.moments
                most = counts[in_save]["in_saves"] if in_save else int(_LAST * counts[in_save]["exchanges"])
                fault = Fault(kind, rank, generator.randint(1, most), in_save)
                wanted = undisturbed[in_save]["outcome"] if in_save or number % _EVERY == 0 else None
                own.append(in_folder(scratch, failure, ways[in_save], fault, wanted))
                print(json.dumps({name: own[-1][name] for name in ("fault", "wrong")})[:900], flush=True)
        seconds = [s for one in own for rank, s in one.get("ended_s", {}).items() if rank != one["fault"]["rank"]]
        table[kind] = {
            "failures": len(own),
            "in_saves": sum(one["fault"]["in_save"] for one in own),
            "others_ended_s": [min(seconds), round(statistics.median(seconds), 2), max(seconds)] if seconds else [],
            "resumed": sum("resumed" in one for one in own),
            "wrong": sum(bool(one["wrong"]) for one in own),
        }
        runs += own
    return {"table": table, "runs": runs}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kind", choices=KINDS, action="append", help="of failures")
    parser.add_argument("--moments", type=at_least(1), default=20, help="of each kind on each rank")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if all was as it should be."""
    forks.preload()
    with tempfile.TemporaryDirectory(dir=forks.FAST) as scratch:
        found = failures(Path(scratch), asked)
    print(json.dumps(found["table"], indent=1))
    if asked.out:
        write_json(asked.out, {"failures": {"seed": asked.seed, **found}})
    return int(any(one["wrong"] for one in found["runs"]))
