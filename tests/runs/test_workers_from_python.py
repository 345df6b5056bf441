"""Workers of a search that Python calls: in a notebook, in a script without a guard, on an executor of one's own."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec
from l2l_nas.errors import SettingError
from tests.cli.runs import environment, events

PROBLEM = """\
import torch
from torch import nn
import l2l_nas
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec

class Twice(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.linear, self.act = nn.Linear(WIDTH, WIDTH), act

    def forward(self, x):
        return self.act(self.linear(x)) * 2

WIDTH = 4
middle = [Candidate(act.__name__, lambda act=act: Twice(act)) for act in (torch.tanh, torch.relu)]
pool = LayerPool(
    [
        Position("stem", Candidate("linear", lambda: nn.Linear(2, WIDTH))),
        *(Position(f"layer{i}", middle) for i in range(3)),
        Position("head", Candidate("linear", lambda: nn.Linear(WIDTH, 2))),
    ],
    inputs=TensorSpec((2,)),
)
x = torch.rand(160, 2, generator=torch.Generator().manual_seed(0))
data = Data.from_arrays(x, (x[:, 0] > x[:, 1]).long())
problem = Problem(pool, data, costs={"tanhs": lambda architecture: str(architecture).count("tanh")})
"""
SEARCH = """\
print("once")
result = l2l_nas.search(
    problem, workers=2, trials=4, warmup_steps=4, steps_per_trial=2, finalists=1, finalist_steps=4, progress=False,
    trial_weights="fork", objectives=["accuracy", "tanhs"], export=False, folder="run",
)
print(len(result.best.architecture.choices), "positions")
"""


def check(folder) -> None:
    trials = [event for event in events(folder) if not event["cached"]]
    assert len(trials) == 4
    assert {trial["worker"] for trial in trials} <= {1, 2}


@pytest.mark.slow
def test_a_notebook_searches_with_two_workers_on_a_problem_of_its_own_cells(tmp_path):
    for name in ("ipykernel", "nbclient", "nbformat"):
        pytest.importorskip(name)
    run = (
        "import nbclient, nbformat, sys\n"
        "new = nbformat.v4\n"
        "cells = [new.new_code_cell(text) for text in sys.argv[1:]]\n"
        "book = nbclient.NotebookClient(new.new_notebook(cells=cells), timeout=200, kernel_name='python3').execute()\n"
        "print(''.join(out['text'] for cell in book.cells for out in cell.outputs if out.get('name') == 'stdout'))\n"
    )
    words = [sys.executable, "-c", run, PROBLEM, SEARCH]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["once", "5", "positions"]
    check(tmp_path / "run")


@pytest.mark.long
@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again_by_its_workers(tmp_path):
    (tmp_path / "script.py").write_text(PROBLEM + SEARCH)
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["once", "5", "positions"]
    check(tmp_path / "run")


def test_a_problem_that_cannot_be_sent_to_workers_is_refused_by_the_name_of_what_cannot(tmp_path):
    with socket.socket() as opened:
        pool = LayerPool(
            [
                Position("stem", Candidate("linear", lambda: nn.Linear(2, 4))),
                Position("middle", [Candidate("tanh", nn.Tanh), Candidate("relu", lambda: opened and nn.ReLU())]),
                Position("head", Candidate("linear", lambda: nn.Linear(4, 2))),
            ],
            inputs=TensorSpec((2,)),
        )
        x = torch.rand(90, 2)
        problem = Problem(pool, Data.from_arrays(x, (x[:, 0] > x[:, 1]).long()))
        with pytest.raises(SettingError, match=r"^problem\.pool\..*opened cannot be sent to workers \(.*socket"):
            l2l_nas.search(problem, workers=2, trials=2, warmup_steps=2, progress=False, folder=tmp_path / "run")
