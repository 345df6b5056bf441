"""Small runs to learn from, and a search that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from l2l_nas.nas.memory import Learned, Learner
from l2l_nas.nas.objectives import Goal
from l2l_nas.runs.earlier_runs import learn
from l2l_nas.training.overlap import HeldOut
from l2l_nas.training.problem import Problem

# a race of the tiny pool: trials are the first of 9 steps of a finalist's training
RACE = (
    "search.trials=6", "search.steps_per_trial=3", "search.finalists=2", "search.finalist_steps=9", "export=false",
)  # fmt: skip
SEARCH = ("search", "space.pool=tiny.py:build", *RACE)
ACCURACY = Goal("accuracy", maximize=True)


def learner(problem: Problem, *, goal: Goal = ACCURACY) -> Learner:
    """What a search asks."""
    digests = frozenset({problem.data.digest, problem.data.test_digest})
    test = None if problem.data.test is None else HeldOut(problem.data.test)
    return Learner(problem.pool, goal, frozenset({"accuracy", "loss"}), digests, test)


def learned(problem: Problem, *names: str, goal: Goal = ACCURACY, folder: str = "new", **about) -> Learned:
    """What it learns from what is named, in this folder."""
    return learn(names, learner(problem, goal=goal), folder=Path(folder), **about)


def tasks_in(folder: Path | str) -> list[dict[str, Any]]:
    """Of a run."""
    return json.loads((Path(folder) / "earlier_tasks.json").read_text())["tasks"]
