"""Bayesian optimization for sequences of choices: a Gaussian process that knows how many positions of two differ.

[Note: why not Optuna's] Its Gaussian process takes a second and more a proposal after 200 trials of 24 positions. One
whose settings are searched for again only when there is a quarter more to know, and neighbours of the best as what may
come next, take a hundredth of that, and find better (docs/benchmarks.md).

[Note: small spaces] Where architectures are few and trials are whole evaluations of one goal, any may come next, not
neighbours of the best alone, and after the start phase one model knows all trials: when nothing on its hill promises
more, something elsewhere does. The optimum is then seen in fewer trials (docs/benchmarks.md).

[Note: a race] Where the best trials are trained further, their scores are early ones, and what decides in the end is
in part another thing, which trials do not show. Climbing a hill of early scores gives near copies that come out alike,
so that training them further chooses among nothing. So what comes next is the one of many random
architectures that is expected to gain most over all trials if it is trained further with them; and of the trials those
are passed on that together promise the best of them most. What longer training changes is taken for a second process
of the same covariance.

[Note: known costs] Where all goals but one are costs that are known of every architecture, such as its parameters, only
that one is modelled. The one number that is made of all goals then has its costs exact and the posterior of the learned
value; what is searched for is its expected gain over the best posterior mean among the trials, taken by Gauss-Hermite
quadrature. Learning the number itself instead would have to find out the costs from trials, anew for other weights.
In a race what comes next is, as with one goal, one of many random architectures: the one that is expected to add most
to the hypervolume of the front that all trials would have if they were trained further ([Note: a front] in `front.py`).

[Note: earlier runs] What earlier tasks say of an architecture is the prior mean of the model, where there is one; see
[Note: earlier tasks] in `prior.py`. The first trials are then not random but the best by it, with some scatter.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from l2l_nas.nas.front import reach
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
from l2l_nas.nas.samplers.gaussian_process import DRAWS, FURTHER, Fit, Model, ModelData, OneHot, WholeSpace
from l2l_nas.nas.samplers.ladder import ladder
from l2l_nas.nas.samplers.prior import EarlierModels, Prior

_WHOLE = 20_000  # architectures of a space that are all gone through
# random ones that may come next in a race
_ANYWHERE = 300
# with earlier tasks so many trials come from them alone: the best by them, give or take so much by what it varies
_REMEMBERED, _SCATTER = 3, 0.7
# but for the second, which is random: trials that they chose are alike in their eyes and cannot tell that they mislead
_AT_RANDOM = 1
# trials a model is made of at most: 20 for each position within these bounds, half of them the best, half the latest
_BY_POSITION, _FEWEST, _MOST = 20, 150, 300
# what may come next: of so many of the best so many neighbours each; mutants of twice as many; random ones
_CENTERS, _NEIGHBOURS, _MUTANTS, _RANDOM = 5, 24, 30, 30
# and where costs are known: so many neighbours of each, mutants, crosses of two of the best, random ones
_NEAR, _FAR, _CROSSED, _ANY = 150, 60, 60, 20
# with several goals so many of the first trials go from the smallest architecture to the largest: with one to be
# learned, and with more
_RUNGS, _RUNGS_LEARNED = 17, 33
# of all goals in the one number that is made of them: rho of ParEGO
_SUM = 0.05
# where an expectation over a value that is not known is taken, and what each counts
_NODES, _COUNTS = np.polynomial.hermite_e.hermegauss(12)


class HammingGP(GenotypeSampler):
    """Bayesian optimization with a Gaussian process of covariance exp(-sum of the decays of positions that differ).

    The first `start` trials are random, or, with several goals, a ladder of sizes (`ladder.py`). From then on comes the
    unseen genotype that promises most, among neighbours of those with the best posterior mean, mutants of them, and
    random ones. What it promises is the expected gain in true value if in the end the best *observed* trial is taken:
    E[f - f_best if y > y_best], for a true value f seen as y with noise, and the posterior mean f_best of the best
    observed trial. Mean and scale are solved for (Jones, Schonlau and Welch, 1998); for decays and noise see [Note:
    lengths] in `gaussian_process.py`.

    One model alone stays on the first hill it finds. So `climbs` models alternate, none knowing of the others' trials,
    until there are `merge` trials; from then on one model knows all of them. In a small space one model knows all from
    the start phase on: see [Note: small spaces]. With several goals each proposal draws weights by which one number is
    made of them (ParEGO: Knowles, 2006), and goals that are known costs need no model: see [Note: known costs].

    Args:
        start: random trials of each climb.
        climbs: how many.
        merge: trials after which they are one.
    """

    uses_earlier_tasks = True

    def __init__(self, *, seed: int, start: int = 6, climbs: int = 1, merge: int = 0) -> None:
        super().__init__(seed=seed)
        self._start = start
        self._climbs = climbs
        self._merge = max(merge, start * climbs)
        self._encoding = OneHot({})
        self._fits = [Fit() for _ in range(climbs + 1)]
        self._earlier: EarlierModels | None = None
        self._whole: WholeSpace | None = None

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        prior = self._prior(space, self._learned(history))
        # a model is needed for one goal, as all others are known costs
        is_one_learned = bool(history.known and history.scored) and len(self._learned(history)) == 1
        first = self._first_trial(space, history, rng, prior, is_one_learned)
        if first is not None:
            return first
        if is_one_learned:
            found = self._propose_for_a_front(space, history, rng, prior) if self.is_raced else None
            return found or self._propose_at_known_costs(space, history, rng, prior)
        if self.is_raced:
            return self._propose_for_a_race(space, history, rng, prior)
        known, climb, whole = history.scored, self._climbs, self._whole_space(space, history)
        if whole is None and len(known) < self._merge:
            climb = len(known) % self._climbs
            known = known[climb :: self._climbs]
        trials = self._trials(known, _one_number(known, rng), space, prior)
        model = self._fits[climb].model(trials, len(known))
        if whole is not None:
            found = _most_promising(whole.genotypes, model.promise_of_all(whole), history)
            return found or random_unseen(space, history, rng)
        candidates = self._around(model, self._mutants(model, history, rng), history)
        if not candidates:
            return random_unseen(space, history, rng)
        return _most_promising(candidates, model.promise(candidates), history) or random_unseen(space, history, rng)

    def _first_trial(
        self, space: Space, history: History, rng: random.Random, prior: Prior | None, is_one_learned: bool
    ) -> Genotype | None:
        """The next trial of the start phase; None once it is over.

        It begins with what earlier tasks propose, or, with several goals, with a ladder of sizes. The rest is random.
        """
        count, num_first = len(history.scored), self._start if prior is None else _REMEMBERED
        if prior is not None and count < num_first:
            return self._propose_by_earlier_tasks(prior, history, rng)
        rungs = _RUNGS if is_one_learned else _RUNGS_LEARNED
        rung = None if self.is_raced or prior is not None else self._next_rung(space, history, rungs)
        if rung is not None:
            return rung
        if self.is_raced and prior is None:
            num_first = num_first * 3 // 2
        elif not self.is_raced and not is_one_learned:
            num_first = min(num_first * self._climbs, self._merge)
        if count >= num_first:
            return None
        if self.is_raced and is_one_learned:
            self._anywhere(space, rng)  # whether they are needed or not: a seed gives one search
        return random_unseen(space, history, rng)

    def _next_rung(self, space: Space, history: History, rungs: int) -> Genotype | None:
        """With several goals the first trials are a ladder of sizes; see `ladder.py`. None once all of it are seen."""
        scored = history.scored
        if not scored or len(scored[0].values) < 2:
            return None
        size = history.size
        if size is None and history.known:  # what costs more is larger
            cost = next(iter(history.known.values()))

            def size(genotype: Genotype) -> float:
                return -cost(genotype)

        if size is None or len(scored) > 2 * rungs:
            return None
        return first_allowed(ladder(space, size, rungs), history)

    def _propose_for_a_race(self, space: Space, history: History, rng: random.Random, prior: Prior | None) -> Genotype:
        """The most promising of random ones: a hill climbed by short trainings would be one of near copies."""
        known = history.scored
        trials = self._trials(known, _one_number(known, rng), space, prior)
        model = self._fits[0].model(trials, len(known))
        drawn = self._anywhere(space, rng)
        mutants = self._mutants(model, history, rng)  # whether they are needed or not: a seed gives one search

        def most_promising(candidates: Iterable[Genotype]) -> Genotype | None:
            unseen = [one for one in candidates if one not in history.seen]
            return _most_promising(unseen, model.race(unseen, rng), history) if unseen else None

        # what limits leave may be too little to be met by chance
        return (
            most_promising(drawn)
            or most_promising(self._around(model, mutants, history))
            or random_unseen(space, history, rng)
        )

    def _propose_for_a_front(
        self, space: Space, history: History, rng: random.Random, prior: Prior | None
    ) -> Genotype | None:
        """What adds most to the front that all trials promise if they are trained further; all goals but one are known.

        None where none of many random ones is allowed, or none adds anything.
        """
        scored = history.scored
        unseen = [one for one in self._anywhere(space, rng) if one not in history.seen]
        if not unseen:
            return None
        [learned] = self._learned(history)
        values = np.array([one.values[learned] for one in scored], dtype=np.float64)
        trials = self._trials(scored, values, space, prior)
        model = self._fits[0].model(trials, len(scored))
        seed = rng.getrandbits(32)
        generator = np.random.default_rng(seed)
        means, variances = model.posterior(unseen, further=FURTHER)
        of_unseen = means[:, None] + np.sqrt(variances)[:, None] * generator.standard_normal(DRAWS)
        of_all = np.concatenate([model.draws(trials.genotypes, FURTHER, generator), of_unseen])
        costs = -_costs([*trials.genotypes, *unseen], history)
        draws = np.stack([of_all, *(np.repeat(column[:, None], DRAWS, axis=1) for column in costs.T)], axis=1)
        maximize = [True, *(False for _ in costs.T)]
        far = reach(draws, maximize, directions=DRAWS, known=len(trials.genotypes), seed=seed)
        known, new = np.split(far, [len(trials.genotypes)])
        gains = np.maximum(new - known.max(axis=0), 0).mean(axis=1)
        return _most_promising(unseen, gains, history) if gains.any() else None

    def _propose_by_earlier_tasks(self, prior: Prior, history: History, rng: random.Random) -> Genotype:
        """What earlier tasks say is the best of random ones, give or take some; known costs count as they are."""
        space = self._encoding.space
        unseen = [one for one in self._anywhere(space, rng) if one not in history.seen]
        if not unseen or len(history.seen) == _AT_RANDOM:
            return random_unseen(space, history, rng)
        predicted = prior.columns(unseen)[1] @ prior.expected
        predicted += _SCATTER * predicted.std() * np.array([rng.gauss(0, 1) for _ in unseen])
        if history.known:
            goals = _beside(predicted, _costs(unseen, history))
            predicted = _weighing(goals, rng)(goals)
        return _most_promising(unseen, predicted, history) or random_unseen(space, history, rng)

    def _anywhere(self, space: Space, rng: random.Random) -> list[Genotype]:
        """Random ones that may come next."""
        return list(dict.fromkeys(tuple(map(rng.choice, space.values())) for _ in range(_ANYWHERE)))

    def _propose_at_known_costs(
        self, space: Space, history: History, rng: random.Random, prior: Prior | None
    ) -> Genotype:
        """One goal is to be learned, the others are known; see [Note: known costs]."""
        scored = history.scored
        [learned] = self._learned(history)
        values = np.array([one.values[learned] for one in scored], dtype=np.float64)
        trials = self._trials(scored, values, space, prior)
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
        if len(history.scored) < (self._start if self._prior(space, self._learned(history)) is None else _REMEMBERED):
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
                prior = self._prior(space, [place])
                trials = self._trials(scored, values, space, prior and prior.anew())
                model = Fit().model(trials, len(scored))
                drawn = model.draws(genotypes, self.is_raced * FURTHER, np.random.default_rng(place))
                drawn = drawn * trials.scale + trials.center
            found.append(drawn)
        return dict(zip(genotypes, np.stack(found, axis=1), strict=True))

    def _trials(self, scored: Sequence[Scored], values: Floats, space: Space, prior: Prior | None) -> ModelData:
        """Those that a model is made of, of some with a value each."""
        self._encode(space)
        chosen = _chosen(values, _most(space))
        return ModelData([scored[index].genotype for index in chosen], values[chosen], self._encoding, prior)

    def _learned(self, history: History) -> list[int]:
        """Places of the goals that a model is needed for."""
        count = len(history.scored[0].values) if history.scored else len(self.goals)
        return [place for place in range(count) if place not in history.known]

    def _prior(self, space: Space, places: Iterable[int]) -> Prior | None:
        """What earlier tasks say of a number that rises with these goals; None where they say nothing."""
        if not self.earlier_tasks:
            return None
        self._encode(space)
        earlier = self._earlier
        if earlier is None or earlier.tasks is not self.earlier_tasks or earlier.goals != self.goals:
            earlier = self._earlier = EarlierModels(self.earlier_tasks, self.goals, self._encoding, most=_most(space))
        return earlier.prior(places, is_raced=self.is_raced)

    def _encode(self, space: Space) -> None:
        """Of another space than before all begins anew."""
        if self._encoding.space != space:
            self._encoding = OneHot(space)
            self._fits = [Fit() for _ in self._fits]
            self._earlier = self._whole = None

    def _whole_space(self, space: Space, history: History) -> WholeSpace | None:
        """Where all that may come next can be gone through: one goal, no earlier tasks, few architectures."""
        if self.earlier_tasks or len(history.scored[0].values) > 1 or math.prod(map(len, space.values())) > _WHOLE:
            return None
        self._encode(space)
        self._whole = self._whole or WholeSpace(self._encoding)
        return self._whole

    def _around(self, model: Model, others: Iterable[Genotype], history: History) -> list[Genotype]:
        """Unseen neighbours of the best, and others."""
        found: dict[Genotype, None] = {}
        for center in _best(model)[:_CENTERS]:
            unseen = (one for one in model.neighbours(center) if one not in history.seen)
            found.update(dict.fromkeys(itertools.islice(unseen, _NEIGHBOURS)))
        found.update(dict.fromkeys(others))
        return [one for one in found if one not in history.seen]

    def _mutants(self, model: Model, history: History, rng: random.Random) -> list[Genotype]:
        """Mutants of the best, and random ones."""
        space, genotypes, best = self._encoding.space, model.trials.genotypes, _best(model)
        choices = list(space.values())
        found = []
        for _ in range(_MUTANTS):
            mutant = list(genotypes[rng.choice(best[: 2 * _CENTERS])])
            for index in rng.choices(range(len(choices)), k=rng.randint(1, 3)):
                mutant[index] = rng.choice(choices[index])
            found.append(tuple(mutant))
        return [*found, *(random_unseen(space, history, rng) for _ in range(_RANDOM))]


def _best(model: Model) -> list[int]:
    """Of its trials, by posterior mean."""
    return [int(index) for index in np.argsort(-model.means, kind="stable")]


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
