"""The optimum of small spaces by `gp_hamming`, where a trial is a whole evaluation and accuracy is the one goal.

    python -m benchmarks small_spaces [--trials 100] [--runs 100] [--seed 1000]

A run is a made-up space with a value of every architecture. It ends when the best one has been evaluated, or after so
many trials. There are four kinds:

- `depth`: 8 positions of 3. Accuracy saturates in a sum of unequal capacities, with a part for each two neighbours.
- `network`: 8 positions of 3. Accuracy is what a network of random weights makes of the choices.
- `plateaus`: the capacity of `depth`, but accuracy rises with whole steps of it alone, and differs a little from one
  architecture to the next without any reason, as that of trained networks does.
- `cells`: 6 edges of 5 operations between 4 nodes, in the manner of NAS-Bench-201: what counts are the ways from the
  first node to the last, how many there are and what is on them.

Regret is by how much the best that was seen is below the optimum, in per cent of what the median architecture is below.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.search.whole_evaluations import evaluated
from benchmarks.timing import machine
from l2l_nas.nas.samplers.base import Floats, Genotype, Space

# architectures, a row each: the number of the candidate at each position
Chosen = npt.NDArray[np.int64]

_POSITIONS, _CANDIDATES = 8, 3
# a cell's edges, from one node to another; and what is on an edge: nothing, a skip, two convolutions, a pooling
_EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
_NOTHING, _SKIP, _POOLING, _OPERATIONS = 0, 1, 4, 5


@dataclass(frozen=True)
class Table:
    """Values of all architectures of a space, by genotype; more is better."""

    space: Space
    values: Mapping[Genotype, float]


def table(name: str, seed: int) -> Table:
    """One of `TABLES`; each seed is another space of the same kind."""
    value, positions, candidates = TABLES[name]
    genotypes = list(itertools.product(range(candidates), repeat=positions))
    values = value(np.array(genotypes), np.random.default_rng([list(TABLES).index(name), seed]))
    space = {f"p{index}": tuple(range(candidates)) for index in range(positions)}
    return Table(space, dict(zip(genotypes, values.tolist(), strict=True)))


def _depth(chosen: Chosen, rng: np.random.Generator) -> Floats:
    found: Floats = 1 - np.exp(-_capacity(chosen, rng) / rng.uniform(0.2, 0.6))
    return found


def _network(chosen: Chosen, rng: np.random.Generator) -> Floats:
    values = np.eye(_CANDIDATES)[chosen].reshape(len(chosen), -1)
    for width in (32, 32, 1):
        weights = rng.normal(0, 1, (values.shape[1], width)) / np.sqrt(np.square(values).sum(axis=1).mean())
        values = values @ weights if width == 1 else np.tanh(1.5 * values @ weights + rng.normal(0, 0.5, width))
    found: Floats = 1 - 0.5 * np.exp(-values[:, 0])
    return found


def _plateaus(chosen: Chosen, rng: np.random.Generator) -> Floats:
    found: Floats = np.floor(_capacity(chosen, rng) * 12) / 12 + rng.normal(0, 0.02, len(chosen))
    return found


def _cells(chosen: Chosen, rng: np.random.Generator) -> Floats:
    gains = np.array([0.0, 0.15, 0.7, 1.0, 0.1]) * rng.lognormal(0, 0.15, _OPERATIONS)
    edges = rng.lognormal(0, 0.25, len(_EDGES))
    strength = np.zeros(len(chosen))
    for way in _ways():
        is_open = (chosen[:, way] != _NOTHING).all(axis=1)
        depth = (gains[chosen[:, way]] * edges[way]).sum(axis=1)
        strength += is_open * (0.3 + np.sqrt(depth)) * rng.lognormal(0, 0.2)
    pooled, skips = ((chosen == operation).sum(axis=1) for operation in (_POOLING, _SKIP))
    found: Floats = 1 - np.exp(-strength / 3) - 0.02 * np.square(pooled) - 0.02 * np.square(skips - 1)
    return found + rng.normal(0, 0.001, len(chosen))


def _capacity(chosen: Chosen, rng: np.random.Generator) -> Floats:
    """By that of the largest candidates, which are not always the best, as what is next to what counts too."""
    rising = np.cumsum(np.c_[np.zeros(_POSITIONS), rng.uniform(0.3, 1, (_POSITIONS, _CANDIDATES - 1))], axis=1)
    rising *= rng.lognormal(0, 0.5, (_POSITIONS, 1))
    pairs = rng.normal(0, 0.3, (_POSITIONS - 1, _CANDIDATES, _CANDIDATES)) * rising[:, -1].mean()
    places = np.arange(_POSITIONS)
    found = rising[places, chosen].sum(axis=1) + pairs[places[:-1], chosen[:, :-1], chosen[:, 1:]].sum(axis=1)
    return found / rising[:, -1].sum()


def _ways(node: int = 0) -> list[list[int]]:
    """The edges of each way to the last node."""
    if node == _EDGES[-1][1]:
        return [[]]
    return [[index, *rest] for index, (begin, end) in enumerate(_EDGES) if begin == node for rest in _ways(end)]


# the value of each architecture, positions, candidates at each
TABLES: Mapping[str, tuple[Callable[[Chosen, np.random.Generator], Floats], int, int]] = {
    "depth": (_depth, _POSITIONS, _CANDIDATES),
    "network": (_network, _POSITIONS, _CANDIDATES),
    "plateaus": (_plateaus, _POSITIONS, _CANDIDATES),
    "cells": (_cells, len(_EDGES), _OPERATIONS),
}


@dataclass(frozen=True)
class Run:
    """What a search of a table came to.

    Args:
        seen_at: the trial that evaluated the optimum; infinite where none did.
        regret: see the module.
    """

    seen_at: float
    regret: float


def searched(table: Table, *, trials: int, seed: int) -> Run:
    """Until the optimum is seen, or to the last trial."""
    optimum, best = max(table.values.values()), -float("inf")
    for number, one in enumerate(evaluated(table.space, lambda one: (table.values[one],), trials=trials, seed=seed)):
        best = max(best, *one.values)
        if best == optimum:
            return Run(number + 1, 0.0)
    return Run(float("inf"), 100 * (optimum - best) / (optimum - statistics.median(table.values.values())))


def measured(name: str, *, trials: int, seeds: range) -> dict[str, Any]:
    """Many runs of a kind: the share that saw the optimum, the median trial that did, the mean regret."""
    runs = [searched(table(name, seed), trials=trials, seed=seed) for seed in seeds]
    median = statistics.median(run.seen_at for run in runs)
    return {
        "space": name,
        "optimum_seen": sum(run.seen_at <= trials for run in runs) / len(runs),
        "median_trial": median if median <= trials else None,
        "mean_regret_percent": round(statistics.fmean(run.regret for run in runs), 3),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.catalogue.Script`."""
    parser.add_argument("--trials", type=at_least(2), default=100)
    parser.add_argument("--runs", type=at_least(1), default=100)
    parser.add_argument(
        "--seed", type=int, default=1000, help="of the first run; those below 1000 were used for tuning"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "small_spaces.json")


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    rows = []
    for name in TABLES:
        rows.append(measured(name, trials=options.trials, seeds=range(options.seed, options.seed + options.runs)))
        print(rows[-1], flush=True)
    about = {name: getattr(options, name) for name in ("trials", "runs", "seed")}
    found = {"benchmark": "small_spaces", "machine": machine(), **about, "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
