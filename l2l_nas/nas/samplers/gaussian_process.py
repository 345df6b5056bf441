"""A Gaussian process over sequences of choices, which learns how much it matters that two differ in a position.

[Note: lengths] How much it matters that two differ in a position is learned for each of them (automatic relevance
determination: MacKay, 1994; Neal, 1996): the logarithms of the decays and of the noise are where likelihood and priors
together are highest. The priors hold decays together as long as trials are few.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtr

from l2l_nas.nas.samplers.base import Floats, Genotype, Space

Rows = npt.NDArray[np.float32]

# what is believed before any trial of the logarithms of: the decay over positions that all differ, and the variance of
# noise by that of true values. Mean and deviation of each, and bounds; then of a position's decay by the mean one
_DECAY, _DECAY_WITHIN = (np.log(1.2), 1.5), (0.15, 9.6)
_NOISE, _NOISE_WITHIN = (np.log(0.05), 2.0), (0.003, 3.0)
_SPREAD, _SPREAD_WITHIN = 1.0, 4.0
_ITERATIONS = 30
_BELIEF = 1e-3  # how much the mean is believed to be 0, in observations
# by how much of the variance of true values a longer training changes them: 1 is a correlation of 0.7, as the score
# after a tenth of the steps has with that after all of them, among good networks
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

    def rows(self, genotypes: Sequence[Genotype], *, again: bool = False) -> Rows:
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


class PriorMean(Protocol):
    """A prior mean that is a sum of predictions, each with a weight that is solved for; see `prior.py`."""

    def columns(self, genotypes: Sequence[Genotype], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Predictions of shape (genotypes, weights): of what trials show, and of what a longer training shows.

        Args:
            rows: theirs, where they are at hand.
        """

    def solved(self, values: Floats, ones: Floats, columns: Floats, tiny: float) -> tuple[Floats, float]:
        """The weights, and what is to be added to the sum of squares for them."""


