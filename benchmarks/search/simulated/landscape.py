"""Landscapes: what a network would come to, without training it.

[Note: a landscape] Seven numbers of a network decide what a search sees of it: the test accuracy that its trainings
have in the mean, and the validation accuracies on the way, which have the luck of one training besides. They are
correlated, so they are made of seven uncorrelated components: the true columns of the measured networks, whitened from
the test part backwards (a Cholesky factor), so that the first component is the truth and each later one adds what
earlier scores do not share with it. A landscape says what the components of any network of the space are. Two kinds
do: `gaussian.py` and `trees.py`. Both are fitted to the same 100 networks, are drawn anew for each repetition, and
give each network a part of its own beside what the model says.

The covariance of a training's luck is estimated from the two trainings of each network. Accuracies are taken as minus
the logarithm of the error, in which networks differ alike.
"""

from __future__ import annotations

import abc
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks import RESULTS
from l2l_nas.files import read_json
from l2l_nas.nas.samplers.base import Floats, Genotype

TASKS = ("cluttered_digits", "cifar10_5k", "fashion_mnist_6k")
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
COLUMNS = len(SHARES) + 1  # and the test part


def unbent(values: Floats) -> Floats:
    found: Floats = 1 - np.exp(-values)
    return found


@dataclass(frozen=True)
class Measured:
    """Trainings of one task.

    Args:
        task: its name.
        genotypes: candidate names by position.
        curves: of shape [trainings, networks, columns]; NaN where a network was not trained a third time.
    """

    task: str
    genotypes: tuple[tuple[str, ...], ...]
    curves: Floats


def measured(task: str) -> Measured:
    """What `benchmarks/results/landscapes.json` has of a task, a name of `TASKS`."""
    rows = _content()["tasks"][task]
    curves = np.array(list(rows.values()), dtype=np.float64).transpose(1, 0, 2)
    return Measured(task, tuple(tuple(text.split()) for text in rows), curves)


@cache
def _content() -> Any:
    return read_json(RESULTS / "landscapes.json")


Space = Mapping[str, Sequence[str]]
_LOGS = np.log(SHARES)
# from the test part, and the validation part at the end, to its beginning
_ORDER = tuple(reversed(range(COLUMNS)))
_TRAININGS = 2.3  # of a network in the mean


class Landscape(abc.ABC):
    """What networks of a space come to.

    Attributes:
        space: names of candidates by position.
    """

    space: Space

    @abc.abstractmethod
    def score(self, genotype: Genotype, share: float) -> float:
        """The validation accuracy after a share of a whole training; always the same training of a network."""

    @abc.abstractmethod
    def truth(self, genotype: Genotype) -> float:
        """The test accuracy that whole trainings of it have in the mean."""

    def random(self, rng: random.Random) -> Genotype:
        return tuple(rng.choice(list(candidates)) for candidates in self.space.values())


@dataclass(frozen=True)
class Components:
    """Measured networks in whitened components; see [Note: a landscape].

    Args:
        task: its name.
        genotypes: of the networks.
        mean: of the columns, in the order of whitening.
        factor: lower triangular: columns are `mean + factor @ components`.
        luck: a factor of the covariance of a training's luck.
        values: of shape [networks, components].
        noise: by component, how much of its variance over networks is the luck of the trainings it was measured by.
    """

    task: str
    genotypes: tuple[Genotype, ...]
    mean: Floats
    factor: Floats
    luck: Floats
    values: Floats
    noise: Floats


def whitened(found: Measured) -> Components:
    order = list(_ORDER)
    means = np.nanmean(found.curves, axis=0)[:, order]
    center = np.asarray(means.mean(axis=0), dtype=np.float64)
    differences = (found.curves[0] - found.curves[1])[:, order] / np.sqrt(2)
    luck = np.asarray(np.cov(differences.T, bias=True), dtype=np.float64) + 1e-6 * np.eye(COLUMNS)
    sizes, directions = np.linalg.eigh(np.cov(means.T) - luck / _TRAININGS)
    true = (directions * np.maximum(sizes, 1e-4 * sizes.max())) @ directions.T
    factor: Floats = np.linalg.cholesky(true)
    values: Floats = np.linalg.solve(factor, (means - center).T).T
    whitened_luck = np.linalg.solve(factor, np.linalg.solve(factor, luck / _TRAININGS).T).T
    noise: Floats = whitened_luck.diagonal() / values.var(axis=0)
    luck_factor = np.asarray(np.linalg.cholesky(luck), dtype=np.float64)
    return Components(found.task, found.genotypes, center, factor, luck_factor, values, noise)


class CurveLandscape(Landscape):
    """A landscape whose networks have components.

    Args:
        space: candidate names by position.
        components: what it was fitted to.
        repetition: with the network, it decides the network's own part and the luck of its training.
        own: by component, the deviation of a network's own part.
    """

    def __init__(self, space: Space, components: Components, *, repetition: int, own: Floats) -> None:
        self.space = space
        self._components = components
        self._repetition = repetition
        self._own = own
        self._columns: dict[Genotype, tuple[float, Floats]] = {}

    @abc.abstractmethod
    def modelled(self, genotype: Genotype) -> Floats:
        """The components that the model says a network has."""

    def score(self, genotype: Genotype, share: float) -> float:
        return float(np.interp(np.log(share), _LOGS, self._found(genotype)[1]))

    def truth(self, genotype: Genotype) -> float:
        return self._found(genotype)[0]

    def _found(self, genotype: Genotype) -> tuple[float, Floats]:
        if genotype not in self._columns:
            rng = np.random.default_rng([self._repetition, zlib.crc32(" ".join(genotype).encode())])
            found = self._components
            values = self.modelled(genotype) + self._own * rng.standard_normal(COLUMNS)
            true = found.mean + found.factor @ values
            seen = true + found.luck @ rng.standard_normal(COLUMNS)
            self._columns[genotype] = float(unbent(true[0])), unbent(seen[1:][::-1])
        return self._columns[genotype]
