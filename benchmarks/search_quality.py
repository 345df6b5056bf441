"""Does the search find something? The default run against random architectures trained from scratch.

    python benchmarks/search_quality.py [--seeds 0 1 2] [--random 5]

For every seed the default `python -m l2l_nas search` is run. Then random architectures of the same space are trained
from scratch, with the same batches, optimizer and schedule, and scored on the same validation samples:
- `equal_updates`: for as many steps as the layers of the found network were updated on average (all phases counted);
- `equal_run`: for as many steps as the whole run trained shared weights plus one finalist.
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

import torch
from common import save

from l2l_nas import AdamW, ParamServer, Relay, UniformPaths
from l2l_nas.cli.runs import load_found
from l2l_nas.cli.schema import AdamWConf, SearchSection, TrainConf
from l2l_nas.cost.closed_form import path_states
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--random", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(seed, arguments.random) for seed in arguments.seeds]
    save("search_quality", {"rows": rows})


def measure(seed: int, num_random: int) -> dict[str, object]:
    """One seed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        started = time.perf_counter()
        command = [sys.executable, "-m", "l2l_nas", "search", f"seed={seed}", f"folder={folder}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        result = json.loads((folder / "result.json").read_text())
        found = load_found(str(folder), pool="")
    pool, problem = found.problem.pool, found.problem
    visits = [found.server.state(key).visits for key in path_states(pool, found.architecture)]
    section, train, adamw = SearchSection(), TrainConf(), AdamWConf()
    shared = section.warmup_steps + section.trials * section.steps_per_trial
    budgets = {"equal_updates": round(statistics.mean(visits)), "equal_run": shared + section.finalist_steps}
    row: dict[str, object] = {
        "seed": seed,
        "seconds": round(seconds, 1),
        "found": result["best"]["values"],
        "trials": result["trials"],
    }
    paths = UniformPaths(pool, seed=1000 + seed)
    for name, steps in budgets.items():
        scores = []
        for number in range(num_random):
            optimizer = AdamW((adamw.beta1, adamw.beta2), adamw.eps, adamw.weight_decay)
            relay = Relay(ParamServer(pool, optimizer=optimizer, seed=number), device="cpu", seed=number)
            batches = Batches(problem.data.train, batch_size=train.batch_size, seed=number)
            trainer = Trainer(relay, problem.task, batches, train.micro_batch)
            architecture = paths.path_at(number)
            schedule = Cosine(train.learning_rate, steps)
            trainer.fit(lambda step, chosen=architecture: chosen, start=0, steps=steps, schedule=schedule)
            scores.append(trainer.evaluate(architecture, problem.data.validation)["accuracy"])
        row[name] = {"steps": steps, "median": statistics.median(scores), "scores": sorted(scores)}
        print(seed, name, row[name], row["found"], flush=True)
    return row


if __name__ == "__main__":
    main()
