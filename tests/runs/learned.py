"""Small runs to learn from, and a search that does: what tests of memory have in common."""

from __future__ import annotations

import json
from pathlib import Path

from l2l_nas.nas.memory import Memory
from l2l_nas.nas.objectives import Goal
from l2l_nas.runs.learn_from import Learned, Learner, learn
from l2l_nas.training.overlap import HeldOut
from l2l_nas.training.problem import Problem

# a race of the tiny pool: trials are the first of 9 steps of a finalist's training
RACE = (
    "search.trials=6", "search.steps_per_trial=3", "search.finalists=2", "search.finalist_steps=9", "export=false",
)  # fmt: skip
SEARCH = ("search", "space.pool=tiny.py:build", *RACE)
ACCURACY = Goal("accuracy", maximize=True)


def learner(problem: Problem, *, goal: Goal = ACCURACY, folder: str = "new", source: str = "") -> Learner:
    """A search that would run in this folder."""
    digests = frozenset({problem.data.digest, problem.data.test_digest})
    metrics = {"accuracy": True, "loss": False}
    test = None if problem.data.test is None else HeldOut(problem.data.test)
    return Learner(problem.pool, goal, metrics, digests, source, Path(folder), test)


def learned(problem: Problem, text: str, **about) -> Learned:
    """What it learns from what is named."""
    return learn(text, learner(problem, **about))


def memory_in(folder: Path | str) -> Memory:
    """Of a run."""
    return Memory.from_json(json.loads((Path(folder) / "memory.json").read_text()))
