"""What a memory of other tasks is worth: real searches with and without one, on samples that none of them saw.

    python -m benchmarks search_memory --data DATA [--seeds 0,1,2] [--sides none_6,shipped_6] [--runs FOLDER]

DATA is cluttered_digits, or a path to `cifar10_5k.npz` or `fashion_mnist_6k.npz` (`python -m benchmarks images`). A
side is a kind of memory and how many whole trainings' worth of steps its search has (`search.trainings`):

- none: no memory; with 6 trainings, random search of as many steps follows (`search.baseline=random`);
- shipped: what the package has of the other two tasks, 100 networks of each (`search.learn_from=shipped`);
- searches: searches of 6 trainings on the other two tasks (FOLDER/none_6 of the first five other seeds);
- shuffled: what is shipped, but all scores of a network belong to another network of its task, drawn by the seed.

A memory of an unrelated space has no side: no candidate of it is one of this space, so that a search refuses it.

Each search returns the network that is best on the validation part, and that one is measured on the test part.
Differences are paired by seed, with their standard errors over seeds; the mean over tasks has the error of a mean of
independent figures. What is in FOLDER is not made again, so that an interrupted measurement goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS
from benchmarks.options import numbers
from benchmarks.search.search_quality import entry_of, estimate, searched
from benchmarks.timing import machine
from l2l_nas.errors import SettingError
from l2l_nas.files import read_json, write_json
from l2l_nas.nas.memory import Memory
from l2l_nas.runs.learn_from import SHIPPED_FILE

TASKS = ("cluttered_digits", "cifar10_5k", "fashion_mnist_6k")
SIDES = (
    "none_6",
    "none_3",
    "shipped_6",
    "shipped_3",
    "searches_6",
    "searches_3",
    "shuffled_6",
)
_SEARCHES = 5  # of each other task, in a memory of searches

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="cluttered_digits", help="as data.source")
    parser.add_argument("--seeds", type=numbers, default="0,1,2", help="such as 0,1")
    parser.add_argument("--sides", default="none_6,shipped_6", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--runs", type=Path, default=Path("memory_runs"), help="where the runs' folders stay")
    parser.add_argument("--out", type=Path, help="results/search_memory_DATA.json if nothing is given")


def main(arguments: argparse.Namespace) -> None:
    """Measure and save; what the file holds of other seeds and sides stays.

    Raises:
        SettingError: no such side or data; or searches of other tasks are wanted and not there.
    """
    torch.set_num_threads(1)
    task = Path(arguments.data).stem
    sides = arguments.sides.split(",")
    for name, known in ((task, TASKS), *((side, SIDES) for side in sides)):
        if name not in known:
            raise SettingError(f"no '{name}'; known are {', '.join(known)}")
    out = arguments.out or RESULTS / f"search_memory_{task}.json"
    for seed in arguments.seeds:
        rows: list[Row] = json.loads(out.read_text())["rows"] if out.exists() else []
        row = next((one for one in rows if one["seed"] == seed), {"seed": seed, "sides": {}})
        for side in sides:
            row["sides"] |= measure(arguments.data, seed, side, arguments.runs)
        rows = sorted([row, *(one for one in rows if one["seed"] != seed)], key=lambda one: one["seed"])
        result = {"benchmark": "search_memory", "data": task, "machine": machine(), "summary": summary(rows)}
        write_json(out, {**result, "rows": rows})
        print(task, seed, json.dumps(result["summary"]), flush=True)
    files = [out.with_name(out.name.replace(task, one)) for one in TASKS]
    if all(file.exists() for file in files):
        print("mean of tasks", json.dumps(over_tasks([read_json(file)["summary"] for file in files])))


def measure(data: str, seed: int, side: str, runs: Path) -> dict[str, Row]:
    """What a side returns, and what random search beside it does."""
    task = Path(data).stem
    kind, _, trainings = side.partition("_")
    words = [f"data.source={data}", f"seed={seed}"]
    if trainings != "6":  # what a search has if nothing is said
        words.append(f"search.trainings={trainings}")
    if kind != "none":
        words.append(f"search.learn_from={memory(kind, task, seed, runs)}")
    if side == "none_6":
        words.append("search.baseline=random")
    result = searched(runs / side / f"{task}_{seed}", *words)
    found = {side: {**entry_of(result["best"]), "seconds": result["seconds"]}}
    if result.get("baseline"):
        found["random_search"] = entry_of(result["baseline"])
    return found


def memory(kind: str, task: str, seed: int, runs: Path) -> str:
    """What is to be learned from, as `search.learn_from`.

    Raises:
        SettingError: searches that are not there.
    """
    if kind == "shipped":
        return kind
    others = [one for one in TASKS if one != task]
    if kind == "searches":
        seeds = [other for other in range(_SEARCHES + 1) if other != seed][:_SEARCHES]
        folders = [runs / "none_6" / f"{one}_{other}" for one in others for other in seeds]
        for folder in folders:
            if not (folder / "result.json").exists():
                raise SettingError(f"{folder} has no search; measure none_6 there first")
        return ",".join(map(str, folders))
    file = runs / "shuffled" / f"{task}_{seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, shuffled(others, random.Random(f"{task} {seed}")).to_json())
    return str(file)


def shuffled(tasks: Sequence[str], rng: random.Random) -> Memory:
    """What is shipped of these tasks, all scores of a network moved to another network of the task."""
    found = []
    for task in Memory.from_json(read_json(SHIPPED_FILE), SHIPPED_FILE).tasks:
        if task.name in tasks:
            networks = list(dict.fromkeys(tuple(one.params.items()) for one in task.networks))
            others = dict(zip(networks, rng.sample(networks, len(networks)), strict=True))
            moved = (replace(one, params=dict(others[tuple(one.params.items())])) for one in task.networks)
            found.append(replace(task, networks=tuple(moved)))
    return Memory(tuple(found))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over seeds with their standard errors, and what each side is ahead of the two it is held against by."""
    found: dict[str, Any] = {}
    for side in dict.fromkeys(name for row in rows for name in row["sides"]):
        having = [row for row in rows if side in row["sides"]]
        found[side] = {"seeds": len(having), "test": estimate(test(row, side) for row in having)}
        for other in ("none_6", f"none_{side.rpartition('_')[2]}", "random_search"):
            both = [row for row in having if other in row["sides"] and other != side]
            if both:
                found[side][f"minus {other}"] = estimate(test(row, side) - test(row, other) for row in both)
    return found


def test(row: Row, side: str) -> float:
    """The test accuracy of what a side returned."""
    return float(row["sides"][side]["test"])


def over_tasks(summaries: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over tasks of what a side is ahead by, where all tasks know it; their errors, as seeds are independent."""
    found: dict[str, dict[str, float]] = {}
    for side, figures in summaries[0].items():
        for name in figures:
            each = [one.get(side, {}).get(name) for one in summaries]
            if name.startswith("minus") and all(one and one["standard_error"] is not None for one in each):
                error = math.sqrt(sum(one["standard_error"] ** 2 for one in each)) / len(each)
                mean = sum(one["mean"] for one in each) / len(each)
                found[f"{side} {name}"] = {"mean": mean, "standard_error": error}
    return found
