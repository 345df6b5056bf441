"""A tiny search that every test of the command line can afford, and ways to run it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.nas.study.reading import read_study
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.saved import SavedRun

ROOT = Path(__file__).parents[2]

POOL = """\
import torch
from torch import nn
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec, skip

def pool(width=8, depth=4):
    kinds = {"linear": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU}
    def layer(act):
        return lambda: nn.Sequential(nn.Linear(width, width), act())
    middle = [*(Candidate(name, layer(act)) for name, act in kinds.items()), skip()]
    return LayerPool(
        [
            Position("stem", Candidate("linear", lambda: nn.Linear(2, width))),
            *(Position(f"layer{i}", middle) for i in range(depth)),
            Position("head", Candidate("linear", lambda: nn.Linear(width, 2))),
        ],
        inputs=TensorSpec((2,)),
    )

def data(samples):
    x = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return x, (x[:, 0] > x[:, 1]).long()

def build(width=8, depth=4, samples=160):
    return Problem(pool(width, depth), Data.from_arrays(*data(samples)))
"""

TINY = (
    "objectives=[accuracy,parameters]",
    "search.trial_weights=shared",
    "search.warmup_steps=30",
    "search.trials=12",
    "search.steps_per_trial=2",
    "search.finalists=1",
    "search.finalist_steps=5",
    "export=false",
)


def write_pool(folder: Path) -> Path:
    """The pool's file."""
    path = folder / "tiny.py"
    path.write_text(POOL)
    return path


def environment() -> dict[str, str]:
    """Of a subprocess: this checkout, one thread."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
    }


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """`python -m l2l_nas ...` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "l2l_nas", *words],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def events(folder: Path, name: str = "trial") -> list[dict[str, Any]]:
    """Events of one kind that a run has told of so far, from its own folder or file."""
    return [dict(event) for event in SavedRun(RunFolder(folder)).events if event["event"] == name]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_pages_whole(place: Path) -> None:
    """Every search below a folder wrote its page whole, and wrote one after it was done."""
    for study in place.rglob("study.log"):
        folder = study.parent
        try:
            read_study(study)
        except StorageError:
            continue  # what a test has damaged
        problems = [event for event in events(folder, "page") if "problem" in event]
        assert not problems, f"{folder}: {problems[0]['problem']}\n{problems[0].get('traceback', '')}"
        if events(folder, "done"):
            assert events(folder, "page"), f"{folder}: no page was written"
        page = folder / "report.html"
        if page.is_file():
            assert page.read_text().rstrip().endswith("</html>"), f"{page}: cut off"


def without_times(content: Any) -> Any:
    """What is in a result, at any depth, but seconds and measured latencies."""
    if isinstance(content, dict):
        kept = {name: one for name, one in content.items() if "seconds" not in name and "latency_ms" not in name}
        return {name: without_times(one) for name, one in kept.items()}
    return [without_times(one) for one in content] if isinstance(content, list) else content
