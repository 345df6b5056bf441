"""A pool larger than the memory allowed: states in memory die of it, states in files train, and need no more for more.

What a limit on a process's data and `RssAnon` count is anonymous memory; the page cache is not in it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.storage import RamStorage
from tests.toys import SquaredError

ROOT = Path(__file__).parents[2]
WIDTH, DEPTH = 384, 4
MIB = 1 << 20
STATE_BYTES = 12 * WIDTH * (WIDTH + 1)
HEADROOM_BYTES = 48 * MIB


def status(name: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def train_all(kind: str, folder: str, candidates: int, headroom_bytes: int | None) -> None:
    """Train each candidate of every position twice, all after the first within a limit; says how it went as JSON."""
    torch.set_num_threads(1)
    linear = partial(nn.Linear, WIDTH, WIDTH)
    names = [f"linear{number}" for number in range(candidates)]
    positions = [Position(f"p{index}", [Candidate(name, linear) for name in names]) for index in range(DEPTH)]
    pool = LayerPool(positions, inputs=TensorSpec((WIDTH,)))
    storage = FileStorage(Path(folder)) if kind == "file" else RamStorage()
    server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=storage)
    relay = Relay(server, device="cpu", lanes="threads", update="exact")
    inputs, targets = torch.randn(2, 4, WIDTH)

    def step(name: str) -> None:
        options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": 0}
        relay.train_step(pool.architecture([name] * DEPTH), (inputs,), targets, **options)

    for _ in range(2):
        step(names[0])
    relay.drain()
    if headroom_bytes is not None:
        limit = status("VmData") + headroom_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    before, peak, failure = status("RssAnon"), 0, ""
    try:
        for name in [*names, *names]:
            step(name)
            peak = max(peak, status("RssAnon"))
        relay.drain()
    except (RuntimeError, MemoryError, ValueError) as error:
        failure = repr(error)[:200]
    found = {"failure": failure, "states": len(storage.keys), "growth_bytes": peak - before}
    print(json.dumps(found), flush=True)


def child(kind: str, folder: Path, candidates: int, headroom_bytes: int | None = None) -> dict:
    call = f"train_all({kind!r}, {str(folder)!r}, {candidates}, {headroom_bytes})"
    code = f"from tests.eps.test_file_memory import *; {call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits anonymous memory")
def test_a_pool_of_three_times_the_memory_there_is_trains_in_files_and_dies_in_memory(tmp_path):
    candidates = -(-3 * HEADROOM_BYTES // (DEPTH * STATE_BYTES))
    assert candidates * DEPTH * STATE_BYTES >= 3 * HEADROOM_BYTES
    in_memory = child("ram", tmp_path, candidates, HEADROOM_BYTES)
    assert "alloc" in in_memory["failure"] or "Memory" in in_memory["failure"]
    assert in_memory["states"] < candidates * DEPTH
    in_files = child("file", tmp_path, candidates, HEADROOM_BYTES)
    assert in_files["failure"] == ""
    assert in_files["states"] == candidates * DEPTH


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells anonymous memory")
def test_memory_does_not_grow_with_the_pool(tmp_path):
    small, large = (child("file", tmp_path, candidates) for candidates in (8, 32))
    difference = (32 - 8) * DEPTH * STATE_BYTES
    assert difference > 150 * MIB
    assert large["growth_bytes"] - small["growth_bytes"] < difference / 20
    assert child("ram", tmp_path, 32)["growth_bytes"] - small["growth_bytes"] > 0.8 * difference  # it would be seen
