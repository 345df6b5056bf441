"""`kill -9` at ten random moments of a search: no finished trial is lost, and the search can be finished."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna

from l2l_nas import ParamServer
from l2l_nas.__main__ import main
from l2l_nas.cli.locate import load_problem
from l2l_nas.cli.runs import load_found
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.optimizer import AdamW
from tests.cli.runs import TINY, contents, environment, events, start, write_pool

TRIALS = 24
KILLS_A_CHAIN = 5
WORDS = ("space.pool=tiny.py:build", *TINY, f"search.trials={TRIALS}", "search.checkpoint_seconds=0.05")


def saved_trials(folder: Path, scratch: Path) -> dict[int, tuple[str, ...]]:
    """Number and architecture of every trial in a copy of the study, as a reader would see it right after the kill."""
    scratch.mkdir(exist_ok=True)
    for path in folder.glob("study.db*"):
        shutil.copy(path, scratch / path.name)
    if not (scratch / "study.db").exists():
        return {}
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{scratch / 'study.db'}")
    return {trial.number: tuple(trial.user_attrs["architecture"]) for trial in study.trials}


def wait_for(condition, process: subprocess.Popen[str]) -> bool:
    """False if the process ended first."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True


def kill_once(place: Path, folder: Path, moment: float, lengths: tuple[float, float], scratch: Path) -> bool:
    """Start or go on, kill at a moment from 0 to 1 of the run's life, check; False if it was done before."""
    resume = [f"resume={folder.name}"] if folder.exists() else []
    begun = len(events(folder, "start"))
    startup, rest = lengths
    process = start("search", *WORDS, f"folder={folder.name}", *resume, cwd=place)
    if moment < 0.2:
        time.sleep(startup * moment / 0.2)
    elif wait_for(lambda: len(events(folder, "start")) > begun, process):
        time.sleep(rest * (moment - 0.2) / 0.8)
    running = process.poll() is None
    process.kill()
    out, err = process.communicate()
    assert not err, err
    assert running or process.returncode == 0, out
    saved = saved_trials(folder, scratch) if folder.exists() else {}
    for event in events(folder):
        assert saved[event["number"]] == tuple(event["architecture"]), (moment, event)
    return running


def check_finished(place: Path, folder: Path, scratch: Path) -> None:
    process = start("search", *WORDS, f"folder={folder.name}", f"resume={folder.name}", cwd=place)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out + err
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
    problem = load_problem(f"{place / 'tiny.py'}:build", {}, source="digits", validation_fraction=0.2)
    server = ParamServer(problem.pool, optimizer=AdamW((0.9, 0.98), 1e-8, 0.05), seed=0)
    assert Checkpoint(folder / "weights").load(server) == {"warm_steps": 30}


def test_ten_kills_at_random_moments_lose_no_finished_trial(tmp_path):
    write_pool(tmp_path)
    began = time.monotonic()
    process = start("search", *WORDS, "folder=whole", cwd=tmp_path)
    assert wait_for(lambda: (tmp_path / "whole").exists(), process)
    startup = time.monotonic() - began
    assert process.communicate()[1] == ""
    lengths = startup, time.monotonic() - began - startup
    seed = random.randrange(10**6)
    print(f"seed {seed}, {startup:.1f} s start-up, {lengths[1]:.1f} s search")

    def chain(number: int) -> int:
        generator = random.Random(f"{seed}/{number}")
        moments = [(place + generator.random()) / KILLS_A_CHAIN for place in range(KILLS_A_CHAIN)]
        generator.shuffle(moments)
        kills = turn = 0
        folder = tmp_path / f"run{number}"
        for moment in [*moments, *(generator.random() / 2 for _ in range(20))]:
            if kills == KILLS_A_CHAIN:
                break
            turn += 1
            kills += kill_once(tmp_path, folder, moment, lengths, tmp_path / f"look{number}-{turn}")
        check_finished(tmp_path, folder, tmp_path / f"look{number}-end")
        return kills

    with ThreadPoolExecutor(2) as both:
        assert list(both.map(chain, range(2))) == [KILLS_A_CHAIN] * 2


def test_a_commit_that_a_kill_cut_in_half_is_rolled_back_on_resume(finished, capsys):
    before = contents(finished)["study.db"]
    # a transaction larger than the page cache is spilled into the file before it is committed
    torn = (
        "import os, signal, sqlite3, sys\n"
        "base = sqlite3.connect(sys.argv[1])\n"
        "base.execute('PRAGMA cache_size=1')\n"
        "base.execute('UPDATE trial_user_attributes SET value_json = NULL')\n"
        "base.execute('CREATE TABLE junk AS SELECT * FROM trials, trial_params, trial_user_attributes LIMIT 5000')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", torn, str(finished / "study.db")], env=environment(), check=False)
    assert (finished / "study.db-journal").stat().st_size > 0
    assert contents(finished)["study.db"] != before
    assert main(["search", "space.pool=tiny.py:build", *TINY, "resume=run"]) == 0
    assert "resumed with" in capsys.readouterr().out
    with sqlite3.connect(finished / "study.db") as base:
        assert base.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'junk'").fetchone() == (0,)


def test_a_run_that_was_killed_before_it_had_a_study_is_started_by_resume(pool, tmp_path, capsys):
    words = ["search", f"space.pool={pool}", *TINY]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".study.db.tmp").write_bytes(b"SQLite format 3\0 and no more")
    (tmp_path / "empty" / ".study.db.tmp-journal").write_bytes(b"half a journal")
    assert main([*words, "resume=empty"]) == 0
    assert main([*words, "folder=none", "resume=none"]) == 0
    for name in ("empty", "none"):
        assert json.loads((tmp_path / name / "result.json").read_text())["trials"]["complete"] == 12
        assert not list((tmp_path / name).glob(".*"))
