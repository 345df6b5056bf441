"""What it costs to keep a finished trial: Optuna's journal file and SQLite, trial by trial in turns.

    python -m benchmarks study_storage [--trials 400] [--folder FOLDER]

The same finished trials, as a search of 24 positions tells them, are added to a study in SQLite (`RDBStorage`), in a
journal (`JournalStorage` with Optuna's `JournalFileBackend`), in a journal as runs keep it (`JournalFile`), and in a
second one, the control; which of them comes first is drawn anew for each trial. Then all trials are read back by a new
storage of each kind, and a candidate joins.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from benchmarks import RESULTS
from benchmarks.timing import machine
from l2l_nas.nas.study.journal import JournalFile

_POSITIONS, _CANDIDATES = 24, 6
_KINDS = ("sqlite", "journal of Optuna", "journal of a run", "journal of a run, again")
_PART = 100  # trials at the beginning and at the end that are compared


def trial_of(number: int, rng: random.Random, candidates: int = _CANDIDATES) -> FrozenTrial:
    """A finished trial."""
    names = [f"candidate_{index}" for index in range(candidates)]
    params = {f"layer_{index:02d}": rng.choice(names) for index in range(_POSITIONS)}
    now = datetime.now()
    trial = create_trial(
        state=TrialState.COMPLETE,
        value=rng.random(),
        params=params,
        distributions=dict.fromkeys(params, CategoricalDistribution(names)),
        intermediate_values={step: rng.random() for step in (25, 50, 100)},
        user_attrs={
            "architecture": list(params.values()),
            "digest": f"{number:016x}",
            "cached": False,
            "seconds": 0.4,
            "rungs": {f"{step}/100": {"accuracy": rng.random(), "loss": rng.random()} for step in (25, 50)},
            "weights": {"kind": "scratch", "visits": [100] * _POSITIONS, "crc32": "0123abcd" * _POSITIONS},
            **{f"metric_{name}": rng.random() for name in ("accuracy", "loss", "parameters", "flops")},
        },
    )
    trial.datetime_start = trial.datetime_complete = now
    return trial


def study_in(folder: Path, kind: str, *, is_new: bool) -> optuna.Study:
    """New, or read back."""
    path = folder / f"{_KINDS.index(kind)}.study"
    if kind == "sqlite":
        storage: RDBStorage | JournalStorage = RDBStorage(f"sqlite:///{path}")
    else:
        path.touch()
        storage = JournalStorage(JournalFileBackend(str(path)) if "Optuna" in kind else JournalFile(path))
    if is_new:
        return optuna.create_study(storage=storage, study_name="search")
    study = optuna.load_study(storage=storage, study_name="search")
    study.get_trials(deepcopy=False)
    return study


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds: of the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - clock), 1e3 * (time.process_time() - processor)


def measured(folder: Path, trials: int) -> dict[str, dict[str, float | bool]]:
    """By kind: medians of the first and last trials, reading back, bytes, and whether a candidate may join."""
    rng = random.Random(0)
    studies = {kind: study_in(folder, kind, is_new=True) for kind in _KINDS}
    spent: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
    for number in range(trials):
        trial = trial_of(number, rng)
        for kind in rng.sample(_KINDS, len(_KINDS)):
            spent[kind].append(timed(partial(studies[kind].add_trial, trial)))
    found: dict[str, dict[str, float | bool]] = {}
    for kind in _KINDS:
        row: dict[str, float | bool] = {}
        for part, times in (("first", spent[kind][:_PART]), ("last", spent[kind][-_PART:])):
            row[f"{part}_ms"] = round(statistics.median(clock for clock, _ in times), 2)
            row[f"{part}_cpu_ms"] = round(statistics.median(processor for _, processor in times), 2)
        row["read_ms"] = round(timed(partial(study_in, folder, kind, is_new=False))[0])
        row["bytes_per_trial"] = round((folder / f"{_KINDS.index(kind)}.study").stat().st_size / trials)
        try:
            studies[kind].add_trial(trial_of(trials, rng, candidates=_CANDIDATES + 1))
            row["takes_a_new_candidate"] = True
        except ValueError:
            row["takes_a_new_candidate"] = False
        found[kind] = row
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.catalogue.Script`."""
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--folder", type=Path, help="on the disk that counts")
    parser.add_argument("--out", type=Path, default=RESULTS / "study_storage.json")


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = measured(Path(folder), options.trials)
    for kind, row in rows.items():
        print(f"{kind:24}", *(f"{name} {value}" for name, value in row.items()), sep="  ")
    about = {"benchmark": "study_storage", "machine": machine(), "optuna": optuna.__version__}
    options.out.write_text(json.dumps(about | {"trials": options.trials, "kinds": rows}, indent=1) + "\n")
