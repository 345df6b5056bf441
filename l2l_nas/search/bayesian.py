"""Bayesian optimization for sequences of choices: a Gaussian process that knows how many positions of two differ.

[Note: why not Optuna's] Its Gaussian process takes a second and more a proposal after 200 trials of 24 positions. One
whose settings are looked for again only when there is a quarter more to know, and neighbours of the best as what may
come next, take a hundredth of that, and find better (docs/benchmarks.md).

[Note: lengths] How much it matters that two differ in a position is learned for each of them (automatic relevance
determination: MacKay, 1994; Neal, 1996): the logarithms of the decays and of the noise are where likelihood and priors
together are highest. The priors hold decays together as long as trials are few.

[Note: a race] Where the best trials are trained further, their scores are early ones, and what decides in the end is
in part another thing, which trials do not show. Climbing a hill of early scores gives near copies that come out alike,
so that training them further chooses among nothing (docs/log.md). So what comes next is the one of many random
architectures that is expected to gain most over all trials if it is trained further with them; and of the trials those
are handed on that together promise the best of them most. What longer training changes is taken for a second process
of the same covariance.

[Note: known costs] Where all goals but one are costs that are known of every architecture, such as its parameters, only
that one is modelled. The one number that is made of all goals then has its costs exact and the posterior of the learned
value; what is looked for is its expected gain over the best posterior mean among the trials, taken by Gauss-Hermite
quadrature. Learning the number itself instead would have to find out the costs from trials, anew for other weights.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
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

# what is believed before any trial of the logarithms of: the decay over positions that all differ, and the variance of
# noise by that of true values. Mean and deviation of each, and bounds; then of a position's decay by the mean one
_DECAY, _DECAY_WITHIN = (np.log(1.2), 1.5), (0.15, 9.6)
_NOISE, _NOISE_WITHIN = (np.log(0.05), 2.0), (0.003, 3.0)
_SPREAD, _SPREAD_WITHIN = 1.0, 4.0
_ITERATIONS = 30
# by how much of the variance of true values a longer training changes them: 1 is a correlation of 0.7, as the score
# after a tenth of the steps has with that after all of them, among good networks (docs/log.md)
_FURTHER = 1.0
_DRAWS = 512
# random ones that may come next in a race; for so many trials, and so many of them, what comes of it is drawn
_ANYWHERE, _BEST, _NEXT = 300, 40, 200
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
    """Bayesian optimization with a Gaussian process of covariance exp(-sum of the decays of positions that differ).

    The first `start` trials are random. From then on comes the unseen genotype that promises most, among neighbours of
    those with the best posterior mean, mutants of them, and random ones. What it promises is the expected gain in true
    value if in the end the best *observed* trial is taken: E[f - f_best if y > y_best], for a true value f seen as y
    with noise, and the posterior mean f_best of the best observed trial. See [Note: lengths] for decays and noise; mean
    and scale are solved for (Jones, Schonlau and Welch, 1998).

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
        if self.is_raced:
            return self._propose_for_a_race(space, history, rng)
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

    def _propose_for_a_race(self, space: Space, history: History, rng: random.Random) -> Genotype:
        """The most promising of random ones: a hill climbed by short trainings would be one of near copies."""
        known = history.scored
        if len(known) < self._start * 3 // 2:
            return random_unseen(space, history, rng)
        trials = self._trials(known, _one_number(known, rng), space)
        model = self._fits[0].model(trials, len(known))
        drawn = dict.fromkeys(tuple(map(rng.choice, space.values())) for _ in range(_ANYWHERE))
        # what limits leave may be too little to be met by chance
        for candidates in (drawn, self._candidates(model, history, rng)):
            unseen = [one for one in candidates if one not in history.seen]
            found = _most_promising(unseen, model.race(unseen, rng), history) if unseen else None
            if found is not None:
                return found
        return random_unseen(space, history, rng)

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

    def draws(self, space: Space, history: History) -> Mapping[Genotype, Floats]:
        """From the posterior; goals that are known costs are what they are. It depends on the trials alone.

        Of more trials than a model is made of, half of these are the best by the first goal and half the latest. See
        `GenotypeSampler.draws`.
        """
        if len(history.scored) < self._start:
            return {}
        # the first goal decides which of many; sorted, as rounding depends on the order
        kept = _kept(np.array([one.values[0] for one in history.scored]), _most(space))
        scored = sorted((history.scored[index] for index in kept), key=lambda one: one.genotype)
        genotypes = [one.genotype for one in scored]
        found: list[Floats] = []
        for place in range(len(scored[0].values)):
            values = np.array([one.values[place] for one in scored], dtype=np.float64)
            drawn = np.repeat(values[:, None], _DRAWS, axis=1)
            if place not in history.known:
                trials = self._trials(scored, values, space)
                model = _Fit().model(trials, len(scored))
                drawn = model.draws(genotypes, self.is_raced * _FURTHER, np.random.default_rng(place))
                drawn = drawn * trials.scale + trials.center
            found.append(drawn)
        return dict(zip(genotypes, np.stack(found, axis=1), strict=True))

    def _trials(self, scored: Sequence[Scored], values: Floats, space: Space) -> _Trials:
        """Those that a model is made of, of some with a value each; of another space than before all begins anew."""
        if self._encoding.space != space:
            self._encoding = _Encoding(space)
            self._fits = [_Fit() for _ in self._fits]
        kept = _kept(values, _most(space))
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
    """What a model is made of: `values` are of mean 0 and deviation 1; `center` and `scale` tell what they were."""

    def __init__(self, genotypes: Sequence[Genotype], values: Floats, encoding: _Encoding) -> None:
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


