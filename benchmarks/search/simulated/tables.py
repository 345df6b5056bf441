"""Landscapes of real trainings: a space so small that every network of it was trained, and scored on the way.

    python -m benchmarks search_peers --train fashion_mnist_6k.npz          # 216 networks of `small_conv`, 10 minutes

What a search returns was really trained, and its figure is what that very training came to on the test part. Shares
between two scores are taken between them along the logarithm of the share.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.standalone import (
    MetricsTable,
    Recipe,
    all_architectures,
    default_steps,
    identity,
    interim_name,
    validation_name,
)
from l2l_nas.nas.samplers.base import Genotype
from l2l_nas.runs.locate import load_problem
from l2l_nas.training.problem import Problem

SPACE = "small_conv"
POSITIONS = ("stem", "layer_00", "layer_01", "layer_02", "head")
_METRIC = "accuracy"
# of the steps, after which networks are scored
_SHARES = (0.05, 1 / 15, 0.1, 1 / 9, 0.125, 0.15, 0.2, 0.25, 0.33, 0.4, 0.5, 0.6, 0.7, 0.85)


class TableLandscape(Landscape):
    """Trainings that happened.

    Args:
        table: of all networks of a space, trained alone and scored on the way; the first training of each is taken.
        positions: names of the positions.
    """

    def __init__(self, table: MetricsTable, positions: tuple[str, ...]) -> None:
        columns = zip(*(one.choices for one in table.rows), strict=True)
        self.space = {name: tuple(sorted(set(some))) for name, some in zip(positions, columns, strict=True)}
        steps, interim = table.made_of["recipe"]["steps"], table.made_of["recipe"]["looks"]
        names = [*(interim_name(end, _METRIC) for end in interim), validation_name(_METRIC)]
        self._logs = np.log(np.array([*interim, steps]) / steps)
        first = {architecture.choices: trainings[0] for architecture, trainings in table.rows.items()}
        self._scores = {genotype: [metrics[name] for name in names] for genotype, metrics in first.items()}
        self._truths = {genotype: metrics[_METRIC] for genotype, metrics in first.items()}

    def score(self, genotype: Genotype, share: float) -> float:
        """See `Landscape.score`."""
        return float(np.interp(np.log(share), self._logs, self._scores[genotype]))

    def truth(self, genotype: Genotype) -> float:
        """See `Landscape.truth`."""
        return self._truths[genotype]


def train(data: str, path: Path, *, tick: Callable[[], None] = lambda: None) -> None:
    """Train all networks of `small_conv` that a table lacks, each once.

    Args:
        data: as data.source.
        tick: called after each.
    """
    problem = load_problem(SPACE, {}, source=data, validation_fraction=0.2, test_fraction=0.2)
    fill(problem, path, steps=default_steps(problem), tick=tick)


def fill(problem: Problem, path: Path, *, steps: int, tick: Callable[[], None]) -> None:
    """The same for any problem with a small space."""
    recipe = Recipe(steps, interim=tuple(sorted({round(share * steps) for share in _SHARES})))
    table = MetricsTable.read(path) if path.exists() else MetricsTable(path, identity(problem, recipe))
    table.fill(problem, recipe, architectures=all_architectures(problem), seeds=1, tick=tick)