class ModelData:
    """What a model is made of: `values` are of mean 0 and deviation 1; `center` and `scale` tell what they were.

    Args:
        prior: the mean of what is modelled, beside a constant; None: a constant alone.

    Attributes:
        common: covariances of what is no part of the true values, but common to some observations.
    """

    common: Floats | float = 0.0

    def __init__(
        self, genotypes: Sequence[Genotype], values: Floats, encoding: OneHot, prior: PriorMean | None = None
    ) -> None:
        self.genotypes = genotypes
        within = raised(values)
        self.center, self.scale = float(within.mean()), float(within.std()) + 1e-12
        self.values: Floats = (within - self.center) / self.scale
        self.encoding = encoding
        self.rows = encoding.rows(genotypes, again=True)
        self.prior = prior
        self.columns = None if prior is None else prior.columns(genotypes, self.rows)

    def near(self, decays: Floats) -> Floats:
        """Covariances of the true values that were observed."""
        return self.alike(self.rows, decays)

    def alike(self, rows: Rows, decays: Floats, others: Rows | None = None) -> Floats:
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

    Attributes:
        factor: Cholesky's, of the covariance of the observations.
    """

    def __init__(self, trials: ModelData, decays: Floats, noise: float) -> None:
        count = len(trials.values)
        self.trials = trials
        self.decays = decays
        self.noise_share = noise
        self._near = trials.near(decays)
        self.factor = np.linalg.cholesky(self._near + trials.common + noise * np.eye(count))
        white = solve_triangular(self.factor, np.stack([trials.values, np.ones(count)], axis=1), lower=True)
        penalty = 0.0
        self.agreement: Floats = np.zeros(0)  # the weights of the prior mean
        if trials.prior is not None:
            assert trials.columns is not None
            columns = solve_triangular(self.factor, trials.columns[0], lower=True)
            self.agreement, penalty = trials.prior.solved(white[:, 0], white[:, 1], columns, _BELIEF)
            white[:, 0] -= columns @ self.agreement
        # a mean and a variance that are a little believed to be 0 and 1
        self._mean = float(white[:, 0] @ white[:, 1] / (white[:, 1] @ white[:, 1] + _BELIEF))
        rest = self._rest = white[:, 0] - self._mean * white[:, 1]
        self._variance = float((rest @ rest + penalty + 1) / (count + 1))
        self._noise = noise * self._variance
        self.weights = solve_triangular(self.factor, rest, lower=True, trans=1)
        # posterior means of the trials themselves
        self.means: Floats = trials.values - noise * self.weights
        self.likelihood = -count / 2 * np.log(self._variance) - float(np.log(np.diag(self.factor)).sum())

    def slopes(self) -> tuple[Floats, float]:
        """By which the likelihood rises with the logarithm of each decay, and with that of the noise."""
        count = len(self.weights)
        inverse = solve_triangular(self.factor, np.eye(count), lower=True)
        inverse = inverse.T @ inverse
        pull = np.outer(self.weights, self.weights) * (count / (count + 1) / self._variance) - inverse
        drawn = pull * self._near
        rows = self.trials.rows
        agreeing = np.bincount(self.trials.encoding.positions, ((drawn @ rows) * rows).sum(axis=0))
        return self.decays * (agreeing - drawn.sum()) / 2, float(self.noise_share * np.trace(pull) / 2)

    def left_out(self, groups: Sequence[npt.NDArray[np.int64]]) -> Floats:
        """What is predicted of each trial by those of other groups."""
        inverse = solve_triangular(self.factor, np.eye(len(self.weights)), lower=True)
        inverse = inverse.T @ inverse
        found = self.trials.values.copy()
        for group in groups:
            found[group] -= np.linalg.solve(inverse[np.ix_(group, group)], self.weights[group])
        return found

    def neighbours(self, center: int) -> Iterator[Genotype]:
        """All genotypes that differ from a trial in one position, the best posterior mean first."""
        trials, encoding = self.trials, self.trials.encoding
        by_value = (self.weights * self._near[center]) @ trials.rows
        own = trials.rows[center] > 0
        # a trial that has the new value gets nearer by one position, one that had the old value gets farther
        steps = self.decays[encoding.positions]
        old = by_value[own][encoding.positions]
        means = np.where(own, -np.inf, np.expm1(steps) * by_value + np.expm1(-steps) * old)
        genotype = trials.genotypes[center]

        def changed(column: int) -> Genotype:
            position = int(encoding.positions[column])
            return (*genotype[:position], encoding.values[column], *genotype[position + 1 :])

        if trials.prior is not None:
            means += trials.prior.columns([changed(column) for column in range(len(means))])[0] @ self.agreement
        for column in np.argsort(-means, kind="stable")[: len(means) - len(genotype)]:
            yield changed(column)

    def posterior(self, candidates: Sequence[Genotype], *, further: float = 0.0) -> tuple[Floats, Floats]:
        """Means and variances of the true values; with `further`, as in `draws`, of what a longer training finds."""
        means, known, _ = self._conditional(candidates, is_longer=further > 0)
        variances: Floats = self._variance * np.maximum(1 - (known * known).sum(axis=0), 1e-9)
        return means, variances + further * self._variance if further else variances

    def _conditional(self, genotypes: Sequence[Genotype], *, is_longer: bool) -> tuple[Floats, Floats, Rows]:
        """Posterior means, whitened covariances with the trials of shape (trials, genotypes), and rows.

        Args:
            is_longer: whether the prior mean is that of what a longer training finds.
        """
        trials = self.trials
        rows = trials.encoding.rows(genotypes)
        near = trials.alike(rows, self.decays)
        known = solve_triangular(self.factor, near.T, lower=True, check_finite=False)
        means: Floats = self._mean + near @ self.weights
        if trials.prior is not None:
            means += trials.prior.columns(genotypes, rows)[is_longer] @ self.agreement
        return means, known, rows

    def draws(self, genotypes: Sequence[Genotype], further: float, rng: np.random.Generator) -> Floats:
        """Of shape (genotypes, draws), from the joint posterior of what a longer training would find.

        Args:
            further: variance of what it changes, by that of the true values that are seen; it changes those that are
                alike alike.
        """
        means, known, rows = self._conditional(genotypes, is_longer=further > 0)
        spread = (1 + further) * self.trials.alike(rows, self.decays, rows) - known.T @ known
        factor = np.linalg.cholesky(self._variance * (spread + 1e-6 * np.eye(len(rows))))
        found: Floats = means[:, None] + factor @ rng.standard_normal((len(rows), DRAWS))
        return found

    def race(self, candidates: Sequence[Genotype], rng: random.Random) -> Floats:
        """Expected gain of each over the best trial if both are trained further, whichever of the trials that is.

        It is 0 of those that are not among the likeliest: they are not examined.
        """
        ends = self.means
        if self.trials.columns is not None:
            early, late = self.trials.columns
            ends = ends + (late - early) @ self.agreement
        best = np.argsort(-ends, kind="stable")[:_BEST]
        means, variances = self.posterior(candidates, further=FURTHER)
        likely = np.argsort(-means - np.sqrt(variances), kind="stable")[:_NEXT]
        together = [*(self.trials.genotypes[int(one)] for one in best), *(candidates[int(one)] for one in likely)]
        drawn = self.draws(together, FURTHER, np.random.default_rng(rng.getrandbits(32)))
        gains = np.zeros(len(candidates))
        gains[likely] = np.maximum(drawn[len(best) :] - drawn[: len(best)].max(axis=0), 0).mean(axis=1)
        return gains

    def promise(self, candidates: Sequence[Genotype]) -> Floats:
        """Expected gain of each; see `HammingGP`."""
        return self._gains(*self.posterior(candidates))

    def promise_of_all(self, space: WholeSpace) -> Floats:
        """Of each genotype of a space; in single precision, and without what earlier tasks say."""
        known = space.known(self)
        means = self._mean + self._rest.astype(np.float32) @ known
        return self._gains(means, self._variance * np.maximum(1 - np.einsum("ij,ij->j", known, known), 1e-9))

    def _gains(self, means: Floats, variances: Floats) -> Floats:
        values = self.trials.values
        best = int(np.argmax(values))
        deviations = np.sqrt(variances + self._noise)
        above = (means - values[best]) / deviations
        density = np.exp(-above * above / 2) / np.sqrt(2 * np.pi)
        gains: Floats = (means - self.means[best]) * ndtr(above) + variances / deviations * density
        return gains


class WholeSpace:
    """All genotypes of a small space, and their covariances with the trials of a model.

    While a model's setting stays, a trial more is a row more: a proposal among 15,625 after 100 takes 7 ms, not 18.
    """

    def __init__(self, encoding: OneHot) -> None:
        self.genotypes: list[Genotype] = list(itertools.product(*encoding.space.values()))
        self._rows = encoding.rows(self.genotypes)
        self._setting: Floats = np.zeros(0)
        self._trials: Sequence[Genotype] = ()
        self._known: Rows = np.zeros((0, len(self.genotypes)), dtype=np.float32)

    def known(self, model: Model) -> Rows:
        """Whitened, of shape (trials, genotypes)."""
        trials, setting = model.trials, np.append(model.decays, model.noise_share)
        both = zip(self._trials, trials.genotypes, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
        if not np.array_equal(setting, self._setting):
            same = 0
        decays = model.decays[trials.encoding.positions]
        new = (trials.rows[same:] * decays).astype(np.float32) @ self._rows.T
        new = np.exp(new - np.float32(model.decays.sum()))
        factor = model.factor[same:]
        new -= factor[:, :same].astype(np.float32) @ self._known[:same]
        new = solve_triangular(factor[:, same:], np.eye(len(new)), lower=True).astype(np.float32) @ new
        self._setting, self._trials = setting, trials.genotypes
        self._known = np.concatenate([self._known[:same], new])
        return self._known


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


def raised(values: Floats) -> Floats:
    """What is far below the median is raised: how bad the bad are matters to nobody."""
    middle = np.median(values)
    found: Floats = np.maximum(values, middle - _REACH * (values.max() - middle))
    return found
