"""Hydra's joblib and submitit-local launchers, for real: runs in processes of their own, and one of them killed."""

from __future__ import annotations

import json
import time

import pytest

from tests.cli.runs import TINY, start

JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]  # on one core it would use the sweep's own process
SUBMITIT = ["hydra/launcher=submitit_local"]
POOL = """
import os, signal

class Fatal(nn.Linear):
    def forward(self, x):
        if not x.is_meta:  # as the kernel kills a process that takes too much memory
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)

def fated(fate="fine"):
    if fate == "refused":
        raise ValueError("not this one")
    problem = build()
    stem = Position("stem", Candidate("linear", lambda: Fatal(2, 8)))
    killed = LayerPool([stem, *problem.pool.positions[1:]], inputs=TensorSpec((2,)))
    return Problem(killed, problem.data) if fate == "killed" else problem
"""


@pytest.fixture
def words(pool, tmp_path):
    """A sweep over the fates that a run may have."""
    path = tmp_path / "tiny.py"
    path.write_text(path.read_text() + POOL)
    return ["search", "-m", "space.pool=tiny.py:fated", *TINY, "search.trials=2", "folder=sweep"]


def run(words, cwd):
    """Exit code, what was said, and the errors."""
    process = start(*words, cwd=cwd)
    out, err = process.communicate(timeout=280)
    return process.returncode, out, sorted(err.splitlines())


def check_fates(fates, code, errors, folder):
    """Of the runs that are fine and refused, the first has a result. Fates are by a run's number."""
    assert code == 2
    says = "space.pool=tiny.py:fated raised ValueError: not this one"
    assert {error.split(" (")[0] for error in errors} == {
        f"error: sweep/{number}: {says}" for number, fate in fates.items() if fate != "fine"
    }
    for number, fate in fates.items():
        assert (folder / str(number) / "result.json").exists() == (fate == "fine")
    # the launcher's own files are below the sweep's folder
    assert {path.name for path in folder.parent.iterdir()} == {"tiny.py", "sweep"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "launcher"), [("submitit", SUBMITIT), pytest.param("joblib", JOBLIB, marks=pytest.mark.long)]
)
def test_a_run_that_is_refused_takes_no_other_along(words, tmp_path, plugin, launcher):
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher")
    fates = ("refused", "fine")
    code, out, errors = run([*words, *launcher, f"space.args.fate={','.join(fates)}"], tmp_path)
    check_fates(dict(enumerate(fates)), code, errors, tmp_path / "sweep")
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["runs"]
    assert [row["folder"] for row in rows] == ["sweep/0", "sweep/1"]
    assert [row["overrides"][-1] for row in rows] == [f"space.args.fate={fate}" for fate in fates]
    assert ["accuracy" in row for row in rows] == [False, True]
    assert "2 runs in sweep" in out


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("plugin", "launcher", "error"),
    [
        ("submitit", SUBMITIT, "UncompletedJobError"),
        pytest.param("joblib", JOBLIB, "TerminatedWorkerError", marks=pytest.mark.long),
    ],
)
def test_a_killed_run_ends_a_sweep_of_combinations_with_one_line(words, tmp_path, plugin, launcher, error):
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher")
    own = [*words[:-1], *launcher, "space.args.fate=killed,fine", words[-1]]
    code, _, errors = run(own, tmp_path)
    assert code == 2
    (line,) = errors
    assert line.startswith(f"error: hydra/launcher: {error}: ")
    assert line.endswith("; go on with the same command, folder=sweep and skip_done=true")
    if plugin == "submitit":  # whose jobs need nobody
        deadline = time.monotonic() + 60
        while not (tmp_path / "sweep" / "1" / "result.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.2)
