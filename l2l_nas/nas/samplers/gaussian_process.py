"""A Gaussian process over sequences of choices, which learns how much it matters that two differ in a position.

[Note: lengths] How much it matters that two differ in a position is learned for each of them (automatic relevance
determination: MacKay, 1994; Neal, 1996): the logarithms of the decays and of the noise are where likelihood and priors
together are highest. The priors hold decays together as long as trials are few.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

from l2l_nas.nas.samplers.base import Floats, Genotype, Space

# what is believed before any trial of the logarithms of: the decay over positions that all differ, and the variance of
# noise by that of true values. Mean and deviation of each, and bounds; then of a position's decay by the mean one
_DECAY, _DECAY_WITHIN = (np.log(1.2), 1.5), (0.15, 9.6)
_NOISE, _NOISE_WITHIN = (np.log(0.05), 2.0), (0.003, 3.0)
_SPREAD, _SPREAD_WITHIN = 1.0, 4.0
_ITERATIONS = 30
# by how much of the variance of true values a longer training changes them: 1 is a correlation of 0.7, as the score
# after a tenth of the steps has with that after all of them, among good networks (docs/log.md)
FURTHER = 1.0
DRAWS = 512
# in a race what comes of so many of the best trials is drawn, and of so many of what may come next
_BEST, _NEXT = 40, 200
# below the median by more than so many times what the best is above it, a value counts as that
_REACH = 3


class OneHot:
    """Genotypes as rows of zeros and a one for each position's value: two rows' product counts where they agree."""

    def __init__(self, space: Space) -> None:
        self.space = space
        values = [(position, value) for position, some in enumerate(space.values()) for value in some]
        self.positions = np.array([position for position, _ in values], dtype=np.int64)
        self.values = [value for _, value in values]
        columns = itertools.count()
        self._columns = [{value: next(columns) for value in some} for some in space.values()]
        self._known: dict[Genotype, list[int]] = {}

    def rows(self, genotypes: Sequence[Genotype], *, again: bool = False) -> npt.NDArray[np.float32]:
        """Of shape (genotypes, all values of all positions).

        Args:
            again: whether they will be asked for again, as trials are at every proposal.
        """
        found = [self._known.get(genotype) or self._columns_of(genotype) for genotype in genotypes]
        if again:
            self._known.update(zip(genotypes, found, strict=True))
        rows = np.zeros((len(genotypes), len(self.values)), dtype=np.float32)
        np.put_along_axis(rows, np.array(found), 1, axis=1)
        return rows

    def _columns_of(self, genotype: Genotype) -> list[int]:
        return [columns[value] for columns, value in zip(self._columns, genotype, strict=True)]


class ModelData:
    """What a model is made of: `values` are of mean 0 and deviation 1; `center` and `scale` tell what they were."""

    def __init__(self, genotypes: Sequence[Genotype], values: Floats, encoding: OneHot) -> None:
        self.genotypes = genotypes
        raised = _raised(values)
        self.center, self.scale = float(raised.mean()), float(raised.std()) + 1e-12
        self.values: Floats = (raised - self.center) / self.scale
        self.encoding = encoding
        self.rows = encoding.rows(genotypes, again=True)

    def alike(
        self, rows: npt.NDArray[np.float32], decays: Floats, others: npt.NDArray[np.float32] | None = None
    ) -> Floats:
        """Covariances of shape (rows, trials), or (rows, others): of two that differ nowhere 1.

        Args:
            decays: one for each position.
        """
        agreeing = (rows * decays[self.encoding.positions]) @ (self.rows if others is None else others).T
        found: Floats = np.exp(agreeing - decays.sum())
        return found


class Model:
    """A Gaussian process with constant mean; `noise` is a share of the variance, which is solved for like the mean.

    Args:
        trials: it is made of.
        decays: minus the logarithm of the covariance of two that differ in one position, for each of them.
        noise: variance of an observation by that of the true values.
    """

    def __init__(self, trials: ModelData, decays: Floats, noise: float) -> None:
        count = len(trials.values)
        self.trials = trials
        self._decays = decays
        self._share = noise
        self._near = trials.alike(trials.rows, decays)
        self._factor = np.linalg.cholesky(self._near + noise * np.eye(count))
        white = solve_triangular(self._factor, np.stack([trials.values, np.ones(count)], axis=1), lower=True)
        # a mean and a variance that are a little believed to be 0 and 1
        self._mean = float(white[:, 0] @ white[:, 1] / (white[:, 1] @ white[:, 1] + 1e-3))
        rest = white[:, 0] - self._mean * white[:, 1]
        self._variance = float((rest @ rest + 1) / (count + 1))
        self._noise = noise * self._variance
        self._weights = solve_triangular(self._factor, rest, lower=True, trans=1)
        # posterior means of the trials themselves
        self.means: Floats = trials.values - noise * self._weights
        self.likelihood = -count / 2 * np.log(self._variance) - float(np.log(np.diag(self._factor)).sum())

    def slopes(self) -> tuple[Floats, float]:
        """By which the likelihood rises with the logarithm of each decay, and with that of the noise."""
        count = len(self._weights)
        inverse = solve_triangular(self._factor, np.eye(count), lower=True)
        inverse = inverse.T @ inverse
        pull = np.outer(self._weights, self._weights) * (count / (count + 1) / self._variance) - inverse
        drawn = pull * self._near
        rows = self.trials.rows
        agreeing = np.bincount(self.trials.encoding.positions, ((drawn @ rows) * rows).sum(axis=0))
        return self._decays * (agreeing - drawn.sum()) / 2, float(self._share * np.trace(pull) / 2)

    def neighbours(self, center: int) -> Iterator[Genotype]:
        """All genotypes that differ from a trial in one position, the best posterior mean first."""
        trials, encoding = self.trials, self.trials.encoding
        by_value = (self._weights * self._near[center]) @ trials.rows
        own = trials.rows[center] > 0
        # a trial that has the new value gets nearer by one position, one that had the old value gets farther
        steps = self._decays[encoding.positions]
        old = by_value[own][encoding.positions]
        means = np.where(own, -np.inf, np.expm1(steps) * by_value + np.expm1(-steps) * old)
        genotype = trials.genotypes[center]
        for column in np.argsort(-means, kind="stable")[: len(means) - len(genotype)]:
            position = int(encoding.positions[column])
            yield (*genotype[:position], encoding.values[column], *genotype[position + 1 :])

    def posterior(self, candidates: Sequence[Genotype]) -> tuple[Floats, Floats]:
        """Means and variances of the true values."""
        trials = self.trials
        near = trials.alike(trials.encoding.rows(candidates), self._decays)
        known = solve_triangular(self._factor, near.T, lower=True, check_finite=False)
        means: Floats = self._mean + near @ self._weights
        variances: Floats = self._variance * np.maximum(1 - (known * known).sum(axis=0), 1e-9)
        return means, variances

    def draws(self, genotypes: Sequence[Genotype], further: float, rng: np.random.Generator) -> Floats:
        """Of shape (genotypes, draws), from the joint posterior of what a longer training would find.

        Args:
            further: variance of what it changes, by that of the true values that are seen; it changes those that are
                alike alike.
        """
        rows = self.trials.encoding.rows(genotypes)
        means, _ = self.posterior(genotypes)
        known = solve_triangular(self._factor, self.trials.alike(rows, self._decays).T, lower=True, check_finite=False)
        spread = (1 + further) * self.trials.alike(rows, self._decays, rows) - known.T @ known
        factor = np.linalg.cholesky(self._variance * (spread + 1e-6 * np.eye(len(rows))))
        found: Floats = means[:, None] + factor @ rng.standard_normal((len(rows), DRAWS))
        return found

    def race(self, candidates: Sequence[Genotype], rng: random.Random) -> Floats:
        """Expected gain of each over the best trial if both are trained further, whichever of the trials that is.

        It is 0 of those that are not among the likeliest: they are not examined.
        """
        best = np.argsort(-self.means, kind="stable")[:_BEST]
        means, variances = self.posterior(candidates)
        likely = np.argsort(-means - np.sqrt(variances + FURTHER * self._variance), kind="stable")[:_NEXT]
        together = [*(self.trials.genotypes[int(one)] for one in best), *(candidates[int(one)] for one in likely)]
        drawn = self.draws(together, FURTHER, np.random.default_rng(rng.getrandbits(32)))
        gains = np.zeros(len(candidates))
        gains[likely] = np.maximum(drawn[len(best) :] - drawn[: len(best)].max(axis=0), 0).mean(axis=1)
        return gains

    def promise(self, candidates: Sequence[Genotype]) -> Floats:
        """Expected gain of each; see `HammingGP`."""
        trials = self.trials
        means, variances = self.posterior(candidates)
        best = int(np.argmax(trials.values))
        deviations = np.sqrt(variances + self._noise)
        above = (means - trials.values[best]) / deviations
        density = np.exp(-above * above / 2) / np.sqrt(2 * np.pi)
        gains: Floats = (means - self.means[best]) * ndtr(above) + variances / deviations * density
        return gains


class Fit:
    """Decays and noise that suit the trials best; looking for better ones costs dozens of models, so it is rare."""

    def __init__(self) -> None:
        self._setting: Floats | None = None
        self._again = 0

    def model(self, trials: ModelData, count: int) -> Model:
        """Of these trials, with the best setting on the way uphill from the last one.

        Args:
            count: of trials in all, by which it is decided whether to search for a better setting.
        """
        positions = len(trials.encoding.space)
        if self._setting is None:
            self._setting = np.array([_DECAY[0], *[0.0] * positions, _NOISE[0]])
        if count >= self._again:
            self._again = max(count + 5, count * 5 // 4)
            within = [np.log(_DECAY_WITHIN), *[(-_SPREAD_WITHIN, _SPREAD_WITHIN)] * positions, np.log(_NOISE_WITHIN)]
            found = minimize(
                _unlikely, self._setting, trials, jac=True, method="L-BFGS-B", bounds=within,
                options={"maxiter": _ITERATIONS},
            )  # fmt: skip
            self._setting = np.asarray(found.x)
        return _at(self._setting, trials)


def _at(setting: Floats, trials: ModelData) -> Model:
    """The model of a setting: logarithms of a decay in the mean, of each position's by it, and of the noise."""
    decays = np.exp(setting[0] + setting[1:-1]) / (len(setting) - 2)
    return Model(trials, decays, float(np.exp(setting[-1])))


def _unlikely(setting: Floats, trials: ModelData) -> tuple[float, Floats]:
    """Minus the logarithm of likelihood and priors of a setting, and its gradient."""
    model = _at(setting, trials)
    decays, noise = model.slopes()
    middle = np.array([_DECAY[0], *[0.0] * (len(setting) - 2), _NOISE[0]])
    width = np.array([_DECAY[1], *[_SPREAD] * (len(setting) - 2), _NOISE[1]])
    off = (setting - middle) / width
    slopes = np.array([decays.sum(), *decays, noise])
    return float(off @ off / 2) - model.likelihood, off / width - slopes


def _raised(values: Floats) -> Floats:
    """What is far below the median is raised: how bad the bad are matters to nobody."""
    middle = np.median(values)
    raised: Floats = np.maximum(values, middle - _REACH * (values.max() - middle))
    return raised
