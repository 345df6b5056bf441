"""`kill -9` of a worker, a node and the driver of searches on Ray, Dask and processes, at random moments.

    python -m benchmarks clusters [--engine ray] [--kills 60] [--seed 0] [--out FILE]

Ray and Dask have two nodes of one CPU each on this machine, for one search after the other. A search is killed at once
or twice: a worker, a whole node (another one joins), or the driver (which is resumed). Then it is let finish. Looked
at: each trial is in log and study once, none is missing or has failed, none was begun more than three times, all scores
are those of a search in one process, bit for bit, and no process or shared memory of the search is left.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.faults import forks
from benchmarks.faults.scenarios import POOL, trials_of
from benchmarks.timing import free_port
from l2l_nas.files import write_json
from tests.cli.runs import events, write_pool

WORDS = (
    *("search", POOL, "objectives=[accuracy,parameters]", "search.trials=10", "search.steps_per_trial=300"),
    *("search.finalists=2", "search.finalist_steps=900", "search.trial_weights=scratch", "sampler=random"),
    *("export=false", "relay.threads=1"),
)
PATIENCE_S = 600.0
_WORKERS = {"ray": "ray::", "dask": "spawn_main", "processes": "popen_loky"}  # in their command lines
_AGENT = "Agent"  # in those of what a Ray node ends with


def command_line(pid: int) -> str:
    """Of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    return [*(one for child in parents.get(pid, []) for one in descendants(child)), pid]


def kill_tree(pid: int) -> None:
    for one in reversed(descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


class Cluster:
    """Two nodes that can be killed; of `processes` there are none."""

    def __init__(self, engine: str, place: Path) -> None:
        self.engine, self.place = engine, place
        self.port = free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.head: subprocess.Popen[bytes] | None = None
        ray, dask = ["ray.scripts.scripts", "start", "--block"], ["distributed.cli"]
        if engine == "ray":
            small = ["--object-store-memory=100000000", "--num-gpus=0"]
            head = [*ray, "--head", "--num-cpus=0", f"--port={self.port}", "--include-dashboard=false", *small]
            head.append("--disable-usage-stats")
            self._node = [*ray, f"--address=127.0.0.1:{self.port}", "--num-cpus=1", *small]
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
        else:
            head = [f"{dask[0]}.dask_scheduler", f"--port={self.port}", "--no-dashboard", "--host=127.0.0.1"]
            self._node = [f"{dask[0]}.dask_worker", f"tcp://127.0.0.1:{self.port}", "--nthreads=1", "--no-dashboard"]
        if engine != "processes":
            self.head = self._start(head)
            self._wait(b"Ray runtime started" if engine == "ray" else b"Scheduler at:", 1)
            ready = b"Ray runtime started" if engine == "ray" else b"Registered to:"
            for joined in (1, 2):  # one after the other: Ray's nodes on one machine get in each other's way
                self.nodes.append(self._start(self._node))
                self._wait(ready, joined + (engine == "ray"))

    def _wait(self, line: bytes, times: int) -> None:
        end, said = time.monotonic() + PATIENCE_S, self.place / "cluster.txt"
        while said.read_bytes().count(line) < times:
            assert time.monotonic() < end, said.read_text()[-2000:]
            time.sleep(0.2)

    def _start(self, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.place / "cluster.txt").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-m", *words], stdout=said, stderr=said, start_new_session=True, cwd=self.place
            )

    @property
    def words(self) -> list[str]:
        scheme = "tcp://" if self.engine == "dask" else ""
        address = [] if self.head is None else [f"executor.address={scheme}127.0.0.1:{self.port}"]
        return [f"executor={self.engine}", "search.workers=2", *address]

    def workers(self, driver: int) -> list[int]:
        roots = [driver] if self.head is None else [node.pid for node in self.nodes]
        found = [one for root in roots for one in descendants(root) if one != root]
        lines = {one: command_line(one) for one in found}
        return [one for one, line in lines.items() if _WORKERS[self.engine] in line and _AGENT not in line]

    def replace_node(self, index: int) -> None:
        """Kill a node; another one joins."""
        kill_tree(self.nodes[index].pid)
        self.nodes[index].wait()
        self.nodes[index] = self._start(self._node)

    def close(self) -> None:
        for one in [*self.nodes, *([] if self.head is None else [self.head])]:
            kill_tree(one.pid)
            one.wait()


def scores(folder: Path) -> dict[tuple[str, ...], str]:
    """Metrics by architecture, of trials and of the best finalist, to the last bit."""
    found = {tuple(event["architecture"]): json.dumps(event["values"], sort_keys=True) for event in events(folder)}
    best = json.loads((folder / "result.json").read_text())["best"]  # a resumed sampler may have proposed others
    return {**found, ("best", *best["architecture"]): json.dumps(best["values"], sort_keys=True)}


