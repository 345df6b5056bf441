"""Landscapes that trees made: no model of any method that is compared had a part in them.

Each component is a few extremely randomised trees (Geurts, Ernst and Wehenkel, 2006; scikit-learn's) over one-hot
choices, each grown to its leaves on a draw with replacement of the measured networks: other networks and other cuts
for each repetition. Their mean is piecewise constant in a few choices at a time. It is scaled to the share of the
variance that choices are taken to explain, and the rest is each network's own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.search.simulated.landscape import Components, CurveLandscape, Space
from l2l_nas.nas.samplers.base import Floats, Genotype
from l2l_nas.nas.samplers.gaussian_process import OneHot

_TREES = 8
_EXPLAINED = 0.8  # of the variance of true components, by choices
_SCALED_BY = 2000  # random networks


class TreeLandscape(CurveLandscape):
    """A draw for a repetition."""

    def __init__(self, space: Space, components: Components, *, repetition: int) -> None:
        true = np.maximum(components.values.var(axis=0) * (1 - components.noise), 0)
        super().__init__(space, components, repetition=repetition, own=np.sqrt((1 - _EXPLAINED) * true))
        self._encoding = OneHot(space)
        seed = zlib.crc32(f"{components.task} {repetition}".encode())
        rng = np.random.default_rng(seed)
        rows = self._encoding.rows(components.genotypes)
        chosen = rng.integers(0, len(rows), len(rows))
        self._trees = ExtraTreesRegressor(n_estimators=_TREES, bootstrap=True, random_state=seed % 2**31)
        self._trees.fit(rows[chosen], components.values[chosen])
        names = [rng.choice(list(candidates), _SCALED_BY) for candidates in space.values()]
        drawn = self._mean([tuple(map(str, one)) for one in zip(*names, strict=True)])
        self._center = drawn.mean(axis=0)
        self._scale = np.sqrt(_EXPLAINED * true) / drawn.std(axis=0)

    def modelled(self, genotype: Genotype) -> Floats:
        scaled: Floats = self._center + (self._mean([genotype])[0] - self._center) * self._scale
        return scaled

    def _mean(self, genotypes: Sequence[Genotype]) -> Floats:
        """Of the trees: what `predict` gives, which takes a millisecond longer to begin."""
        rows = self._encoding.rows(genotypes)
        found: Floats = np.mean([tree.tree_.predict(rows)[..., 0] for tree in self._trees.estimators_], axis=0)
        return found
