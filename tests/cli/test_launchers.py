"""Hydra's joblib and submitit-local launchers, for real: runs in processes of their own, and one of them killed."""

from __future__ import annotations

import json

import optuna
import pytest

from tests.cli.runs import TINY, start

LAUNCHERS = {  # on a machine with one core joblib would run them in the sweep's own process
    "hydra_joblib_launcher": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "hydra_submitit_launcher": ["hydra/launcher=submitit_local"],
}
FATES = ("killed", "fine", "refused")
POOL = """
def fated(fate="fine"):
    if fate == "killed":  # as the kernel kills a process that takes too much memory
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    if fate == "refused":
        raise ValueError("not this one")
    return build()
"""


@pytest.fixture(params=LAUNCHERS)
def words(request, pool, tmp_path):
    """A sweep with one of the launchers."""
    pytest.importorskip(f"hydra_plugins.{request.param}")
    path = tmp_path / "tiny.py"
    path.write_text(path.read_text() + POOL)
    tiny = ["space.pool=tiny.py:fated", *TINY, "search.trials=2"]
    return ["search", "-m", *LAUNCHERS[request.param], *tiny, "folder=sweep"]


def run(words, cwd):
    """Exit code, what was said, and the errors."""
    process = start(*words, cwd=cwd)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, sorted(err.splitlines())


def test_a_run_that_is_refused_or_killed_takes_no_other_along(words, tmp_path):
    code, out, errors = run([*words, f"space.args.fate={','.join(FATES)}"], tmp_path)
    assert code == 2
    assert [error.split(" (")[0] for error in errors] == [
        "error: sweep/0: its process ended without a result",
        "error: sweep/2: space.pool=tiny.py:fated raised ValueError: not this one",
    ]
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert [row["folder"] for row in rows] == [f"sweep/{number}" for number in range(3)]
    assert [row["overrides"][-1] for row in rows] == [f"++space.args.fate={fate}" for fate in FATES]
    assert ["accuracy" in row for row in rows] == [False, True, False]
    result = json.loads((tmp_path / "sweep" / "1" / "result.json").read_text())
    assert rows[1]["accuracy"] == result["best"]["values"]["accuracy"]
    assert "3 runs in sweep" in out
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.py", "sweep"}  # the launcher's own files are below it


def test_a_sampler_leads_runs_in_processes_of_their_own(words, tmp_path):
    sweeper = ["hydra/sweeper=l2l", "hydra.sweeper.jobs=2", "hydra.sweeper.trials=2"]
    code, out, errors = run([*words, *sweeper, "train.learning_rate=interval(0.001,0.05)"], tmp_path)
    assert (code, errors) == (0, []), out
    sweep = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [(entry["run"], entry["state"]) for entry in sweep["runs"]] == [(0, "complete"), (1, "complete")]
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'sweep' / 'sweep.db'}")
    first, second = study.trials
    assert max(first.datetime_start, second.datetime_start) < min(first.datetime_complete, second.datetime_complete)
    for trial, entry in zip(study.trials, sweep["runs"], strict=True):
        result = json.loads((tmp_path / entry["folder"] / "result.json").read_text())
        assert trial.values == [result["best"]["values"]["accuracy"]]
    assert "run 1, 2 of 2, ETA " in out
