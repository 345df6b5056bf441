"""What a search pays for a trial beside its training: asking a sampler for the next, and keeping it in `study.log`.

    python -m benchmarks trial_overhead [--trials 100 1000] [--samplers random tpe]

For every number of positions: a study in a temporary folder is filled with random trials as a search tells them
(choices, values, metrics, versions of weights). Where it has as many as wanted, every sampler goes on with a
copy of it, and `Study.ask` and `Study.tell` are timed. Beside them stands a trial of the default search, measured in
the same process, for the share that both take of it. CPU time is compared, as the wall clock waits for a busy disk.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas import Architecture, Candidate, LayerPool, Position, TensorSpec
from l2l_nas.nas.objectives import Goal, State
from l2l_nas.nas.study.journal import StudyFile
from l2l_nas.nas.study.study import Study, quiet_optuna

_GOALS = {1: (Goal("accuracy", True),), 2: (Goal("accuracy", True), Goal("parameters", False))}
_CANDIDATES = 6
_TIMED = 20
_OTHERS = 3  # searched positions of the default space that are no blocks


def pool_of(positions: int) -> LayerPool:
    """As many positions, with six candidates each; their layers are never built."""
    layers = [Candidate(f"candidate_{index}", nn.Identity) for index in range(_CANDIDATES)]
    return LayerPool([Position(f"layer_{index:02d}", layers) for index in range(positions)], inputs=TensorSpec((4,)))


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and CPU milliseconds."""
    started = time.process_time()
    result = work()
    return result, 1e3 * (time.process_time() - started)


def study_in(folder: Path, pool: LayerPool, goals: int, sampler: str, trials: int) -> Study:
    """New, or going on."""
    path = folder / "study.log"
    store = StudyFile(path, resume=path.exists())
    return Study(store, pool=pool, goals=_GOALS[goals], sampler=sampler, seed=0, num_trials=trials)


def tell(study: Study, trial: Any, architecture: Architecture, rng: random.Random) -> None:
    """As a search does, with a score that a model can learn something of."""
    good = sum(name.endswith("0") for name in architecture.choices) / len(architecture.choices)
    values = {"accuracy": good + rng.gauss(0, 0.05), "loss": 1 - good, "parameters": rng.randrange(10**6)}
    positions = len(architecture.choices)
    weights = {"kind": "shared", "visits": [100] * positions, "crc32": "0123abcd" * positions}
    study.tell(trial, State.COMPLETE, values, metrics=values, weights=weights, seconds=0.4)


def measure_overhead(positions: int, trials: int, samplers: Sequence[str], goals: int) -> list[dict[str, Any]]:
    """CPU milliseconds of asking and telling, after so many trials; medians."""
    pool, rng, rows = pool_of(positions), random.Random(0), []
    with tempfile.TemporaryDirectory() as folder:
        filled = Path(folder) / "filled"
        filled.mkdir()
        study = study_in(filled, pool, goals, "random", trials)
        for _ in range(trials):
            tell(study, *study.ask(), rng)
        for sampler in samplers:
            copy = Path(folder) / sampler
            shutil.copytree(filled, copy)
            study = study_in(copy, pool, goals, sampler, trials)
            asks, tells = [], []
            for _ in range(_TIMED):
                asked, milliseconds = timed(study.ask)
                asks.append(milliseconds)
                trial, architecture = asked
                tells.append(timed(partial(tell, study, trial, architecture, rng))[1])
            both = {"ask_ms": statistics.median(asks), "tell_ms": statistics.median(tells)}
            rows.append(
                {"positions": positions, "trials": trials, "objectives": goals, "sampler": sampler}
                | {name: round(value, 2) for name, value in both.items()}
            )
    return rows


def measure_trial(positions: int) -> float:
    """A trial of the default search with that many searched positions: CPU milliseconds of training and scoring."""
    from l2l_nas.eps.optimizers.rules import AdamW
    from l2l_nas.eps.server import ParamServer
    from l2l_nas.nas.evaluation.evaluator import Evaluator
    from l2l_nas.nas.evaluation.segment import Segment
    from l2l_nas.nas.strategies.budget import Budget
    from l2l_nas.nas.strategies.division import division
    from l2l_nas.relay.relay import Relay
    from l2l_nas.runs.locate import load_problem
    from l2l_nas.space.sampling import UniformPaths
    from l2l_nas.training.data import Batches
    from l2l_nas.training.fit import Trainer

    depth = {"depth": positions - _OTHERS}
    problem = load_problem("image_blocks", depth, source="cluttered_digits", validation_fraction=0.2)
    found = division(
        problem.pool,
        samples=len(problem.data.train),
        batch_size=64,
        trial_weights="scratch",
        given={"finalists": 8, "finalist_rounds": 3},
    )
    budget = Budget(**asdict(found), learning_rate=0.008, finalist_learning_rate=0.008)
    relay = Relay(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device_budget="all")
    trainer = Trainer(relay, problem.task, Batches(problem.data.train, batch_size=64, seed=0), 64)
    evaluator = Evaluator(relay, trainer, validation=problem.data.validation, budget=budget)
    paths = UniformPaths(problem.pool, seed=0)
    segments = [Segment.of_trial(paths.path_at(step), step, budget, done=0, server=None) for step in range(8)]
    times = [timed(partial(evaluator.run, segment))[1] for segment in segments]
    return statistics.median(times[2:])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=at_least(1), nargs="+", default=[1000])
    parser.add_argument("--positions", type=at_least(1), nargs="+", default=[9, 24, 96])
    parser.add_argument("--samplers", nargs="+", default=["random", "nsga2", "gp_hamming"])
    parser.add_argument("--out", type=Path, default=RESULTS / "trial_overhead.json")


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    quiet_optuna()
    torch.set_num_threads(1)
    rows = []
    for positions in options.positions:
        trial = measure_trial(positions)
        for trials in options.trials:
            for goals in _GOALS:
                for row in measure_overhead(positions, trials, options.samplers, goals):
                    row |= {"trial_ms": round(trial, 1), "share": round((row["ask_ms"] + row["tell_ms"]) / trial, 4)}
                    rows.append(row)
                    print(
                        "{positions:3} positions, {objectives} objectives, trial {trials:4}, {sampler:10} ask "
                        "{ask_ms:6.1f} ms, tell {tell_ms:4.1f} ms, of {trial_ms:.0f}: {share:.1%}".format(**row),
                        flush=True,
                    )
    about = {"benchmark": "trial_overhead", "machine": machine(), "python": platform.python_version()}
    options.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
