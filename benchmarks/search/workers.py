"""Trials a second of one search with several worker processes, beside one with a single process.

Whole searches of the default space are run as users run them, each in a process of its own: one process, so many
workers, and one process again as the control, alternating, with another seed in each round. Every worker has one
thread. Timed are the trials alone, from `log.jsonl`: all of them from the start of their phase, and, once each process
has done its first one, the others. What the searches found is compared too: a search with workers proposes trials
before it knows the scores of those that run, and must not be worse for it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.settings import BenchWatch, Settings
from benchmarks.timing import ratio
from l2l_nas.errors import SettingError, WorkerError
from l2l_nas.files import make_folder, read_json

_ONE, _CONTROL = "one process", "control"
_SEARCH = {
    "space": "digits_conv",
    "data.source": "digits",
    "train.batch_size": 128,
    "train.micro_batch": 128,
    "train.learning_rate": 0.004,
    "objectives": "[accuracy,parameters]",
    "search.finalists": 0,
}


@dataclass(frozen=True)
class WorkersRun:
    """One search.

    Args:
        seconds: of all trials, what it takes to start workers among them.
        trial_seconds: of one trial, once each process has done its first one.
        best: accuracy of the best trial, scored again at the end.
        mean: accuracy of all complete trials.
        workers_seen: how many processes evaluated trials.
    """

    seconds: float
    trial_seconds: float
    best: float
    mean: float
    workers_seen: int


def check(settings: Settings) -> None:
    """Refuse what compares nothing.

    Raises:
        SettingError: fewer than 2 workers.
    """
    if settings.workers < 2:
        raise SettingError(f"this bench compares one process with at least 2 workers, got {settings.workers}")


def workers(settings: Settings, watch: BenchWatch) -> dict[str, Any]:
    """All searches, alternately."""
    many = f"{settings.workers} workers"
    sides = {_ONE: 1, many: settings.workers, _CONTROL: 1}
    found: dict[str, list[WorkersRun]] = {name: [] for name in sides}
    watch.start(settings.rounds * len(sides))
    load_before = os.getloadavg()
    make_folder(settings.scratch)
    names = list(sides)
    for repeat in range(settings.rounds):
        for offset in range(len(names)):
            name = names[(repeat + offset) % len(names)]
            found[name].append(_search(settings, workers=sides[name], seed=settings.work.seed + repeat))
            watch.advance(1, f"{name}, seed {settings.work.seed + repeat}")
    return {
        "over": _ONE,
        "trials": settings.trials,
        "steps_per_trial": settings.steps,
        "workers": settings.workers,
        "cores": os.cpu_count(),
        "load_average": {"before": _rounded(load_before), "after": _rounded(os.getloadavg())},
        "rows": [_row(name, runs, found[_ONE], settings) for name, runs in found.items()],
    }


def _search(settings: Settings, *, workers: int, seed: int) -> WorkersRun:
    with tempfile.TemporaryDirectory(dir=settings.scratch) as place:
        words = {
            "folder": f"{place}/run",
            "seed": seed,
            "export": "false",
            "search.workers": workers,
            "search.trials": settings.trials,
            "search.steps_per_trial": settings.steps,
            **_SEARCH,
            "relay.threads": 1,
            "relay.device": settings.work.device,
        }
        command = [sys.executable, "-m", "l2l_nas", "search", *(f"{name}={value}" for name, value in words.items())]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise WorkerError(f"a search of this bench failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return _read(Path(place) / "run", workers)


def _read(folder: Path, workers: int) -> WorkersRun:
    """What a finished run tells of itself."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    started = {event["name"]: event["time"] for event in events if event["event"] == "phase"}
    trials = [event for event in events if event["event"] == "trial" and not event["cached"]]
    first, last = trials[:workers][-1]["time"], trials[-1]["time"]
    return WorkersRun(
        seconds=last - started["search"],
        trial_seconds=(last - first) / max(1, len(trials) - workers),
        best=read_json(folder / "result.json")["best"]["values"]["accuracy"],
        mean=statistics.fmean(event["values"]["accuracy"] for event in trials if event["state"] == "complete"),
        workers_seen=len({event.get("worker", 0) for event in trials}),
    )


def _row(name: str, runs: Sequence[WorkersRun], one: Sequence[WorkersRun], settings: Settings) -> dict[str, Any]:
    seconds = [run.seconds for run in runs]
    row: dict[str, Any] = {
        "side": name,
        "trials_a_second": round(settings.trials / statistics.median(seconds), 4),
        "once_started": round(1 / statistics.median([run.trial_seconds for run in runs]), 4),
        "seconds": [round(value, 3) for value in seconds],
        "workers_seen": [run.workers_seen for run in runs],
        "best": _summary([run.best for run in runs]),
        "mean_of_trials": _summary([run.mean for run in runs]),
        "over": {},
    }
    if name != _ONE:
        row["over"] = {_ONE: ratio([run.seconds for run in one], seconds)}
        trial_seconds = [[run.trial_seconds for run in side] for side in (one, runs)]
        row["once_started_over"] = {_ONE: ratio(*trial_seconds)}
        row["best_minus_one"] = _summary([run.best - other.best for run, other in zip(runs, one, strict=True)])
        row["mean_minus_one"] = _summary([run.mean - other.mean for run, other in zip(runs, one, strict=True)])
    return row


def _summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean, and standard error of the mean."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": round(statistics.fmean(values), 4), "se": round(error, 4), "values": [round(v, 4) for v in values]}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]
