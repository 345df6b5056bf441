"""What it costs to keep a finished trial in `study.db`, by number of positions and of trials already there.

    python benchmarks/persistence.py [--trials 1000] [--out benchmarks/results/persistence.json]

For every size: a study in a temporary folder is filled with trials as a search tells them (choices, values, metrics,
versions of weights), and the last ones are timed: `Study.tell` whole, wall clock and CPU time of this process. Beside
them stands a trial of the default search, its CPU time measured in the same process, for the share that persistence
takes of it. Sampling is not in these figures: see `bench=sampling`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.search.records import Goal
from l2l_nas.search.study import Study, quiet_optuna

_GOALS = (Goal("accuracy", True), Goal("parameters", False))
_CANDIDATES = 6
_TIMED = 50
_VALUES = {"accuracy": 0.9, "loss": 0.3, "parameters": 30000.0}


def pool_of(positions: int) -> LayerPool:
    """As many positions, with six candidates each; their layers are never built."""
    layers = [Candidate(f"candidate_{index}", nn.Identity) for index in range(_CANDIDATES)]
    return LayerPool([Position(f"layer_{index:02d}", layers) for index in range(positions)], inputs=TensorSpec((4,)))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def measure_tell(folder: Path, *, positions: int, trials: int) -> dict[str, Any]:
    """Milliseconds of the first and the last `tell`s of a study."""
    study = Study(
        folder / "study.db",
        pool=pool_of(positions),
        goals=_GOALS,
        sampler="random",
        seed=0,
        num_trials=trials,
        resume=False,
    )
    weights = {"kind": "shared", "visits": [100] * positions, "crc32": "0123abcd" * positions}
    times = []
    for _ in range(trials):
        trial, architecture = study.ask()

        def tell(trial: Any = trial, architecture: Any = architecture) -> None:
            study.tell(
                trial, architecture, state="complete", values=_VALUES, attributes=_VALUES, weights=weights, seconds=0.4
            )

        times.append(timed(tell))
    study.close()

    def middle(which: slice) -> dict[str, float]:
        wall, cpu = zip(*times[which], strict=True)
        return {"wall_ms": round(statistics.median(wall), 2), "cpu_ms": round(statistics.median(cpu), 2)}

    return {
        "positions": positions,
        "trials": trials,
        "first": middle(slice(0, _TIMED)),
        "last": middle(slice(-_TIMED, None)),
        "bytes": (folder / "study.db").stat().st_size,
    }


def measure_trial(depth: int) -> dict[str, Any]:
    """A trial of the default search with that many searched positions: CPU milliseconds of training and scoring."""
    from l2l_nas.cli.locate import load_problem
    from l2l_nas.eps.optimizer import AdamW
    from l2l_nas.eps.server import ParamServer
    from l2l_nas.relay.executor import Relay
    from l2l_nas.search.budget import Budget
    from l2l_nas.search.trials import Evaluator
    from l2l_nas.space.sampling import UniformPaths
    from l2l_nas.training.data import Batches
    from l2l_nas.training.fit import Trainer

    problem = load_problem("digits_conv", {"depth": depth}, source="digits", validation_fraction=0.2)
    budget = Budget(0, 64, 6, 6, 320, 0.004, 0.008)
    relay = Relay(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device_budget="all")
    trainer = Trainer(relay, problem.task, Batches(problem.data.train, batch_size=128, seed=0), 128)
    evaluator = Evaluator(relay, trainer, validation=problem.data.validation, budget=budget)
    paths = UniformPaths(problem.pool, seed=0)
    times = [
        timed(lambda step=step: evaluator.evaluate(paths.path_at(step), step, poll=lambda: None))  # type: ignore[misc]
        for step in range(14)
    ][4:]
    wall, cpu = zip(*times, strict=True)
    return {"wall_ms": round(statistics.median(wall), 1), "cpu_ms": round(statistics.median(cpu), 1)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--positions", type=int, nargs="+", default=[8, 24, 96])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "persistence.json")
    options = parser.parse_args()
    quiet_optuna()
    torch.set_num_threads(1)
    rows = []
    for positions in options.positions:
        with tempfile.TemporaryDirectory() as folder:
            row = measure_tell(Path(folder), positions=positions, trials=options.trials)
        row["trial"] = measure_trial(positions)
        row["share"] = round(row["last"]["cpu_ms"] / row["trial"]["cpu_ms"], 4)
        rows.append(row)
        print(
            f"{positions:3} positions, trial {options.trials}: {row['last']['wall_ms']:.1f} ms to keep a trial "
            f"({row['last']['cpu_ms']:.1f} of CPU) that takes {row['trial']['wall_ms']:.0f} ms "
            f"({row['trial']['cpu_ms']:.0f} of CPU): {100 * row['share']:.1f} %"
        )
    about = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
