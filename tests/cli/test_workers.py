"""`search.workers`: real processes, some of them killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import torch

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, WorkerError
from l2l_nas.nas.evaluation.engines import ENGINES, Ray
from tests.cli.runs import POOL, TINY, environment, events, start
from tests.studies import saved_study

WORDS = ("search", "space.pool=tiny.py:build", *TINY, "search.trial_weights=fork", "folder=run")
PATIENCE_S = 120.0


def workers_of(pid: int) -> list[int]:
    """Worker processes that a process started and that are alive."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # gone meanwhile
        if int(parent) == pid and state != "Z" and b"popen_loky" in (stat.parent / "cmdline").read_bytes():
            found.append(int(stat.parent.name))
    return found


def wait_for(condition, process=None) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def saved(folder: Path) -> list[optuna.trial.FrozenTrial]:
    return saved_study(folder).trials


def check_whole(folder: Path, *, trials: int) -> None:
    """Every trial is recorded once, in the log as in the study, with the weights it was scored with."""
    logged = events(folder)
    held = saved(folder)
    assert [event["number"] for event in logged] == list(range(len(held)))
    for event, trial in zip(logged, held, strict=True):
        assert tuple(event["architecture"]) == tuple(trial.user_attrs["architecture"])
        assert trial.user_attrs.get("process", 0) == event.get("worker", 0)
        if event["state"] == "complete":
            assert len(trial.user_attrs["weights"]["crc32"]) == 8 * len(trial.user_attrs["weights"]["visits"])
    result = json.loads((folder / "result.json").read_text())
    assert result["trials"]["complete"] == trials
    assert sum(result["trials"].values()) == len(held)
    assert {sum(steps.values()) for steps in result["coverage"]["warmup"].values()} == {30}


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], pytest.param(["search.steps_per_trial=0"], marks=pytest.mark.long)])
def test_two_workers_find_and_write_what_one_process_does(pool, tmp_path, capsys, words):
    assert main([*WORDS, "search.workers=2", *words]) == 0
    folder = tmp_path / "run"
    check_whole(folder, trials=12)
    said = capsys.readouterr()
    assert "2 workers, 1 thread each" in said.out
    assert said.err == ""
    assert {event.get("worker") for event in events(folder) if not event["cached"]} <= {1, 2}
    assert (folder / "best" / "manifest.json").exists()
    if not words:
        assert main([*WORDS, "search.workers=2", "resume=run", "search.trials=14"]) == 0
        check_whole(folder, trials=14)


@pytest.mark.slow
def test_workers_stop_trials_that_lag_behind_what_all_of_them_found(pool, tmp_path):
    words = [
        "search.early_stop=halving",
        "search.trial_weights=scratch",
        "search.steps_per_trial=8",
        "search.finalist_steps=12",
        "sampler=random",
    ]
    assert main([*WORDS, *words, "search.trials=24", "search.workers=2"]) == 0
    found = json.loads((tmp_path / "run" / "result.json").read_text())["trials"]
    assert found["complete"] + found["stopped"] == 24
    assert found["stopped"] > 0
    stopped = [event for event in events(tmp_path / "run") if event["state"] == "stopped"]
    assert {event["worker"] for event in stopped} <= {1, 2}
    # a worker that asked nobody but itself would know of half the trials
    compared = [int(event["reason"].split(" of ")[2].split()[0]) for event in stopped]
    assert max(compared) > 12


