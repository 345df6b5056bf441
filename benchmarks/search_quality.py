"""Does the search find something? The default run against random search of equal training, on samples neither saw.

    python benchmarks/search_quality.py [--seeds 0,1,2,3,4] [--random-sampler] [--out FILE]

For every seed the default `python -m l2l_nas search` is run, and beside it `random_search`: random architectures from
their own first weights, each for as many steps as a finalist and as many of them as it takes for the same number of
steps in all, once with the learning rate of warm-up and once with that of finalists. Each side hands out the network
that is best on the validation part, and that one network is measured on the test part: what a user would get.

`--random-sampler` runs the search once more with search.sampler=random, which shows what the sampler adds.

Seeds can be measured one at a time: what the file holds of other seeds stays. Differences are paired by seed, with
their standard errors over seeds; the samples are the same for all seeds, so these errors say nothing of other samples:
for that, each network has the standard error of its own test accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from l2l_nas import ParamServer, Relay, UniformPaths
from l2l_nas.bench.timing import machine
from l2l_nas.cli.runs import load_found
from l2l_nas.cli.saved_config import read_config
from l2l_nas.cli.schema import SearchSection, TrainConf
from l2l_nas.files import write_json
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine

PARTS = ("validation", "test")

Row = dict[str, Any]
Found = dict[str, float]  # accuracy by part of the data, and the standard error of that on the test part


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2,3,4", help="such as 0,1")
    parser.add_argument("--random-sampler", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search_quality.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    rows = {row["seed"]: row for row in known}
    for seed in map(int, arguments.seeds.split(",")):
        rows[seed] = measure(seed, random_sampler=arguments.random_sampler)
        done = [rows[seed] for seed in sorted(rows)]
        result = {"benchmark": "search_quality", "machine": machine(), "summary": summary(done), "rows": done}
        write_json(arguments.out, result)
        print(json.dumps(result["summary"], indent=2), flush=True)


def measure(seed: int, *, random_sampler: bool) -> Row:
    """One seed."""
    started = sum(os.times()[:4])  # CPU seconds, of the processes started here too
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        result = searched(seed, folder)
        exported = exported_accuracy(folder / "export" / "model.pt2")
        assert exported == result["best"]["test"]["accuracy"], (exported, result["best"])
        found = load_found(str(folder), pool="")
        told = read_config(folder / "config.yaml")["search"]
        others = {}
        if random_sampler:
            again = searched(seed, Path(scratch) / "random", "search.sampler=random", "export=false")
            others["random_sampler"] = entry_of(again["best"])
    section, train = SearchSection(), TrainConf()
    steps = int(told["finalist_steps"])
    in_all = told["warmup_steps"] + told["trials"] * told["steps_per_trial"] + told["finalists"] * steps
    draws = UniformPaths(found.problem.pool, seed=1000 + seed)
    alone = {
        str(peak): [
            trained(
                found.problem, found.server, draws.path_at(number), seed=100 * seed + number, steps=steps, peak=peak
            )
            for number in range(round(in_all / steps))
        ]
        for peak in (train.learning_rate, section.finalist_learning_rate)
    }
    return {
        "seed": seed,
        "steps": in_all,
        "found": entry_of(result["best"]),
        "finalists": [entry_of(entry) for entry in result["finalists"]],
        "random_search": {peak: max(networks, key=lambda one: one["validation"]) for peak, networks in alone.items()},
        "alone": alone,
        **others,
        "cpu_seconds": round(sum(os.times()[:4]) - started, 1),
        "versions": result["versions"],
    }


def searched(seed: int, folder: Path, *overrides: str) -> dict[str, Any]:
    """The result of a run."""
    command = [sys.executable, "-m", "l2l_nas", "search", f"seed={seed}", f"folder={folder}", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "result.json").read_text())


def entry_of(entry: dict[str, Any]) -> Found:
    """The accuracies of a finalist in a result."""
    return {
        "validation": entry["validation"]["accuracy"],
        "test": entry["test"]["accuracy"],
        "test_standard_error": entry["standard_error"]["test"]["accuracy"],
    }


def trained(
    problem: Problem, like: ParamServer, architecture: Architecture, *, seed: int, steps: int, peak: float
) -> Found:
    """Accuracies after so many steps from first weights."""
    server = ParamServer(problem.pool, optimizer=like.optimizer, seed=seed)
    train = TrainConf()
    batches = Batches(problem.data.train, batch_size=train.batch_size, seed=seed)
    trainer = Trainer(Relay(server, device="cpu", seed=seed), problem.task, batches, train.micro_batch)
    trainer.fit(lambda step: architecture, start=0, steps=steps, schedule=Cosine(peak, steps))
    trainer.recalibrate(architecture)  # as finalists are
    assert problem.data.test is not None
    test = trainer.score(architecture, problem.data.test)
    return {
        "validation": trainer.evaluate(architecture, problem.data.validation)["accuracy"],
        "test": test.values["accuracy"],
        "test_standard_error": test.errors["accuracy"],
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over seeds with their standard errors, and what the search is ahead by, seed by seed."""
    sides = {"found": [row["found"] for row in rows]}
    for peak in rows[0]["random_search"]:
        sides[f"random_search {peak}"] = [row["random_search"][peak] for row in rows]
    if all("random_sampler" in row for row in rows):
        sides["random_sampler"] = [row["random_sampler"] for row in rows]
    rates = [name for name in sides if name.startswith("random_search")]
    better = max(rates, key=lambda name: statistics.mean(one["validation"] for one in sides[name]))
    ahead = {
        other: {part: estimate(a[part] - b[part] for a, b in zip(sides["found"], found, strict=True)) for part in PARTS}
        for other, found in sides.items()
        if other != "found"
    }
    return {
        "seeds": [row["seed"] for row in rows],
        "accuracy": {
            name: {part: estimate(one[part] for one in found) for part in PARTS} for name, found in sides.items()
        },
        "better_rate": better,
        "found_minus": ahead,
        "validation_minus_test": estimate(one["validation"] - one["test"] for one in sides["found"]),
    }


def estimate(values: Any) -> dict[str, float | None]:
    """Mean and standard error over seeds; of one seed there is no error."""
    values = list(values)
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "standard_error": error}


# Run with -I in a process of its own, where this library cannot be imported.
_WITHOUT_US = """
import sys
sys.modules["l2l_nas"] = None
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
digits = load_digits()
_, chosen = train_test_split(range(1797), test_size=360, random_state=0, stratify=digits.target)
x = torch.from_numpy(digits.images[chosen]).float().div(16).unsqueeze(1)
y = torch.from_numpy(digits.target[chosen])
hits = int((torch.export.load(sys.argv[1]).module()(x).argmax(dim=1) == y).sum())
print(hits / len(y))
"""


def exported_accuracy(model: Path) -> float:
    """Test accuracy of the exported program, by PyTorch and scikit-learn alone."""
    command = [sys.executable, "-I", "-c", _WITHOUT_US, str(model)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
