"""Bayesian optimization for sequences of choices: a Gaussian process that knows how many positions of two differ.

[Note: why not Optuna's] Its Gaussian process takes a second and more a proposal after 200 trials of 24 positions. One
whose settings are searched for again only when there is a quarter more to know, and neighbours of the best as what may
come next, take a hundredth of that, and find better (docs/benchmarks.md).

[Note: a race] Where the best trials are trained further, their scores are early ones, and what decides in the end is
in part another thing, which trials do not show. Climbing a hill of early scores gives near copies that come out alike,
so that training them further chooses among nothing (docs/log.md). So what comes next is the one of many random
architectures that is expected to gain most over all trials if it is trained further with them; and of the trials those
are passed on that together promise the best of them most. What longer training changes is taken for a second process
of the same covariance.

[Note: known costs] Where all goals but one are costs that are known of every architecture, such as its parameters, only
that one is modelled. The one number that is made of all goals then has its costs exact and the posterior of the learned
value; what is searched for is its expected gain over the best posterior mean among the trials, taken by Gauss-Hermite
quadrature. Learning the number itself instead would have to find out the costs from trials, anew for other weights.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from l2l_nas.nas.samplers.base import (
    Floats,
    Genotype,
    GenotypeSampler,
    History,
    Scored,
    Space,
    first_allowed,
    neighbours,
    random_unseen,
)
from l2l_nas.nas.samplers.gaussian_process import DRAWS, FURTHER, Fit, Model, ModelData, OneHot

# random ones that may come next in a race
_ANYWHERE = 300
# trials a model is made of at most: 20 for each position within these bounds, half of them the best, half the latest
_BY_POSITION, _FEWEST, _MOST = 20, 150, 300
# what may come next: of so many of the best so many neighbours each; mutants of twice as many; random ones
_CENTERS, _NEIGHBOURS, _MUTANTS, _RANDOM = 5, 24, 30, 30
# and where costs are known: so many neighbours of each, mutants, crosses of two of the best, random ones
_NEAR, _FAR, _CROSSED, _ANY = 150, 60, 60, 20
# of all goals in the one number that is made of them: rho of ParEGO
_SUM = 0.05
# where an expectation over a value that is not known is taken, and what each counts
_NODES, _COUNTS = np.polynomial.hermite_e.hermegauss(12)


class HammingGP(GenotypeSampler):
    """Bayesian optimization with a Gaussian process of covariance exp(-sum of the decays of positions that differ).

    The first `start` trials are random. From then on comes the unseen genotype that promises most, among neighbours of
    those with the best posterior mean, mutants of them, and random ones. What it promises is the expected gain in true
    value if in the end the best *observed* trial is taken: E[f - f_best if y > y_best], for a true value f seen as y
    with noise, and the posterior mean f_best of the best observed trial. Mean and scale are solved for (Jones, Schonlau
    and Welch, 1998); for decays and noise see [Note: lengths] in `gaussian_process.py`.

    One model alone stays on the first hill it finds: on NAS-Bench-201 in one run of ten. So `climbs` models alternate,
    none knowing of the others' trials, until there are `merge` trials; from then on one model knows all of them. With
    several goals each proposal draws weights by which one number is made of them (ParEGO: Knowles, 2006), and goals
    that are known costs need no model: see [Note: known costs].

    Args:
        start: random trials of each climb.
        climbs: how many.
        merge: trials after which they are one.
    """

    def __init__(self, *, seed: int, start: int = 6, climbs: int = 1, merge: int = 0) -> None:
        super().__init__(seed=seed)
        self._start = start
        self._climbs = climbs
        self._merge = merge
        self._encoding = OneHot({})
        self._fits = [Fit() for _ in range(climbs + 1)]

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        if history.known and history.scored and len(history.known) == len(history.scored[0].values) - 1:
            return self._propose_at_known_costs(space, history, rng)
        if self.is_raced:
            return self._propose_for_a_race(space, history, rng)
        known, climb = history.scored, self._climbs
        if len(known) < max(self._merge, self._start * self._climbs):
            climb = len(known) % self._climbs
            known = known[climb :: self._climbs]
            if len(known) < self._start:
                return random_unseen(space, history, rng)
        trials = self._trials(known, _one_number(known, rng), space)
        model = self._fits[climb].model(trials, len(known))
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
        costs = _costs(trials.genotypes, history)
        number = _weighing(_beside(trials.values, costs), rng)
        numbers = number(_beside(model.means, costs))
        candidates = _around_the_best(trials.genotypes, np.argsort(-numbers, kind="stable"), space, history, rng)
        if not candidates:
            return random_unseen(space, history, rng)
        means, variances = model.posterior(candidates)
        values = means[:, None] + np.sqrt(variances)[:, None] * _NODES
        found = number(_beside(values, _costs(candidates, history)[:, None]))
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
        chosen = _chosen(np.array([one.values[0] for one in history.scored]), _most(space))
        scored = sorted((history.scored[index] for index in chosen), key=lambda one: one.genotype)
        genotypes = [one.genotype for one in scored]
        found: list[Floats] = []
        for place in range(len(scored[0].values)):
            values = np.array([one.values[place] for one in scored], dtype=np.float64)
            drawn = np.repeat(values[:, None], DRAWS, axis=1)
            if place not in history.known:
                trials = self._trials(scored, values, space)
                model = Fit().model(trials, len(scored))
                drawn = model.draws(genotypes, self.is_raced * FURTHER, np.random.default_rng(place))
                drawn = drawn * trials.scale + trials.center
            found.append(drawn)
        return dict(zip(genotypes, np.stack(found, axis=1), strict=True))

    def _trials(self, scored: Sequence[Scored], values: Floats, space: Space) -> ModelData:
        """Those that a model is made of, of some with a value each; of another space than before all begins anew."""
        if self._encoding.space != space:
            self._encoding = OneHot(space)
            self._fits = [Fit() for _ in self._fits]
        chosen = _chosen(values, _most(space))
        return ModelData([scored[index].genotype for index in chosen], values[chosen], self._encoding)

    def _candidates(self, model: Model, history: History, rng: random.Random) -> list[Genotype]:
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


def _weighing(goals: Floats, rng: random.Random) -> Callable[[Floats], Floats]:
    """One number of several goals, by random weights: the worst of what they lack and a bit of all; more is better.

    Args:
        goals: of trials [trials, goals], more is better: each is taken from 0 to 1 between its ends.

    Returns:
        Of goals [..., goals] their numbers.
    """
    lowest, highest = goals.min(axis=0), goals.max(axis=0)
    draws = np.array([rng.expovariate(1) for _ in range(goals.shape[1])])
    weights, spread = draws / draws.sum(), np.maximum(highest - lowest, 1e-12)

    def number(found: Floats) -> Floats:
        lacking = weights * (highest - found) / spread
        numbers: Floats = -lacking.max(axis=-1) - _SUM * lacking.sum(axis=-1)
        return numbers

    return number


def _beside(values: Floats, costs: Floats) -> Floats:
    """Goals [..., goals] of a learned value each, and of the costs of the same place."""
    wide = np.broadcast_to(costs, (*values.shape, costs.shape[-1]))
    return np.concatenate([values[..., None], wide], axis=-1)


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


def _one_number(scored: Sequence[Scored], rng: random.Random) -> Floats:
    """For one goal its values; for several see `_weighing`."""
    values = np.array([one.values for one in scored], dtype=np.float64)
    return values[:, 0] if values.shape[1] == 1 else _weighing(values, rng)(values)


def _most(space: Space) -> int:
    """Trials that a model is made of."""
    return max(_FEWEST, min(_MOST, _BY_POSITION * len(space)))


def _chosen(values: Floats, most: int) -> list[int]:
    """Indices of the trials that a model is made of, oldest first."""
    count = len(values)
    if count <= most:
        return list(range(count))
    chosen = {int(index) for index in np.argsort(-values, kind="stable")[: most // 2]}
    latest = (index for index in reversed(range(count)) if index not in chosen)
    return sorted([*chosen, *itertools.islice(latest, most - len(chosen))])