@pytest.mark.long
@pytest.mark.slow
def test_workers_and_the_search_itself_may_be_killed_and_stopped_and_no_trial_is_lost(pool, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    words = [*WORDS, "search.trials=60", "search.steps_per_trial=30", "space.args.depth=6"]
    words += ["search.checkpoint_seconds=0.2", "search.workers=2"]
    # a worker is killed
    process = start(*words, cwd=tmp_path)
    wait_for(lambda: len(events(folder)) >= 3, process)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    wait_for(lambda: events(folder, "worker_lost"), process)
    losses = events(folder, "worker_lost")
    assert {loss["ended"] for loss in losses} == {"was killed by SIGKILL"}
    assert all(loss["again"] for loss in losses)
    wait_for(lambda: len(set(workers_of(process.pid)) - set(workers)) == 2, process)
    known = len(events(folder))
    wait_for(lambda: len(events(folder)) > known + 1, process)
    # Ctrl-C
    workers = workers_of(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "")
    assert "warning: a worker was killed by SIGKILL in the trial of architecture" in out
    evaluated = sum(not event["cached"] for event in events(folder))
    assert out.splitlines()[-1].startswith(f"stopped after {evaluated} of 60 trials, all saved. Go on")
    assert all(is_gone(worker) for worker in workers)
    assert evaluated < 60
    # the search is killed
    process = start(*words, "resume=run", cwd=tmp_path)
    known = len(events(folder))
    wait_for(lambda: len(events(folder)) > known + 1, process)
    workers = workers_of(process.pid)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_for(lambda: all(is_gone(worker) for worker in workers))
    assert len(events(folder)) < 60
    assert main([*words, "resume=run", "search.workers=1"]) == 0
    check_whole(folder, trials=60)


OWN = """\
import concurrent.futures
def threads(workers): return concurrent.futures.ThreadPoolExecutor(workers)
def shut(workers):
    pool = threads(workers)
    pool.shutdown()
    return pool
def none(workers): return workers
"""


def session_of(process) -> list[str]:
    """Processes of its session that are alive, and what is in shared memory that bears its number."""
    found = [name for name in os.listdir("/dev/shm") if re.search(rf"\D{process.pid}\D", f".{name}.")]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, *_, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == process.pid and state != "Z":
                found.append((stat.parent / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["warm-up", "search"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("search.workers=2",),
        *(pytest.param((f"executor={name}",), marks=pytest.mark.long) for name in ("dask", "own.py:threads")),
        pytest.param(("executor=ray",), marks=[pytest.mark.long, pytest.mark.cluster]),
    ],
)
def test_ctrl_c_ends_a_search_alike_with_any_executor_and_leaves_nothing(pool, tmp_path, words, moment):
    for name in ("dask", "ray"):
        if f"executor={name}" in words:
            pytest.importorskip(ENGINES[name].package)
    (tmp_path / "own.py").write_text(OWN)
    folder = tmp_path / "run"
    more = ["sampler=random", "search.trials=60", "search.steps_per_trial=200"]
    more += [
        f"search.warmup_steps={50 if moment == 'search' else 10**6}",
        "space.args.depth=6",
        *words,
        *(["search.workers=2"] if words else []),
    ]
    about = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        [sys.executable, "-m", "l2l_nas", *WORDS, *more],
        **about,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
    )
    if moment == "search":
        wait_for(lambda: len(events(folder)) >= 3, process)
    else:
        wait_for(lambda: events(folder, "phase"), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, err = process.communicate(timeout=PATIENCE_S)
    said = [line for line in err.splitlines() if not line.startswith("Token authentication")]  # Ray's own word
    assert (process.returncode, said) == (130, [])
    assert [event["number"] for event in events(folder)] == [trial.number for trial in saved(folder)]
    evaluated = sum(not event["cached"] for event in events(folder))
    assert evaluated < 60
    far = rf"{evaluated} of 60 trials, all saved" if moment == "search" else r"[\d,]+ of 1,000,000 steps of warm-up"
    assert re.match(rf"stopped after {far}\. Go on with", out.splitlines()[-1])
    wait_for(lambda: not session_of(process))


TWO = "search.workers=2"
SHARED = "search.trial_weights=shared"
STAY = (
    f"{SHARED}: shared weights stay in one process, or on the ranks of torchrun; leave out search.workers and "
    "executor, or take search.trial_weights=fork or scratch"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([TWO, "relay.storage=file"], "relay.storage=file keeps states where other workers do not"),
        ([TWO, "relay.trace=true"], "relay.trace tells of one process's lanes; use executor=inline"),
        *(([SHARED, TWO, *words], STAY) for words in ([], ["executor=ray"], ["executor=own.py:threads"])),
        ([TWO, "executor=inline"], "executor=inline runs one trial at a time, not search.workers=2; say search.worke"),
        (["executor=own.py:threads"], "executor: say how many segments it runs at a time, such as search.worke"),
        ([TWO, "executor=own.py:shut"], "the executor takes no more work (RuntimeError: cannot schedule new fu"),
        ([TWO, "parallel.data=2"], "parallel.data=2: ranks train a trial together, workers train one each; leave it o"),
        (["executor=processes", "parallel.tensor=4"], "parallel.tensor=4: ranks train a trial together, workers"),
        ([TWO, "relay.device=cuda"], "cuda"),
    ],
)
def test_settings_that_do_not_go_with_workers_are_refused(pool, tmp_path, refused, words, said):
    (tmp_path / "own.py").write_text(OWN)
    assert said in refused(*WORDS, *words)
    assert not (tmp_path / "run").exists()


def test_an_executor_given_in_python_that_is_shut_down_or_without_workers_is_refused(pool, tmp_path):
    executor = concurrent.futures.ThreadPoolExecutor(1)
    about = {"folder": "run", "progress": False, "trial_weights": "fork", "executor": executor}
    with pytest.raises(SettingError, match="say how many segments it runs at a time"):
        l2l_nas.search("tiny.py:build", **about)
    executor.shutdown()
    with pytest.raises(WorkerError, match="the executor takes no more work"):
        l2l_nas.search("tiny.py:build", workers=2, **about)
    assert not (tmp_path / "run").exists()


RACE = ["search.trial_weights=scratch", "search.finalists=2", "search.finalist_steps=12", "search.steps_per_trial=8"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["executor=processes"],
        pytest.param(["relay.precision=bf16"], marks=pytest.mark.long),
        pytest.param(["relay.precision=fp16", "relay.update=exact"], marks=pytest.mark.long),
        pytest.param(["relay.precision=fp16", "relay.update=exact", *RACE], marks=pytest.mark.long),
        pytest.param(["search.steps_per_trial=0"], marks=pytest.mark.long),
        pytest.param([*RACE, "search.early_stop=halving"], marks=pytest.mark.long),
        ["executor=own.py:threads", *RACE],
        ["executor=own.py:threads", "search.early_stop=halving", "search.steps_per_trial=8"],
    ],
)
def test_what_goes_with_workers_gives_what_one_process_gives(pool, tmp_path, words):
    (tmp_path / "own.py").write_text(OWN)
    words = [*words, "sampler=random"]
    assert main([*WORDS, TWO, *words]) == 0
    alone = [word for word in words if not word.startswith("executor=")]
    assert main([*WORDS[:-1], *alone, "folder=alone"]) == 0
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("run", "alone"))
    assert sum(ours["trials"].values()) == sum(theirs["trials"].values())
    assert not ours["trials"]["failed"]
    if "search.trial_weights=scratch" in words and "search.early_stop=halving" not in words:
        one, other = (
            {tuple(event["architecture"]): event["values"] for event in events(tmp_path / name)}
            for name in ("run", "alone")
        )
        both = one.keys() & other.keys()  # a sampler that gets scores in another order proposes others in the end
        assert len(both) > 5
        assert {name: one[name] for name in both} == {name: other[name] for name in both}


