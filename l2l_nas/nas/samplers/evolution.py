"""Samplers of our own without a model: regularized evolution, and random draws."""

from __future__ import annotations

import random

from l2l_nas.nas.samplers.base import (
    Genotype,
    GenotypeSampler,
    History,
    Space,
    front,
    random_unseen,
)

# attempts at an unseen mutant with so many positions changed, before one more is
_MUTANTS = 30


class RegularizedEvolution(GenotypeSampler):
    """Regularized ("aging") evolution (Real et al., arXiv 1802.01548, algorithm 1).

    The population is the last `population` complete trials: who is oldest dies, however good. A parent wins a
    tournament among a random half of the members, its child differs from it in one position. With several goals a
    tournament is won by one of those that no other member of it dominates, drawn at random.

    What was tried already is not proposed again: where 30 mutants in a row are known, one more position changes.

    Args:
        population: how many trials live; so many are random at first.
    """

    def __init__(self, *, seed: int, population: int = 20) -> None:
        super().__init__(seed=seed)
        self._population = population
        self._tournament = max(2, population // 2)

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


class Random(GenotypeSampler):
    """Uniform draws of what is allowed and no trial has, where one of 1,000 draws is; else any.

    Parameters without an end of values are drawn by Optuna.
    """

    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        return random_unseen(space, history, rng, draws=1000)
