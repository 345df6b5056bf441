"""Fronts of `gp_hamming` where trials are whole evaluations, beside a grid of uniform architectures of equal number.

A run is a made-up space of 75 ordered positions of three candidates. Accuracy saturates in a sum of unequal capacities,
with a part for each pair of neighbours; the cost is a sum of other unequal prices. Known or not, the sampler is told
sizes. The grid goes from all small to all large in as many steps as there are trials, each as even over the positions
as can be. Both are compared by the area under their fronts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from l2l_nas.nas.samplers.base import Genotype, GenotypeSampler, History, Scored, Space
from l2l_nas.nas.samplers.registry import build_sampler

_POSITIONS = 75
_SPACE = {f"p{index:02}": (0, 1, 2) for index in range(_POSITIONS)}
# what costs more than everything at its largest counts for nothing
_DEAREST = 1.05

Goals = tuple[Callable[[Genotype], float], Callable[[Genotype], float]]


def made_up(seed: int) -> Goals:
    """Accuracy, and cost as a share of the dearest, of a space of its own."""
    rng = np.random.default_rng([7, seed])
    places = np.arange(_POSITIONS)

    def rising() -> Any:
        return np.cumsum(np.c_[np.zeros(_POSITIONS), rng.uniform(0.5, 1.5, (_POSITIONS, 2))], axis=1)

    weights = rng.lognormal(0, 0.8, (_POSITIONS, 1))
    capacities = rising() * weights
    prices = rising() * rng.lognormal(0, 0.5, (_POSITIONS, 1))
    pairs = rng.normal(0, 0.15, (_POSITIONS - 1, 3, 3)) * weights.mean()
    needed = capacities[:, 2].sum() * rng.uniform(0.3, 0.8) / 1.5

    def accuracy(genotype: Genotype) -> float:
        chosen = np.array(genotype)
        capacity = capacities[places, chosen].sum() + pairs[places[:-1], chosen[:-1], chosen[1:]].sum()
        return float(1 - np.exp(-capacity / needed))

    return accuracy, lambda genotype: float(prices[places, np.array(genotype)].sum() / prices[:, 2].sum())


def uniform_grid(count: int) -> list[Genotype]:
    """From all small to all large in equal steps, each as even as can be over the positions."""
    shares = (np.arange(_POSITIONS) * 0.754877666) % 1
    return [tuple(np.minimum((2 * height + shares).astype(int), 2).tolist()) for height in np.linspace(0, 1, count)]


def area(points: Sequence[tuple[float, float]]) -> float:
    """Under the front of pairs of accuracy and cost."""
    found, cheapest = 0.0, _DEAREST
    for accuracy, cost in sorted(points, key=lambda point: (-point[0], point[1])):
        if cost < cheapest and accuracy > 0:
            found += accuracy * (cheapest - cost)
            cheapest = cost
    return found


def evaluated(
    space: Space,
    values: Callable[[Genotype], tuple[float, ...]],
    *,
    trials: int,
    seed: int,
    known: Mapping[int, Callable[[Genotype], float]] | None = None,
) -> Iterator[Scored]:
    """What a search evaluates, one by one.

    Args:
        values: of a genotype, more is better.
        known: see `History`.
    """
    sampler = build_sampler("gp_hamming", seed=seed, num_trials=trials, num_finished=0)
    assert isinstance(sampler, GenotypeSampler)
    rng, scored, seen = random.Random(seed), list[Scored](), set[Genotype]()
    for _ in range(trials):
        history = History(tuple(scored), seen, known=known or {}, size=lambda genotype: float(sum(genotype)))
        genotype = sampler.propose(space, history, rng)
        seen.add(genotype)
        scored.append(Scored(genotype, values(genotype)))
        yield scored[-1]


def searched(goals: Goals, *, trials: int, is_known: bool, seed: int) -> list[tuple[float, float]]:
    """Accuracy and cost of all that a search evaluates."""
    accuracy, cost = goals
    known = {1: lambda genotype: -cost(genotype)} if is_known else {}
    found = evaluated(_SPACE, lambda one: (accuracy(one), -cost(one)), trials=trials, seed=seed, known=known)
    return [(one.values[0], -one.values[1]) for one in found]


def percent_above_the_grid(trials: int, *, is_known: bool, seeds: Sequence[int]) -> float:
    """By how many per cent the searches' areas are above the grid's, in the mean."""
    gains = []
    for seed in seeds:
        goals = made_up(seed)
        grid = area([(goals[0](one), goals[1](one)) for one in uniform_grid(trials)])
        gains.append(100 * (area(searched(goals, trials=trials, is_known=is_known, seed=seed)) / grid - 1))
    return statistics.fmean(gains)