def test_an_executor_whose_package_is_missing_is_refused(pool, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(Ray, "package", "no_such_package")
    said = refused(*WORDS, "executor=ray", "executor.cpus=2", "search.workers=2")
    assert said == "error: executor=ray needs the package no_such_package: pip install 'l2l-nas[ray]'"
    assert not (tmp_path / "run").exists()


def test_an_executor_that_cannot_be_reached_is_told_of_before_anything_is_written(pool, tmp_path, capsys):
    words = ["executor=dask", "executor.address=nowhere", "search.workers=2"]
    assert main([*WORDS, *words]) == 2
    said = capsys.readouterr()
    assert said.err == "error: executor=dask executor.address=nowhere: missing port number in address 'nowhere'\n"
    assert not said.out
    assert not (tmp_path / "run").exists()


OTHER_TEST_PART = (
    "import dataclasses, os\n"
    + POOL.replace("return Problem(", "found = Problem(")
    + "    drawn = Data.from_arrays(*data(160 + os.getpid() % 97)).test\n"
    + "    return dataclasses.replace(found, data=dataclasses.replace(found.data, test=drawn))\n"
)


@pytest.mark.slow
def test_a_space_that_builds_other_data_in_a_worker_is_one_line(pool, tmp_path, capsys):
    (tmp_path / "tiny.py").write_text(OTHER_TEST_PART)
    # warm-up is this process's
    assert main([*WORDS, "search.workers=2", "search.warmup_steps=0", "search.failures=1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: space.pool builds another data set in a worker process than here; ")
    assert said.count("\n") == 1


def test_a_time_is_divided_by_the_pace_of_a_worker_with_a_worker_s_threads(pool, monkeypatch):
    seen = []

    def measured(context):
        seen.append((context.workers, torch.get_num_threads()))
        raise SettingError("enough")

    monkeypatch.setattr("l2l_nas.runs.search_parts.measured", measured)
    monkeypatch.setattr("l2l_nas.runs.build._TORCH_THREADS", 4)
    monkeypatch.setattr("l2l_nas.runs.build._SMALL_LAYER_BYTES", 0)
    before = torch.get_num_threads()
    try:
        for workers in (1, 4):
            assert main(["search", "space.pool=tiny.py:build", "search.time=1m", f"search.workers={workers}"]) == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, 4), (4, 1)]
