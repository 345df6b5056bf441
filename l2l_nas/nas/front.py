"""Which networks together promise the best front, with several objectives.

[Note: a front] What a front is worth is its hypervolume: the part of the space of all objectives in which one of its
networks is at least as good. It is the mean, over random directions from a worst point, of how far the network goes
that goes farthest (Zhang and Golovin, Random hypervolume scalarizations, arXiv 2006.04655, lemma 5). So one number
stands for all objectives once a direction is drawn, however many they are; and where scores are not certain, each
direction goes with a draw of what they may be. Networks are then chosen one after the other, each that which adds most
(Nemhauser, Wolsey and Fisher, 1978), until none adds anything that the errors of the scores would not.

Objectives are measured between the worst and the best of the networks. One of which less is better counts by its
logarithm where all its values are above 0: a tenth fewer parameters is as much of a small network as of a large one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from l2l_nas.nas.samplers.base import Floats

_DIRECTIONS = 4096
# the worst point lies this far behind the worst of all networks, so that the ends of a front count; by their span
_BEHIND = 0.1
# what adds less than this share of the front's worth is dominated, or as good as that
_LEAST = 0.0005


def best_front(draws: Floats, maximize: Sequence[bool], most: int) -> list[int]:
    """Indices of the networks that make the best front together; see [Note: a front].

    The one that is expected to be the best by the first goal is the first of them.

    Args:
        draws: what networks may come to, of shape (networks, goals, draws), each draw for all networks at once.
        maximize: of each goal, whether more is better.
        most: as many as they are at most.
    """
    far = reach(draws, maximize, directions=_DIRECTIONS)
    first = draws[:, 0].mean(axis=1) * (1 if maximize[0] else -1)
    chosen = [int(np.argmax(first))]
    highest = far[chosen[0]]
    while len(chosen) < min(most, len(far)):
        gains = np.maximum(far - highest, 0).mean(axis=1)
        best = int(np.argmax(gains))
        if gains[best] <= _LEAST * highest.mean():
            break
        chosen.append(best)
        highest = np.maximum(highest, far[best])
    return chosen


def reach(
    draws: Floats, maximize: Sequence[bool], *, directions: int, known: int | None = None, seed: int = 0
) -> Floats:
    """How far each network goes in each direction, of shape (networks, directions).

    The mean of the farthest of some networks is their hypervolume, but for a factor.

    Args:
        draws, maximize: as `best_front`.
        directions: how many at least; a draw is taken as often as it takes.
        known: so many of the networks, the first, say where objectives end; None: all.
        seed: of the directions.
    """
    columns = [_between_ends(draws[:, place], more, known) for place, more in enumerate(maximize)]
    times = -(-directions // draws.shape[2])
    values = np.tile(np.stack(columns, axis=1), (1, 1, times))
    lines = np.abs(np.random.default_rng(seed).standard_normal(values.shape[1:]))
    lines /= np.linalg.norm(lines, axis=0)
    found: Floats = np.min(np.maximum(values, 0) / lines, axis=1) ** len(columns)
    return found


def _between_ends(draws: Floats, maximize: bool, known: int | None) -> Floats:
    """One objective, more is better: 0 at the worst point, and the span of the networks is 1."""
    values = draws if maximize else -np.log(draws) if (draws > 0).all() else -draws
    means = values[:known].mean(axis=1)
    span = float(np.ptp(means)) or 1.0
    found: Floats = (values - means.min()) / span + _BEHIND
    return found
