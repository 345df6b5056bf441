"""Which landscapes there are, and of which tasks; one is made for each repetition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from benchmarks import RESULTS
from benchmarks.search.simulated.gaussian import GaussianLandscape, Process, fitted
from benchmarks.search.simulated.landscape import Components, Landscape, Space, whitened
from benchmarks.search.simulated.measured import TASKS, measured, unbent
from benchmarks.search.simulated.tables import POSITIONS, SPACE, TableLandscape
from benchmarks.search.simulated.trees import TreeLandscape
from benchmarks.search.standalone import MetricsTable
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered

TABLE = RESULTS / f"trained_{SPACE}_fashion_mnist_6k.json"
# of the space `image_blocks`, whose networks were measured
_POSITIONS = ("stem", "block_0", "block_1", "block_2", "down", "block_3", "block_4", "block_5", "head")


def _gaussian(task: str, repetition: int) -> Landscape:
    found = GaussianLandscape(_space(task), _components(task), _processes(task), repetition=repetition)
    found.memory = memory_without(task)
    return found


def _trees(task: str, repetition: int) -> Landscape:
    found = TreeLandscape(_space(task), _components(task), repetition=repetition)
    found.memory = memory_without(task)
    return found


def _trained(task: str, repetition: int) -> Landscape:
    """The same for all repetitions: methods differ by their own draws alone."""
    return TableLandscape(MetricsTable.read(TABLE), POSITIONS)


# by name: what makes one of a task and a repetition, and the tasks
LANDSCAPES: dict[str, tuple[Callable[[str, int], Landscape], tuple[str, ...]]] = {
    "gaussian": (_gaussian, TASKS),
    "trees": (_trees, TASKS),
    "trained": (_trained, ("small_conv",)),
}


@cache
def memory_without(task: str) -> Memory:
    """What the measured networks came to on the other tasks, on the validation part after whole trainings.

    They are the very networks that landscapes of this task are fitted to, so that such a memory looks a little better
    than one of other networks would.
    """
    return Memory(tuple(_remembered(other) for other in TASKS if other != task))


def _remembered(task: str) -> EarlierTask:
    found = measured(task)
    ends = unbent(found.curves[:2, :, -2]).mean(axis=0)
    networks = tuple(
        Remembered(dict(zip(_POSITIONS, genotype, strict=True)), 1.0, {"accuracy": float(end)})
        for genotype, end in zip(found.genotypes, ends, strict=True)
    )
    return EarlierTask(task, task, networks)


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
