"""Does the search find something? The default run against random search of equal training, on samples neither saw.

    python -m benchmarks search_quality [--data cluttered_digits] [--seeds 0,1,2] [--beside sampler=gp_hamming]
        [--networks 3] [--runs FOLDER]

For every seed, of about as many training steps each:

- the default `python -m l2l_nas search` on these data, with search.baseline=random: random networks trained as
  the finalist that was trained longest;
- with --beside, the same run with another setting, which shows what that does;
- with --networks N, random search of N networks, which are trained longer or shorter than the baseline's.

Each returns the network that is best on the validation part, and that one is measured on the test part: what a user
would get. Seeds can be measured one at a time: what the file holds of other seeds stays, and so do runs in FOLDER that
were finished. Differences are paired by seed, with their standard errors and intervals over seeds; the samples are the
same for all seeds, so these say nothing of other samples: for that, each network has the standard error of its own test
accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS
from benchmarks.options import at_least, numbers
from benchmarks.timing import machine
from l2l_nas import ParamServer, Relay, UniformPaths
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.files import write_json
from l2l_nas.report.interval import Estimate
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.saved import SavedRun, load_found
from l2l_nas.runs.section_settings import TrainConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine

PARTS = ("validation", "test")

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="cluttered_digits", help="as data.source")
    parser.add_argument("--seeds", type=numbers, default="0,1,2", help="such as 0,1")
    parser.add_argument("--beside", default="", help="a setting that the same run is done with once more")
    parser.add_argument("--networks", type=at_least(0), default=0, help="of another random search; 0: none")
    parser.add_argument("--out", type=Path, help="results/search_quality_DATA.json if nothing is said")
    parser.add_argument("--runs", type=Path, help="where the runs' folders stay; a temporary folder by default")


def main(arguments: argparse.Namespace) -> None:
    """Measure and save."""
    torch.set_num_threads(1)
    name = f"search_quality_{Path(arguments.data).stem}.json"
    out = arguments.out or RESULTS / name
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            runs = (arguments.runs or Path(scratch)) / f"{Path(arguments.data).stem}_{seed}"
            row = measure(arguments.data, seed, runs, beside=arguments.beside, networks=arguments.networks)
        known = json.loads(out.read_text())["rows"] if out.exists() else []
        rows = sorted([row, *(one for one in known if one["seed"] != seed)], key=lambda one: one["seed"])
        result = {
            "benchmark": "search_quality",
            "data": Path(arguments.data).stem,
            "machine": machine(),
            "summary": summary(rows),
            "rows": rows,
        }
        write_json(out, result)
        print(json.dumps(result["summary"]), flush=True)


def measure(data: str, seed: int, runs: Path, *, beside: str, networks: int) -> Row:
    """One seed; the runs' folders are made in `runs`."""
    started = sum(os.times()[:4])  # CPU seconds, of the processes started here too
    words = [f"data.source={data}", f"seed={seed}"]
    result = searched(runs / "search", *words, "search.baseline=random")
    alone = result["baseline"]
    sides = {"search": entry_of(result["best"]), "random_search": entry_of(alone)}
    if beside:
        sides[beside] = entry_of(searched(runs / beside, *words, beside)["best"])
    in_all = alone["total_steps"]
    if networks:
        found, optimizer = load_found(str(runs / "search"), pool=""), optimizer_of(runs / "search")
        draws = UniformPaths(found.problem.pool, seed=1000 + seed)
        others = [
            trained(found.problem, optimizer, draws.path_at(n), seed=100 * seed + n, steps=in_all // networks)
            for n in range(networks)
        ]
        sides[f"random_search_of_{networks}"] = max(others, key=lambda one: one["validation"])
    return {
        "seed": seed,
        "steps": in_all,
        "sides": sides,
        "finalists": [{**entry_of(entry), "trial": entry["trial_score"]} for entry in result["finalists"]],
        "networks": alone["networks"],
        "cpu_seconds": round(sum(os.times()[:4]) - started, 1),
        "versions": result["versions"],
    }


def searched(folder: Path, *overrides: str) -> dict[str, Any]:
    """The result of a run, which may have been finished before."""
    if (folder / "result.json").exists():
        return json.loads((folder / "result.json").read_text())
    command = [sys.executable, "-m", "l2l_nas", "search", f"folder={folder}", "export=false", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "result.json").read_text())


def entry_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a result tells of a network: its layers, steps, accuracies, the error of that on the test part."""
    record = {"architecture": entry["architecture"], "steps": entry["steps"]}
    for part in PARTS:
        if entry.get(part):
            record[part] = entry[part]["accuracy"]
    if entry.get("test"):
        record["test_standard_error"] = entry["standard_error"]["test"]["accuracy"]
    return record


def optimizer_of(run: Path) -> Optimizer:
    """What a run trains with; what `load_found` reads of it is there to be looked at, and has another."""
    return build_optimizer(SavedRun(RunFolder(run)).config["optimizer"])


def trained(
    problem: Problem, optimizer: Optimizer, architecture: Architecture, *, seed: int, steps: int
) -> dict[str, Any]:
    """Accuracies after so many steps from first weights."""
    server = ParamServer(problem.pool, optimizer=optimizer, seed=seed)
    train = TrainConf()
    batches = Batches(problem.data.train, batch_size=train.batch_size, seed=seed)
    trainer = Trainer(Relay(server, device="cpu", seed=seed), problem.task, batches, train.micro_batch)
    trainer.fit(lambda step: architecture, start=0, steps=steps, schedule=Cosine(train.learning_rate, steps))
    trainer.recalibrate(architecture)  # as finalists are
    assert problem.data.test is not None
    test = trainer.score(architecture, problem.data.test)
    return {
        "architecture": list(architecture.choices),
        "steps": steps,
        "validation": trainer.evaluate(architecture, problem.data.validation)["accuracy"],
        "test": test.values["accuracy"],
        "test_standard_error": test.errors["accuracy"],
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over seeds with their standard errors, and what the search is ahead by, seed by seed."""
    names = [name for name in rows[0]["sides"] if all(name in row["sides"] for row in rows)]
    of = {(name, part): [row["sides"][name][part] for row in rows] for name in names for part in PARTS}

    def ahead(name: str, part: str) -> dict[str, Any]:
        return estimate(a - b for a, b in zip(of["search", part], of[name, part], strict=True))

    return {
        "seeds": [row["seed"] for row in rows],
        "accuracy": {name: {part: estimate(of[name, part]) for part in PARTS} for name in names},
        "search_minus": {name: {part: ahead(name, part) for part in PARTS} for name in names if name != "search"},
    }


def estimate(values: Iterable[float]) -> dict[str, Any]:
    """Mean, standard error and 95 % interval over seeds; of one seed there is the mean alone."""
    values = list(values)
    if len(values) < 2:
        return {"mean": statistics.mean(values), "standard_error": None}
    return Estimate.of(values).to_json()
