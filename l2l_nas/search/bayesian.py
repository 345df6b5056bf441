"""Bayesian optimization for sequences of choices: a Gaussian process that knows how many positions of two differ.

[Note: why not Optuna's] Its Gaussian process fits a length to each position and climbs by gradients: a second and more
a proposal after 200 trials of 24 positions. One length for all of them, a small grid for it and for the noise, and
neighbours of the best as what may come next take a few milliseconds, and find better (docs/benchmarks.md).

[Note: known costs] Where all goals but one are costs that are known of every architecture, such as its parameters, only
that one is modelled. The one number that is made of all goals then has its costs exact and the posterior of the learned
value; what is looked for is its expected gain over the best posterior mean among the trials, taken by Gauss-Hermite
quadrature. Learning the number itself instead would have to find out the costs from trials, anew for other weights.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.special import ndtr

from l2l_nas.search.genotypes import (
    Genotype,
    GenotypeSampler,
    History,
    Scored,
    Space,
    first_allowed,
    neighbours,
    random_unseen,
)

Floats = npt.NDArray[np.float64]

# the settings tried: minus the logarithm of the covariance of two that differ everywhere; variance of noise by signal's
_DECAYS = (0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 9.6)
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# trials a model is made of at most: 20 for each position within these bounds, half of them the best, half the latest
_BY_POSITION, _FEWEST, _MOST = 20, 150, 300
# what may come next: of so many of the best so many neighbours each; mutants of twice as many; random ones
_CENTERS, _NEIGHBOURS, _MUTANTS, _RANDOM = 5, 24, 30, 30
# and where costs are known: so many neighbours of each, mutants, crosses of two of the best, random ones
_NEAR, _FAR, _CROSSED, _ANY = 150, 60, 60, 20
# below the median by more than so many times what the best is above it, a value counts as that
_REACH = 3
# of all goals in the one number that is made of them: rho of ParEGO
_SUM = 0.05
# where an expectation over a value that is not known is taken, and what each counts
_NODES, _COUNTS = np.polynomial.hermite_e.hermegauss(12)


class HammingGP(GenotypeSampler):
    """Bayesian optimization with a Gaussian process of covariance exp(-decay * share of positions that differ).

    The first `start` trials are random. From then on comes the unseen genotype that promises most, among neighbours of
    those with the best posterior mean, mutants of them, and random ones. What it promises is the expected gain in true
    value if in the end the best *observed* trial is taken: E[f - f_best if y > y_best], for a true value f seen as y
    with noise, and the posterior mean f_best of the best observed trial. Decay and noise are those with the largest
    marginal likelihood; mean and scale are solved for (Jones, Schonlau and Welch, 1998).

    One model alone stays on the first hill it finds: on NAS-Bench-201 in one run of ten. So `climbs` models take turns,
    none knowing of the others' trials, until there are `merge` trials; from then on one model knows all of them. With
    several goals each proposal draws weights by which one number is made of them (ParEGO: Knowles, 2006), and goals
    that are known costs need no model: see [Note: known costs].

    Args:
        seed: of all that is random.
        start: random trials of each climb.
        climbs: how many.
        merge: trials after which they are one.
    """

    def __init__(self, *, seed: int, start: int = 6, climbs: int = 1, merge: int = 0) -> None:
        super().__init__(seed=seed)
        self._start = start
        self._climbs = climbs
        self._merge = merge
        self._encoding = _Encoding({})
        self._fits = [_Fit() for _ in range(climbs + 1)]

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        """See `GenotypeSampler.propose`."""
        if history.known and history.scored and len(history.known) == len(history.scored[0].values) - 1:
            return self._propose_at_known_costs(space, history, rng)
        known, turn = history.scored, self._climbs
        if len(known) < max(self._merge, self._start * self._climbs):
            turn = len(known) % self._climbs
            known = known[turn :: self._climbs]
            if len(known) < self._start:
                return random_unseen(space, history, rng)
        trials = self._trials(known, _one_number(known, rng), space)
        model = self._fits[turn].model(trials, len(known))
        candidates = self._candidates(model, history, rng)
        if not candidates:
            return random_unseen(space, history, rng)
        return _most_promising(candidates, model.promise(candidates), history) or random_unseen(space, history, rng)

    def _propose_at_known_costs(self, space: Space, history: History, rng: random.Random) -> Genotype:
        """One goal is to be learned, the others are known; see [Note: known costs]."""
        scored = history.scored
        if len(scored) < self._start:
            return random_unseen(space, history, rng)
        learned = next(place for place in range(len(scored[0].values)) if place not in history.known)
        values = np.array([one.values[learned] for one in scored], dtype=np.float64)
        trials = self._trials(scored, values, space)
        model = self._fits[0].model(trials, len(scored))
        weighed = _Weighed(trials.values, _costs(trials.genotypes, history), rng)
        numbers = weighed.number(model.means, weighed.costs)
        candidates = _around_the_best(trials.genotypes, np.argsort(-numbers, kind="stable"), space, history, rng)
        if not candidates:
            return random_unseen(space, history, rng)
        means, variances = model.posterior(candidates)
        costs = _costs(candidates, history)
        found = weighed.number(means[:, None] + np.sqrt(variances)[:, None] * _NODES, costs[:, None])
        gains = (np.maximum(found - numbers.max(), 0) * _COUNTS).sum(axis=1)
        if not gains.any():  # nothing better is within reach: what comes nearest
            gains = (found * _COUNTS).sum(axis=1)
        return _most_promising(candidates, gains, history) or random_unseen(space, history, rng)

    def _trials(self, scored: Sequence[Scored], values: Floats, space: Space) -> _Trials:
        """Those that a model is made of, of some with a value each; of another space than before all begins anew."""
        if self._encoding.space != space:
            self._encoding = _Encoding(space)
            self._fits = [_Fit() for _ in self._fits]
        kept = _kept(values, max(_FEWEST, min(_MOST, _BY_POSITION * len(space))))
        return _Trials([scored[index].genotype for index in kept], values[kept], self._encoding)

    def _candidates(self, model: _Model, history: History, rng: random.Random) -> list[Genotype]:
        """Unseen genotypes, each once."""
        space, genotypes = self._encoding.space, model.trials.genotypes
        best = [int(index) for index in np.argsort(-model.means, kind="stable")]
        found: dict[Genotype, None] = {}
        for center in best[:_CENTERS]:
            unseen = (one for one in model.neighbours(center) if one not in history.seen)
            found.update(dict.fromkeys(itertools.islice(unseen, _NEIGHBOURS)))
        choices = list(space.values())
        for _ in range(_MUTANTS):
            mutant = list(genotypes[rng.choice(best[: 2 * _CENTERS])])
            for index in rng.choices(range(len(choices)), k=rng.randint(1, 3)):
                mutant[index] = rng.choice(choices[index])
            found[tuple(mutant)] = None
        found.update(dict.fromkeys(random_unseen(space, history, rng) for _ in range(_RANDOM)))
        return [one for one in found if one not in history.seen]


class _Encoding:
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


class _Trials:
    """What a model is made of; `differing` is the share of positions in which two of them differ."""

    def __init__(self, genotypes: Sequence[Genotype], values: Floats, encoding: _Encoding) -> None:
        self.genotypes = genotypes
        self.values = _standard(values)
        self.encoding = encoding
        self.rows = encoding.rows(genotypes, again=True)
        self.differing = self.differing_from(self.rows)

    def differing_from(self, rows: npt.NDArray[np.float32]) -> Floats:
        """Of shape (rows, trials)."""
        return 1 - (rows @ self.rows.T).astype(np.float64) / len(self.encoding.space)


class _Model:
    """A Gaussian process with constant mean; `noise` is a share of the variance, which is solved for like the mean.

    Args:
        trials: it is made of.
        decay: of the covariance, over positions that all differ.
        noise: variance of an observation by that of the true values.
    """

    def __init__(self, trials: _Trials, decay: float, noise: float) -> None:
        count = len(trials.values)
        self.trials = trials
        self._decay = decay
        self._factor = np.linalg.cholesky(np.exp(-decay * trials.differing) + noise * np.eye(count))
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

    def neighbours(self, center: int) -> Iterator[Genotype]:
        """All genotypes that differ from a trial in one position, the best posterior mean first."""
        trials, encoding = self.trials, self.trials.encoding
        near = self._weights * np.exp(-self._decay * trials.differing[center])
        by_value = near @ trials.rows
        own = trials.rows[center] > 0
        # a trial that has the new value gets nearer by one position, one that had the old value gets farther
        step = self._decay / len(encoding.space)
        old = by_value[own][encoding.positions]
        means = np.where(own, -np.inf, np.expm1(step) * by_value + np.expm1(-step) * old)
        genotype = trials.genotypes[center]
        for column in np.argsort(-means, kind="stable")[: len(means) - len(genotype)]:
            position = int(encoding.positions[column])
            yield (*genotype[:position], encoding.values[column], *genotype[position + 1 :])

    def posterior(self, candidates: Sequence[Genotype]) -> tuple[Floats, Floats]:
        """Means and variances of the true values."""
        trials = self.trials
        near = np.exp(-self._decay * trials.differing_from(trials.encoding.rows(candidates)))
        known = solve_triangular(self._factor, near.T, lower=True, check_finite=False)
        means: Floats = self._mean + near @ self._weights
        variances: Floats = self._variance * np.maximum(1 - (known * known).sum(axis=0), 1e-9)
        return means, variances

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


class _Weighed:
    """One number of a learned value and known costs, by random weights; more is better. See [Note: known costs].

    Args:
        values: of trials, standardized.
        costs: of the same [trials, costs], more is better.
        rng: of the weights.

    Attributes:
        costs: these.
    """

    def __init__(self, values: Floats, costs: Floats, rng: random.Random) -> None:
        self.costs = costs
        draws = np.array([rng.expovariate(1) for _ in range(1 + costs.shape[1])])
        self._weights: Floats = draws / draws.sum()
        self._highest = np.array([values.max(), *costs.max(axis=0)])
        self._range = np.maximum(self._highest - np.array([values.min(), *costs.min(axis=0)]), 1e-12)

    def number(self, values: Floats, costs: Floats) -> Floats:
        """Of each value, with the costs of the same place."""
        wide = np.broadcast_to(costs, (*values.shape, costs.shape[-1]))
        goals = np.concatenate([values[..., None], wide], axis=-1)
        return _less(self._weights * (self._highest - goals) / self._range)


def _less(lacking: Floats) -> Floats:
    """Of what goals lack, weighed [..., goals], one number: the worst of them and a bit of all (ParEGO)."""
    number: Floats = -lacking.max(axis=-1) - _SUM * lacking.sum(axis=-1)
    return number


def _costs(genotypes: Sequence[Genotype], history: History) -> Floats:
    """Of shape (genotypes, known goals)."""
    return np.array([[cost(one) for cost in history.known.values()] for one in genotypes], dtype=np.float64)


def _around_the_best(
    genotypes: Sequence[Genotype], order: npt.NDArray[np.int64], space: Space, history: History, rng: random.Random
) -> list[Genotype]:
    """Unseen genotypes, each once: neighbours, mutants and crosses of the best, and random ones.

    Args:
        order: of their indices, the best first.
    """
    choices = list(space.values())
    best = [genotypes[int(index)] for index in order[: 2 * _CENTERS]]
    found: dict[Genotype, None] = {}
    for center in best[:_CENTERS]:
        near = list(neighbours(space, center))
        found.update(dict.fromkeys(near if len(near) <= _NEAR else rng.sample(near, _NEAR)))
    for _ in range(_FAR):
        mutant = list(rng.choice(best))
        for index in rng.choices(range(len(choices)), k=rng.randint(1, 4)):
            mutant[index] = rng.choice(choices[index])
        found[tuple(mutant)] = None
    for _ in range(_CROSSED):
        both = zip(rng.choice(best), rng.choice(best), strict=True)
        found[tuple(rng.choice(values) for values in both)] = None
    found.update(dict.fromkeys(random_unseen(space, history, rng) for _ in range(_ANY)))
    return [one for one in found if one not in history.seen]


def _most_promising(candidates: Sequence[Genotype], gains: Floats, history: History) -> Genotype | None:
    """Of those that are allowed; None where none is."""
    return first_allowed((candidates[int(index)] for index in np.argsort(-gains, kind="stable")), history)


class _Fit:
    """The setting with the largest likelihood; looking for a better one costs ten models, so it is rare."""

    def __init__(self) -> None:
        self._setting = (len(_DECAYS) // 2, len(_NOISES) // 2)
        self._again = 0

    def model(self, trials: _Trials, count: int) -> _Model:
        """Of these trials, with the best setting on the way uphill from the last one.

        Args:
            count: of trials in all, by which it is decided whether to look for a better setting.
        """
        models: dict[tuple[int, int], _Model] = {}

        def at(setting: tuple[int, int]) -> _Model:
            if setting not in models:
                models[setting] = _Model(trials, _DECAYS[setting[0]], _NOISES[setting[1]])
            return models[setting]

        better = count >= self._again
        if better:
            self._again = max(count + 5, count * 5 // 4)
        while better:
            best = max(_around(self._setting), key=lambda setting: at(setting).likelihood)
            better = at(best).likelihood > at(self._setting).likelihood
            self._setting = best if better else self._setting
        return at(self._setting)


def _around(setting: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for step in itertools.product((-1, 0, 1), repeat=2):
        i, j = setting[0] + step[0], setting[1] + step[1]
        if step != (0, 0) and 0 <= i < len(_DECAYS) and 0 <= j < len(_NOISES):
            yield i, j


def _one_number(scored: Sequence[Scored], rng: random.Random) -> Floats:
    """For one goal its values; for several, each from 0 to 1, the worst of them by random weights, and a bit of all."""
    values = np.array([one.values for one in scored], dtype=np.float64)
    if values.shape[1] == 1:
        return values[:, 0]
    lowest, highest = values.min(axis=0), values.max(axis=0)
    draws = np.array([rng.expovariate(1) for _ in range(values.shape[1])])
    return _less(draws / draws.sum() * (highest - values) / np.maximum(highest - lowest, 1e-12))


def _kept(values: Floats, most: int) -> list[int]:
    """Indices of the trials that a model is made of, oldest first."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {int(index) for index in np.argsort(-values, kind="stable")[: most // 2]}
    latest = (index for index in reversed(range(count)) if index not in kept)
    return sorted([*kept, *itertools.islice(latest, most - len(kept))])


def _standard(values: Floats) -> Floats:
    """Mean 0 and deviation 1, after what is far below the median was raised: how bad the bad are matters to nobody."""
    middle = np.median(values)
    raised = np.maximum(values, middle - _REACH * (values.max() - middle))
    standard: Floats = (raised - raised.mean()) / (raised.std() + 1e-12)
    return standard
