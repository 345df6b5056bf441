"""How much of the scores each position's choice explains.

The share of a position is that of a one-way analysis of variance of the scores by its candidates: the variance of the
candidates' means over the whole variance, which is the first-order index of Sobol' (Mathematical Modelling and
Computational Experiments 1, 1993) and the main effect of fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014). In few
trials that ratio is far too large: 6 candidates of no effect in 64 trials would get 5/63 = 8 %. Epsilon squared
(Kelley, PNAS 21, 1935) takes out what chance alone gives, and shuffled scores show how much chance is left.

Choices that a sampler makes together share their effects, and what two positions do only together is in none of the
shares: they need not sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from l2l_nas.nas.objectives import TrialRecord, distinct
from l2l_nas.report.card import SpaceCard

MIN_TRIALS = 10
_SHUFFLES = 200
_QUANTILE = 0.95


@dataclass(frozen=True)
class Effect:
    """What a position's choice did to the scores."""

    position: str  # its name
    share: float  # of the scores' variance, 0 to 1
    chance: float  # the share that 19 of 20 shuffles of the scores stay below
    means: Mapping[str, float]  # mean score by candidate tried
    counts: Mapping[str, int]  # trials by candidate tried


def main_effects(card: SpaceCard, records: Sequence[TrialRecord], goal: str) -> tuple[Effect, ...]:
    """The effect of every position with a choice, in the order of the network.

    Args:
        card: the space.
        records: all trials; those without a score of their own are left out.
        goal: which score.

    Returns:
        Nothing where there are fewer than ten scores, or all are equal.
    """
    found = distinct(records)
    scores = np.array([record.values[goal] for record in found], dtype=np.float64)
    if len(scores) < MIN_TRIALS or not np.ptp(scores):
        return ()
    generator = np.random.default_rng(0)
    shuffled = np.stack([scores, *(generator.permutation(scores) for _ in range(_SHUFFLES))], axis=1)
    effects = []
    for index, position in enumerate(card.positions):
        if len(position.candidates) < 2:
            continue
        chosen = [record.architecture.choices[index] for record in found]
        names = [name for name in position.candidates if name in set(chosen)]
        groups = np.array([names.index(name) for name in chosen])
        shares = _epsilon_squared(groups, len(names), shuffled)
        effects.append(
            Effect(
                position.name,
                float(shares[0]),
                float(np.quantile(shares[1:], _QUANTILE)),
                {name: float(scores[groups == number].mean()) for number, name in enumerate(names)},
                {name: int((groups == number).sum()) for number, name in enumerate(names)},
            )
        )
    return tuple(effects)


def _epsilon_squared(groups: NDArray[np.int64], num_groups: int, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share for each column of scores: (between - (k - 1) * mean square within) / total; 0 where it is less."""
    num = len(scores)
    if num_groups < 2 or num <= num_groups:
        return np.zeros(scores.shape[1])
    member = np.eye(num_groups)[groups]  # one row a trial, one column a group
    centred = scores - scores.mean(axis=0)
    sums = member.T @ centred
    between = (sums**2 / member.sum(axis=0)[:, None]).sum(axis=0)
    total = (centred**2).sum(axis=0)
    within = (total - between) / (num - num_groups)
    return np.clip((between - (num_groups - 1) * within) / total, 0.0, 1.0)
