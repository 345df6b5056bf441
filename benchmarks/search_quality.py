"""Does the search find something? The default run against random search of equal training.

    python benchmarks/search_quality.py [--seeds 0 1 2 3 4] [--random 7]

For every seed the default `python -m l2l_nas search` is run, and beside it, with as many training steps in all and
scored on the same samples, two random searches, the best network of each:
- `random_search`: random architectures from their own first weights, each for as many steps as a finalist, once with
  the learning rate of warm-up and once with that of finalists;
- `random_sampler`: the same run with search.sampler=random, which shows what the sampler adds.

Then random architectures get what a finalist gets, from the same shared weights: `same_treatment` shows what the choice
of the architecture adds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from l2l_nas import ParamServer, Relay, UniformPaths
from l2l_nas.bench.timing import machine
from l2l_nas.cli.runs import load_found
from l2l_nas.cli.schema import SearchSection, TrainConf
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--random", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(seed, arguments.random) for seed in arguments.seeds]
    medians = {
        name: statistics.median(row[name]["accuracy"] for row in rows)  # type: ignore[index]
        for name in ("found", "random_sampler")
    }
    for peak in rows[0]["random_search"]:  # type: ignore[attr-defined]
        values = [row["random_search"][peak] for row in rows]  # type: ignore[index]
        medians[f"random_search {peak}"] = statistics.median(values)
    print(medians, flush=True)
    result = {"benchmark": "search_quality", "machine": machine(), "medians": medians, "rows": rows}
    (Path(__file__).parent / "results" / "search_quality.json").write_text(json.dumps(result, indent=2) + "\n")


def measure(seed: int, num_random: int) -> dict[str, object]:
    """One seed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        started = time.perf_counter()
        result = searched(seed, folder)
        seconds = time.perf_counter() - started
        exported = exported_accuracy(folder / "export" / "model.pt2")
        assert exported == result["best"]["values"]["accuracy"], (exported, result["best"])
        found = load_found(str(folder), pool="")
        shared = ParamServer(found.problem.pool, optimizer=found.server.optimizer, seed=seed)
        Checkpoint(folder / "weights").load(shared)
        random_sampler = searched(seed, Path(scratch) / "random", "search.sampler=random")["best"]["values"]
    pool, problem = found.problem.pool, found.problem
    section, train = SearchSection(), TrainConf()
    steps = section.finalist_steps
    drawn = [UniformPaths(pool, seed=1000 + seed).path_at(number) for number in range(100)]
    in_all = section.warmup_steps + section.trials * section.steps_per_trial + section.finalists * steps
    alone = {
        peak: [
            trained(problem, ParamServer(pool, optimizer=shared.optimizer, seed=number), drawn[-1 - number], number,
                    steps=steps, peak=peak)
            for number in range(round(in_all / steps))
        ]
        for peak in (train.learning_rate, section.finalist_learning_rate)
    }  # fmt: skip
    treated = [
        trained(problem, shared.fork(path_states(pool, architecture)), architecture, number,
                steps=steps, peak=section.finalist_learning_rate)
        for number, architecture in enumerate(drawn[:num_random])
    ]  # fmt: skip
    row: dict[str, object] = {
        "seed": seed,
        "seconds": round(seconds, 1),
        "steps": in_all,
        "found": result["best"]["values"],
        "exported_accuracy": exported,
        "trials": result["trials"],
        "random_sampler": random_sampler,
        "random_search": {str(peak): max(found["accuracy"] for found in values) for peak, values in alone.items()},
        "alone": {str(peak): sorted(found["accuracy"] for found in values) for peak, values in alone.items()},
        "same_treatment": sorted(values["accuracy"] for values in treated),
    }
    print(
        seed, {name: row[name] for name in ("found", "random_sampler", "random_search", "same_treatment")}, flush=True
    )
    return row


def searched(seed: int, folder: Path, *overrides: str) -> dict[str, Any]:
    """The result of a run."""
    command = [sys.executable, "-m", "l2l_nas", "search", f"seed={seed}", f"folder={folder}", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((folder / "result.json").read_text())


def trained(
    problem: Problem, server: ParamServer, architecture: Architecture, seed: int, *, steps: int, peak: float
) -> dict[str, float]:
    """Metrics on the validation data after so many steps."""
    relay = Relay(server, device="cpu", seed=seed)
    train = TrainConf()
    batches = Batches(problem.data.train, batch_size=train.batch_size, seed=seed)
    trainer = Trainer(relay, problem.task, batches, train.micro_batch)
    trainer.fit(lambda step: architecture, start=0, steps=steps, schedule=Cosine(peak, steps))
    return trainer.evaluate(architecture, problem.data.validation)


# Run with -I in a process of its own, where this library cannot be imported.
_WITHOUT_US = """
import sys
sys.modules["l2l_nas"] = None
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
digits = load_digits()
_, chosen = train_test_split(range(1797), test_size=0.2, random_state=0, stratify=digits.target)
x = torch.from_numpy(digits.images[chosen]).float().div(16).unsqueeze(1)
y = torch.from_numpy(digits.target[chosen])
hits = int((torch.export.load(sys.argv[1]).module()(x).argmax(dim=1) == y).sum())
print(hits / len(y))
"""


def exported_accuracy(model: Path) -> float:
    """Validation accuracy of the exported program, by PyTorch and scikit-learn alone."""
    command = [sys.executable, "-I", "-c", _WITHOUT_US, str(model)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
