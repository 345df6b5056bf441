"""Landscapes that a Gaussian process over choices made: of the very family of the race's own model, which favours it.

Each component is one draw from the posterior, given the measured networks, of a process whose covariance falls with
each position that differs (`l2l_nas/nas/samplers/gaussian_process.py`; its decays and noise are fitted by the same
code). A draw over 20 million networks is made of random features: where a feature reads a position, with a chance of
1 - exp(-decay), each candidate turns its phase by a random angle, so that two networks share it only where they agree
on all that it reads. The features' cosines then have that covariance (as random Fourier features: Rahimi and Recht,
2007), and Matheron's rule makes a posterior draw of it: the prior draw plus the model of what the measured networks
are off it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.search.simulated.landscape import Components, CurveLandscape, Space
from l2l_nas.nas.samplers.base import Floats, Genotype
from l2l_nas.nas.samplers.gaussian_process import Fit, ModelData, OneHot

_FEATURES = 600
_ALL = 10**6  # trials: the fit looks for the best setting
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Process:
    """The covariance of a component.

    Args:
        decays: by position, minus the logarithm of the covariance of two that differ there.
        noise: variance of what the model does not explain, by that of what it does.
    """

    decays: Floats
    noise: float


def fitted(space: Space, components: Components) -> list[Process]:
    encoding = OneHot(space)
    found = []
    for values in components.values.T:
        model = Fit().model(ModelData(components.genotypes, values, encoding), _ALL)
        found.append(Process(model.decays, model.noise_share))
    return found


class _Draw:
    """One component: a draw from the posterior.

    Args:
        known: codes of the measured networks.
        values: what they are.
    """

    def __init__(
        self, process: Process, known: Codes, values: Floats, sizes: Sequence[int], rng: np.random.Generator
    ) -> None:
        self._decays, self._known = process.decays, known
        self._variance = 1 / (1 + process.noise)
        reads = [rng.random(_FEATURES) < 1 - np.exp(-decay) for decay in process.decays]
        turns = [rng.uniform(0, 2 * np.pi, (size, _FEATURES)) for size in sizes]
        self._turns = [turn * read for turn, read in zip(turns, reads, strict=True)]
        self._phases = rng.uniform(0, 2 * np.pi, _FEATURES)
        self._weights = rng.standard_normal(_FEATURES) * np.sqrt(2 * self._variance / _FEATURES)
        noise = process.noise * self._variance + 1e-6
        off = values - self._prior(known) - np.sqrt(noise) * rng.standard_normal(len(known))
        near = self._variance * self._alike(known)
        self._moved = np.linalg.solve(near + noise * np.eye(len(known)), off)

    def at(self, codes: Codes) -> Floats:
        found: Floats = self._prior(codes) + self._variance * self._alike(codes) @ self._moved
        return found

    def _prior(self, codes: Codes) -> Floats:
        phases = self._phases + sum(turn[column] for turn, column in zip(self._turns, codes.T, strict=True))
        found: Floats = np.cos(phases) @ self._weights
        return found

    def _alike(self, codes: Codes) -> Floats:
        found: Floats = np.exp(-((codes[:, None, :] != self._known[None]) * self._decays).sum(axis=-1))
        return found


class GaussianLandscape(CurveLandscape):
    """A draw for a repetition.

    Args:
        processes: of the components; see `fitted`.
    """

    def __init__(self, space: Space, components: Components, processes: Sequence[Process], *, repetition: int) -> None:
        # what the model leaves unexplained is the luck of the measured trainings, and a network's own
        rest = [process.noise / (1 + process.noise) for process in processes]
        own = np.sqrt(np.maximum(np.array(rest) - components.noise, 0))
        super().__init__(space, components, repetition=repetition, own=own)
        rng = np.random.default_rng([repetition, zlib.crc32(components.task.encode())])
        self._places = [{name: place for place, name in enumerate(names)} for names in space.values()]
        known, sizes = self._codes(components.genotypes), [len(names) for names in space.values()]
        self._draws = [
            _Draw(process, known, values, sizes, rng)
            for process, values in zip(processes, components.values.T, strict=True)
        ]

    def modelled(self, genotype: Genotype) -> Floats:
        codes = self._codes([genotype])
        return np.array([draw.at(codes)[0] for draw in self._draws])

    def _codes(self, genotypes: Sequence[Genotype]) -> Codes:
        return np.array([[places[n] for places, n in zip(self._places, one, strict=True)] for one in genotypes])
