"""`kill -9` at random moments of a search: no finished trial is lost, and the search can be finished."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from multiprocessing.process import BaseProcess as Process
from pathlib import Path

import pytest
import torch

from l2l_nas import ParamServer
from l2l_nas.__main__ import main
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.saved import load_found
from tests.cli.runs import ROOT, TINY, events, start, write_pool
from tests.studies import saved_study

TRIALS = 40
KILLS = (2, 2)  # of each run; `python -m benchmarks kills` has 500 of all commands
# of a run's life: until here it imports, until there it prepares
IMPORTS, BEGUN = 0.2, 0.3
PRELOAD = ("l2l_nas.cli.search", "matplotlib.pyplot", "sklearn.model_selection", "torch._dynamo")
SERVER = multiprocessing.get_context("forkserver")
WORDS = (
    "space.pool=tiny.py:build",
    *TINY,
    "space.args.depth=6",
    f"search.trials={TRIALS}",
    "search.checkpoint_seconds=0.05",
)


def saved_trials(folder: Path, scratch: Path) -> dict[int, tuple[str, ...]]:
    """Number and architecture of every trial in a copy of the study, as a reader would see it right after the kill."""
    scratch.mkdir(exist_ok=True)
    for path in folder.glob("study.log*"):
        shutil.copy(path, scratch / path.name)
    if not (scratch / "study.log").exists():
        return {}
    study = saved_study(scratch)
    return {trial.number: tuple(trial.user_attrs["architecture"]) for trial in study.trials}


def command(place: str, words: list[str]) -> None:
    """In a process forked from one that has imported everything: the search without its three seconds of imports."""
    os.chdir(place)
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    os._exit(main(words))


def run_forked(place: Path, words: list[str]) -> Process:
    SERVER.set_forkserver_preload([*PRELOAD, __name__])
    process = SERVER.Process(target=command, args=(str(place), words))
    process.start()
    return process


def kill_once(place: Path, folder: Path, moment: float, lengths: tuple[float, float], scratch: Path) -> bool:
    """Start or go on, kill at a moment from 0 to 1 of the run's life, check; False if it was done before."""
    begun = len(events(folder, "start"))
    startup, rest = lengths
    words = ["search", *WORDS, f"folder={folder.name}", *([f"resume={folder.name}"] if folder.exists() else [])]
    if moment < IMPORTS:
        process = start(*words, cwd=place)
        time.sleep(startup * moment / IMPORTS)
        process.kill()
        assert process.communicate()[1] == ""
        killed = process.returncode == -signal.SIGKILL
    else:
        forked = run_forked(place, words)
        if moment >= BEGUN:
            while len(events(folder, "start")) <= begun and forked.is_alive():
                time.sleep(0.002)
            time.sleep(rest * (moment - BEGUN) / (1 - BEGUN))
        else:
            time.sleep(0.5 * (moment - IMPORTS) / (BEGUN - IMPORTS))
        forked.kill()
        forked.join()
        killed = forked.exitcode == -signal.SIGKILL
        assert killed or forked.exitcode == 0
        assert not (place / "err.txt").exists() or (place / "err.txt").read_text() == ""
    saved = saved_trials(folder, scratch) if folder.exists() else {}
    for event in events(folder):
        assert saved[event["number"]] == tuple(event["architecture"]), (moment, event)
    return killed


def check_finished(place: Path, folder: Path, scratch: Path) -> None:
    assert main(["search", *WORDS, f"folder={folder.name}", f"resume={folder.name}"]) == 0
    logged = events(folder)
    numbers = [event["number"] for event in logged]
    saved = saved_trials(folder, scratch)
    assert len(set(numbers)) == len(numbers)
    assert {event["number"]: tuple(event["architecture"]) for event in logged}.items() <= saved.items()
    assert sorted(saved) == list(range(len(saved)))
    counts = json.loads((folder / "result.json").read_text())["trials"]
    assert counts["complete"] == TRIALS
    assert sum(counts.values()) == len(saved)
    load_found(str(folder), pool=f"{place / 'tiny.py'}:build")
    problem = load_problem(f"{place / 'tiny.py'}:build", {"depth": 6}, source="digits", validation_fraction=0.2)
    server = ParamServer(problem.pool, optimizer=AdamW((0.9, 0.98), 1e-8, 0.05), seed=0)
    extra = Checkpoint(folder / "weights").load(server)
    assert extra["warm_steps"] == 30
    whole = json.loads((place / "whole" / "result.json").read_text())
    assert extra["coverage"]["warmup"] == whole["coverage"]["warmup"]


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_finished_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the server's imports
    write_pool(tmp_path)
    began = time.monotonic()
    process = start("search", *WORDS, "folder=whole", cwd=tmp_path)
    while not (tmp_path / "whole").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    startup = time.monotonic() - began
    assert process.communicate()[1] == ""
    lengths = startup, 0.7 * (time.monotonic() - began - startup)  # a forked one has its imports behind it
    seed = random.randrange(10**6)
    print(f"seed {seed}, {startup:.1f} s start-up, {lengths[1]:.1f} s search")
    generator = random.Random(seed)
    moments = [(place + generator.random()) / sum(KILLS) for place in range(sum(KILLS))]
    generator.shuffle(moments)
    for number, wanted in enumerate(KILLS):
        folder = tmp_path / f"run{number}"
        kills = round = 0
        while kills < wanted:
            assert round < 50
            # a run that is nearly done ends before late moments: then an earlier one
            moment = moments.pop() if round < wanted else generator.uniform(IMPORTS, 0.5)
            round += 1
            killed = kill_once(tmp_path, folder, moment, lengths, tmp_path / f"validation{number}-{round}")
            print(f"run {number}, moment {moment:.3f}, killed {killed}, {len(events(folder))} trials")
            kills += killed
        check_finished(tmp_path, folder, tmp_path / f"validation{number}-end")


@pytest.mark.slow
def test_a_line_that_a_kill_cut_in_half_is_cut_off_on_resume(finished, capsys):
    path = finished / "study.log"
    before = path.read_bytes()
    path.write_bytes(before + before.splitlines()[-1][:100])
    assert main(["search", "space.pool=tiny.py:build", "search.trials=13", "resume=run"]) == 0
    assert "resumed with" in capsys.readouterr().out
    after = path.read_bytes()
    assert after.startswith(before)
    assert all(json.loads(line) for line in after.splitlines())
    assert len(saved_study(finished).trials) >= 13


@pytest.mark.slow
def test_a_run_that_was_killed_before_it_had_a_study_is_started_by_resume(pool, tmp_path, capsys):
    words = ["search", f"space.pool={pool}", *TINY]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".study.log.tmp").write_bytes(b'{"op_code": 0')
    assert main([*words, "resume=empty"]) == 0
    assert "empty holds no settings: those of this command count" in capsys.readouterr().out
    assert main([*words, "folder=none", "resume=none"]) == 0
    (tmp_path / "early").mkdir()  # it knows its settings, and no more
    shutil.copy(tmp_path / "none" / "config.yaml", tmp_path / "early")
    assert main(["search", f"space.pool={pool}", "resume=early"]) == 0
    for name in ("empty", "none", "early"):
        assert json.loads((tmp_path / name / "result.json").read_text())["trials"]["complete"] == 12
        assert not list((tmp_path / name).glob(".study*"))
