"""Samplers of our own that walk through the space: regularized evolution, local search, and every architecture once."""

from __future__ import annotations

import itertools
import random

from l2l_nas.nas.samplers.base import (
    Genotype,
    GenotypeSampler,
    History,
    Space,
    first_allowed,
    front,
    neighbours,
    random_unseen,
)

# attempts at an unseen mutant with so many positions changed, before one more is
_MUTANTS = 30


class RegularizedEvolution(GenotypeSampler):
    """Regularized ("aging") evolution (Real et al., arXiv 1802.01548, algorithm 1).

    The population is the last `population` complete trials: who is oldest dies, however good. A parent wins a
    tournament among `tournament` random members, its child differs from it in one position. With several goals a
    tournament is won by one of those that no other member of it dominates, drawn at random.

    What was tried already is not proposed again: where 30 mutants in a row are known, one more position changes.

    Args:
        population: how many trials live; so many are random at first.
        tournament: how many are compared for a parent.
    """

    def __init__(self, *, seed: int, population: int = 20, tournament: int = 10) -> None:
        super().__init__(seed=seed)
        self._population = population
        self._tournament = tournament

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        if len(history.scored) < self._population:
            return random_unseen(space, history, rng)
        alive = history.scored[-self._population :]
        compared = rng.sample(alive, min(self._tournament, len(alive)))
        parent = rng.choice(front(compared)).genotype
        return _mutant(parent, space, history, rng)


def _mutant(parent: Genotype, space: Space, history: History, rng: random.Random) -> Genotype:
    choices = list(space.values())
    for changed in range(1, len(choices) + 1):
        for _ in range(_MUTANTS):
            child = list(parent)
            for index in rng.sample(range(len(choices)), changed):
                child[index] = rng.choice([value for value in choices[index] if value != parent[index]])
            if history.is_new(tuple(child)):
                return tuple(child)
    return random_unseen(space, history, rng)


class LocalSearch(GenotypeSampler):
    """Local search (White et al., arXiv 2005.02960) from several places at once.

    A climb begins with `start` random trials. Its next trial is a random unseen neighbour, one position away, of its
    best; a better one is the best from then on at once. Where all neighbours of the best are known, those of the next
    best come. `climbs` of them alternate, none knowing of the others, until there are `merge` trials; from then on all
    trials are one climb. The paper climbs one after the other and begins anew at every summit; side by side none is
    left half way, and the trials after `merge` go to the best of them. (One climb alone ends at a lower summit of
    NAS-Bench-201's CIFAR-10 in one run of eight.) With several goals "best" is all trials that no other dominates, one
    of them drawn at random (Pareto local search: Paquete, Chiarandini and Stuetzle, 2004).

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

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        rest = list(history.scored)
        if len(rest) < self._start * self._climbs:
            return random_unseen(space, history, rng)
        if len(rest) < self._merge:
            rest = rest[len(rest) % self._climbs :: self._climbs]
        while rest:
            best = front(rest)
            for center in rng.sample(best, len(best)):
                unseen = [one for one in neighbours(space, center.genotype) if one not in history.seen]
                found = first_allowed(rng.sample(unseen, len(unseen)), history)
                if found is not None:
                    return found
            known = {one.genotype for one in best}
            rest = [one for one in rest if one.genotype not in known]
        return random_unseen(space, history, rng)


class Random(GenotypeSampler):
    """Uniform draws of what is allowed and no trial has, where one of 1,000 draws is; else any.

    Parameters without an end of values are drawn by Optuna.
    """

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        return random_unseen(space, history, rng, draws=1000)


class GridSampler(GenotypeSampler):
    """Every architecture once, in random order; when there are no more, at random again."""

    def __init__(self, *, seed: int) -> None:
        super().__init__(seed=seed)
        self._order: list[Genotype] = []
        self._space: Space = {}

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        if space != self._space:
            self._space = space
            self._order = list(itertools.product(*space.values()))
            rng.shuffle(self._order)
        while self._order:
            genotype = self._order.pop()
            if history.is_new(genotype):
                return genotype
        return random_unseen(space, history, rng)
