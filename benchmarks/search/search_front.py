"""Two objectives: the front that a search returns against that of random search of equal training.

    python -m benchmarks search_front [--data cluttered_digits] [--seeds 0,1,2] [--runs FOLDER]

For every seed, of about as many training steps each: `python -m l2l_nas search` with objectives=[accuracy,parameters],
whose front is of the finalists that were trained to the end; and random networks, each trained as long as these. The
area under a front is the mean, over the logarithm of a size, of the test accuracy of the network that is best on the
validation part among those of at most that many parameters; where none is so small, the share of the commonest class
counts. Sizes run from the smallest to the largest network of the space's that either side trained in any seed, so that
all seeds have one scale. Differences are paired by seed, with their standard errors over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import RESULTS
from benchmarks.options import numbers
from benchmarks.search.search_quality import estimate, optimizer_of, searched, trained
from benchmarks.timing import machine
from l2l_nas import UniformPaths
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.files import write_json
from l2l_nas.nas.strategies.division import division
from l2l_nas.runs.saved import load_found
from l2l_nas.training.samples import Split

SIDES = ("search", "random_search")

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="cluttered_digits", help="as data.source")
    parser.add_argument("--seeds", type=numbers, default="0,1,2", help="such as 0,1")
    parser.add_argument("--out", type=Path, help="results/search_front_DATA.json if nothing is given")
    parser.add_argument("--runs", type=Path, help="where the runs' folders stay; a temporary folder by default")


def main(arguments: argparse.Namespace) -> None:
    """Measure and save."""
    torch.set_num_threads(1)
    out = arguments.out or RESULTS / f"search_front_{Path(arguments.data).stem}.json"
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            row = measure(arguments.data, seed, (arguments.runs or Path(scratch)) / f"front_{seed}")
        known = json.loads(out.read_text())["rows"] if out.exists() else []
        rows = sorted([row, *(one for one in known if one["seed"] != seed)], key=lambda one: one["seed"])
        result = {
            "benchmark": "search_front",
            "data": Path(arguments.data).stem,
            "machine": machine(),
            "summary": summary(rows),
            "rows": rows,
        }
        write_json(out, result)
        print(json.dumps(result["summary"]), flush=True)


def measure(data: str, seed: int, run: Path) -> Row:
    """One seed; the run's folder is made as `run`."""
    result = searched(run, f"data.source={data}", f"seed={seed}", "objectives=[accuracy,parameters]")
    found, optimizer = load_found(str(run), pool=""), optimizer_of(run)
    problem = found.problem
    finalists = [
        {
            "parameters": int(entry["costs"]["parameters"]),
            "validation": entry["validation"]["accuracy"],
            "test": entry["test"] and entry["test"]["accuracy"],  # of those trained to the end
            "steps": entry["steps"],
        }
        for entry in result["finalists"]
    ]
    whole = max(entry["steps"] for entry in finalists)
    asked = division(
        problem.pool,
        samples=len(problem.data.train),
        batch_size=found.batch_size,
        trial_weights="scratch",
        given={"finalists": len(finalists), "finalist_rounds": 1},
    )
    trials = sum(result["trials"][state] for state in ("complete", "pruned", "stopped", "failed"))
    # a finalist's steps begin with its trial's
    steps = trials * asked.steps_per_trial + sum(one["steps"] - asked.steps_per_trial for one in finalists)
    networks = round(steps / whole)
    draws = UniformPaths(problem.pool, seed=1000 + seed)
    alone = [
        {
            "parameters": num_parameters(problem.pool, draws.path_at(n)),
            **trained(problem, optimizer, draws.path_at(n), seed=100 * seed + n, steps=steps // networks),
        }
        for n in range(networks)
    ]
    assert isinstance(problem.data.test, Split)
    counts = np.bincount(np.asarray(problem.data.test.targets).ravel())
    return {
        "seed": seed,
        "steps": steps,
        "trials": trials,
        "commonest": float(counts.max() / counts.sum()),
        "sides": {"search": finalists, "random_search": alone},
        "versions": result["versions"],
    }


def longest(networks: Sequence[Row]) -> list[Row]:
    """Those that were trained to the end."""
    most = max(one["steps"] for one in networks)
    return [one for one in networks if one["steps"] == most]


def area(networks: Sequence[Row], sizes: Sequence[float], commonest: float) -> float:
    """The mean test accuracy of what is returned at each of some sizes, of those trained longest."""
    total = 0.0
    for size in sizes:
        fitting = [one for one in longest(networks) if one["parameters"] <= size]
        total += max(fitting, key=lambda one: one["validation"])["test"] if fitting else commonest
    return total / len(sizes)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Areas, and what the search is ahead by, seed by seed: over all sizes, and over those at which both have one."""
    every = [one["parameters"] for row in rows for side in SIDES for one in longest(row["sides"][side])]
    largest = max(every)
    found: dict[str, Any] = {"seeds": [row["seed"] for row in rows], "sizes": [min(every), largest]}
    for name in ("all_sizes", "sizes_of_both"):
        areas: dict[str, list[float]] = {side: [] for side in SIDES}
        for row in rows:
            smallest = [min(one["parameters"] for one in longest(row["sides"][side])) for side in SIDES]
            start = min(every) if name == "all_sizes" else max(smallest)
            sizes = np.exp(np.linspace(math.log(start), math.log(largest), 200)).tolist()
            for side in SIDES:
                areas[side].append(area(row["sides"][side], sizes, row["commonest"]))
        found[name] = {side: estimate(values) for side, values in areas.items()}
        found[name]["search_minus"] = estimate(a - b for a, b in zip(*areas.values(), strict=True))
    return found
