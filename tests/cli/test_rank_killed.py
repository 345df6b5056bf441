"""`kill -9` of one rank of a training: the others end at once, and the launcher says which it was."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.runs import write_pool
from tests.cli.test_ranks import TRAIN, Launched, alone, together, weights


def pid_of(rank, launcher):
    """The process of a rank, among those that torchrun started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True, text=True, check=True)
    for pid in listed.stdout.split():
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise AssertionError(listed.stdout)


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_that_is_killed_ends_the_others_and_the_launcher_names_it(rank, tmp_path, monkeypatch):
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    launched = Launched(*TRAIN, "train.steps=100000", "folder=run")
    end = time.monotonic() + 90
    while "training  step" not in Path("out").read_text():
        assert time.monotonic() < end, Path("err").read_text()
        time.sleep(0.1)
    time.sleep(1)
    os.kill(pid_of(rank, launched.process.pid), signal.SIGKILL)
    code, _, errors = launched.ended(60)
    assert code != 0
    assert len(errors) == 1, errors  # the launcher ends the others, perhaps before they miss the one that is killed
    assert re.search(rf"rank +: {rank} ", Path("err").read_text().partition("Root Cause")[2])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_states_in_files_of_ranks_are_gone_after_a_kill_and_the_run_goes_on_as_one_and_as_four(tmp_path, monkeypatch):
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = (*TRAIN, "relay.storage=file", "parallel.chunks=4", "export=false")
    launched = Launched(*words, "train.steps=100000", "folder=run")
    manifest, end = Path("run/weights/manifest.json"), time.monotonic() + 90
    while not manifest.exists():
        assert time.monotonic() < end, Path("err").read_text()
        time.sleep(0.1)
    assert len(list(Path("run/pool").glob("*/in-use"))) == 2  # each rank has a folder of its own
    os.kill(pid_of(1, launched.process.pid), signal.SIGKILL)
    assert launched.ended(60)[0] != 0
    step = json.loads(manifest.read_text())["extra"]["step"]
    assert list(Path("run/pool").iterdir()) != []  # of the rank that was killed
    alone("train", "space.pool=tiny.py:build", "resume=run", f"train.steps={step + 4}")
    together("train", "space.pool=tiny.py:build", "resume=run", f"train.steps={step + 8}", size=4)
    assert not Path("run/pool").exists()
    alone(*TRAIN, "parallel.chunks=4", "export=false", f"train.steps={step + 8}", "folder=one")
    assert weights("run/weights") == weights("one/weights")
