"""Which landscapes there are, and of which tasks; one is made for each repetition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from benchmarks import RESULTS
from benchmarks.search.simulated.gaussian import GaussianLandscape, Process, fitted
from benchmarks.search.simulated.landscape import TASKS, Components, Landscape, Space, measured, whitened
from benchmarks.search.simulated.trees import TreeLandscape
from l2l_nas.files import read_json
from l2l_nas.nas.samplers.base import Genotype

TABLE = RESULTS / "trained_small_conv_fashion_mnist_6k.json"  # all 216 networks of `small_conv`, each trained alone
_SMALL = ("stem", "layer_00", "layer_01", "layer_02", "head")


class TableLandscape(Landscape):
    """Trainings that happened: a space so small that every network of it was trained, and scored on the way.

    Shares between two scores are taken between them along the logarithm of the share.
    """

    def __init__(self) -> None:
        content = read_json(TABLE)
        recipe = content["made_of"]["recipe"]
        names = [*(f"accuracy after {end}" for end in recipe["looks"]), "validation accuracy"]
        self._logs = np.log(np.array([*recipe["looks"], recipe["steps"]]) / recipe["steps"])
        rows = {
            tuple(key.split()): dict(zip(content["metrics"], trainings[0], strict=True))
            for key, trainings in content["rows"].items()
        }
        columns = zip(*rows, strict=True)
        self.space = {name: tuple(sorted(set(some))) for name, some in zip(_SMALL, columns, strict=True)}
        self._scores = {genotype: [metrics[name] for name in names] for genotype, metrics in rows.items()}
        self._truths = {genotype: metrics["accuracy"] for genotype, metrics in rows.items()}

    def score(self, genotype: Genotype, share: float) -> float:
        return float(np.interp(np.log(share), self._logs, self._scores[genotype]))

    def truth(self, genotype: Genotype) -> float:
        return float(self._truths[genotype])


# of the space `image_blocks`, whose networks were measured
_POSITIONS = ("stem", "block_0", "block_1", "block_2", "down", "block_3", "block_4", "block_5", "head")


def _gaussian(task: str, repetition: int) -> Landscape:
    return GaussianLandscape(_space(task), _components(task), _processes(task), repetition=repetition)


def _trees(task: str, repetition: int) -> Landscape:
    return TreeLandscape(_space(task), _components(task), repetition=repetition)


def _trained(task: str, repetition: int) -> Landscape:
    """The same for all repetitions: methods differ by their own draws alone."""
    return TableLandscape()


# by name: what makes one of a task and a repetition, and the tasks
LANDSCAPES: dict[str, tuple[Callable[[str, int], Landscape], tuple[str, ...]]] = {
    "gaussian": (_gaussian, TASKS),
    "trees": (_trees, TASKS),
    "trained": (_trained, ("small_conv",)),
}


@cache
def _components(task: str) -> Components:
    return whitened(measured(task))


@cache
def _space(task: str) -> Space:
    """All candidates that measured networks have, which is all there are."""
    columns = zip(*_components(task).genotypes, strict=True)
    return {name: tuple(sorted(set(some))) for name, some in zip(_POSITIONS, columns, strict=True)}


@cache
def _processes(task: str) -> list[Process]:
    return fitted(_space(task), _components(task))