class _Model:
    """A Gaussian process with constant mean; `noise` is a share of the variance, which is solved for like the mean.

    Args:
        trials: it is made of.
        decays: minus the logarithm of the covariance of two that differ in one position, for each of them.
        noise: variance of an observation by that of the true values.
    """

    def __init__(self, trials: _Trials, decays: Floats, noise: float) -> None:
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
        found: Floats = means[:, None] + factor @ rng.standard_normal((len(rows), _DRAWS))
        return found

    def race(self, candidates: Sequence[Genotype], rng: random.Random) -> Floats:
        """Expected gain of each over the best trial if both are trained further, whichever of the trials that is.

        It is 0 of those that are not among the likeliest: they are not looked at.
        """
        best = np.argsort(-self.means, kind="stable")[:_BEST]
        means, variances = self.posterior(candidates)
        likely = np.argsort(-means - np.sqrt(variances + _FURTHER * self._variance), kind="stable")[:_NEXT]
        together = [*(self.trials.genotypes[int(one)] for one in best), *(candidates[int(one)] for one in likely)]
        drawn = self.draws(together, _FURTHER, np.random.default_rng(rng.getrandbits(32)))
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
    """Decays and noise that suit the trials best; looking for better ones costs dozens of models, so it is rare."""

    def __init__(self) -> None:
        self._setting: Floats | None = None
        self._again = 0

    def model(self, trials: _Trials, count: int) -> _Model:
        """Of these trials, with the best setting on the way uphill from the last one.

        Args:
            count: of trials in all, by which it is decided whether to look for a better setting.
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


def _at(setting: Floats, trials: _Trials) -> _Model:
    """The model of a setting: logarithms of a decay in the mean, of each position's by it, and of the noise."""
    decays = np.exp(setting[0] + setting[1:-1]) / (len(setting) - 2)
    return _Model(trials, decays, float(np.exp(setting[-1])))


def _unlikely(setting: Floats, trials: _Trials) -> tuple[float, Floats]:
    """Minus the logarithm of likelihood and priors of a setting, and its gradient."""
    model = _at(setting, trials)
    decays, noise = model.slopes()
    middle = np.array([_DECAY[0], *[0.0] * (len(setting) - 2), _NOISE[0]])
    width = np.array([_DECAY[1], *[_SPREAD] * (len(setting) - 2), _NOISE[1]])
    off = (setting - middle) / width
    slopes = np.array([decays.sum(), *decays, noise])
    return float(off @ off / 2) - model.likelihood, off / width - slopes


def _one_number(scored: Sequence[Scored], rng: random.Random) -> Floats:
    """For one goal its values; for several, each from 0 to 1, the worst of them by random weights, and a bit of all."""
    values = np.array([one.values for one in scored], dtype=np.float64)
    if values.shape[1] == 1:
        return values[:, 0]
    lowest, highest = values.min(axis=0), values.max(axis=0)
    draws = np.array([rng.expovariate(1) for _ in range(values.shape[1])])
    return _less(draws / draws.sum() * (highest - values) / np.maximum(highest - lowest, 1e-12))


def _most(space: Space) -> int:
    """Trials that a model is made of."""
    return max(_FEWEST, min(_MOST, _BY_POSITION * len(space)))


def _kept(values: Floats, most: int) -> list[int]:
    """Indices of the trials that a model is made of, oldest first."""
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {int(index) for index in np.argsort(-values, kind="stable")[: most // 2]}
    latest = (index for index in reversed(range(count)) if index not in kept)
    return sorted([*kept, *itertools.islice(latest, most - len(kept))])


def _raised(values: Floats) -> Floats:
    """What is far below the median is raised: how bad the bad are matters to nobody."""
    middle = np.median(values)
    raised: Floats = np.maximum(values, middle - _REACH * (values.max() - middle))
    return raised