def wrong_in(folder: Path, alone: dict[tuple[str, ...], str]) -> str:
    """What is wrong with a finished search; see the head of this file."""
    trials, saved = events(folder), trials_of(folder / "study.log")
    numbers = [event["number"] for event in trials]
    if numbers != list(range(len(numbers))) or saved.keys() != set(numbers):
        return f"trials {numbers} in the log, {sorted(saved)} in the study"
    done = json.loads((folder / "result.json").read_text())["trials"]
    if done["complete"] != 10 or done["failed"]:
        return f"trials {done}"
    losses = Counter(event["task"] for event in events(folder, "worker_lost"))
    if losses and max(losses.values()) > 3:
        return f"losses {dict(losses)}"
    ours = scores(folder)
    differing = [key for key in ours if key in alone and ours[key] != alone[key]]
    if {key[0] for key in ours.keys() ^ alone.keys()} == {"best"}:  # another one, of the same trials
        differing.append(("best",))
    return f"other scores than in one process: {differing}" if differing else ""


class Killer:
    """Searches on a cluster, kills parts of it, and looks at what comes out."""

    def __init__(self, cluster: Cluster, place: Path, generator: random.Random) -> None:
        self.cluster, self.place, self.generator = cluster, place, generator
        self.kills: Counter[str] = Counter()
        self.seconds = 30.0
        self.alone: dict[tuple[str, ...], str] = {}
        self.drivers: list[int] = []

    def kill(self, driver: forks.Process) -> str:
        """Kill something; its name, empty if there was nothing to kill."""
        kinds = ["worker", "driver", *(["node"] if self.cluster.nodes else [])]
        kind = self.generator.choice(kinds)
        if kind == "driver":
            driver.kill()
        elif kind == "node":
            self.cluster.replace_node(self.generator.randrange(2))
        else:
            workers = self.cluster.workers(driver.number)
            if not workers:
                return ""
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.generator.choice(workers), signal.SIGKILL)
        self.kills[kind] += 1
        return kind

    def live(self, kills: int) -> str:
        """One search, killed so often; what was wrong."""
        folder = self.place / "out"
        shutil.rmtree(folder, ignore_errors=True)
        words = [*WORDS, "folder=out", *self.cluster.words]
        self.drivers = []
        driver = self._started(words)
        began = time.monotonic()
        code = None
        for _ in range(kills):
            code = driver.wait(self.generator.uniform(0, self.seconds / 2))
            if code is not None:
                break
            if self.kill(driver) == "driver":
                time.sleep(1)
                is_begun = (folder / "config.yaml").exists() and (folder / "study.log").exists()
                if not is_begun:
                    shutil.rmtree(folder, ignore_errors=True)
                driver = self._started([*words, *(["resume=out"] if is_begun else [])])
        code = driver.wait(PATIENCE_S) if code is None else code
        if code is None:  # it hangs
            said = driver.output[-400:]
            kill_tree(driver.number)
            driver.wait(10)
            return f"no end after {PATIENCE_S:.0f} s: {said}"
        if code != 0:
            return f"ended with {code}: {(driver.errors or driver.output).strip()[-600:]}"
        if not kills:
            self.seconds = time.monotonic() - began
        return wrong_in(folder, self.alone) or forks.left_of(self.drivers)

    def _started(self, words: list[str]) -> forks.Process:
        driver = forks.command(self.place, *words)
        self.drivers.append(driver.number)
        return driver


def run_engine(engine: str, kills: int, seed: int) -> dict[str, Any]:
    generator = random.Random(seed)
    began, failures, lives = time.monotonic(), [], 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(Cluster(engine, Path(scratch))) as cluster:
        place = Path(scratch)
        write_pool(place)
        alone = forks.command(place, *WORDS, "folder=alone")
        assert alone.wait(PATIENCE_S) == 0, alone.errors
        killer = Killer(cluster, place, generator)
        killer.alone = scores(place / "alone")
        while lives == 0 or sum(killer.kills.values()) < kills:
            wrong = killer.live(generator.randint(1, 2) if lives else 0)
            lives += 1
            print(f"{engine}: {lives} searches, kills {dict(killer.kills)} {wrong}", flush=True)
            failures += [wrong] if wrong else []
    counted = {"searches": lives, "kills": dict(killer.kills), "failures": failures}
    return {"engine": engine, "seed": seed, **counted, "seconds": round(time.monotonic() - began)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=sorted(_WORKERS), action="append")
    parser.add_argument("--kills", type=int, default=60, help="of each engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if nothing was lost."""
    packages = {"ray": "ray", "dask": "distributed", "processes": "loky"}
    engines = [name for name in asked.engine or _WORKERS if importlib.util.find_spec(packages[name])]
    forks.preload()
    found = [run_engine(name, asked.kills, asked.seed) for name in engines]
    if asked.out:
        write_json(asked.out, found)
    return int(any(one["failures"] for one in found))
