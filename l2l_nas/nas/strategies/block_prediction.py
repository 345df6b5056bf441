"""What a network is predicted to be worse by than the original, from its blocks' scores and networks scored whole.

[Note: a prediction] A network is worse by a times the sum of its blocks' scores, and by what pairs of blocks do only
together, of those pairs that were measured. The factor a is fitted to networks that were scored whole: least squares
of what the pairs leave over, with a ridge toward 1 as heavy as one more network whose scores add up, and with Huber's
weights (Robust estimation of a location parameter, 1964), so that one network that fell apart does not decide it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from l2l_nas.nas.strategies.block_solver import Block, Pair

# residuals beyond so many times their usual size count less (Huber: 95 % of the efficiency for a normal distribution)
_HUBER = 1.345
_NORMAL = 1.4826  # a normal distribution's deviation over the median of its absolute residuals
_REWEIGHTED = 20  # times at most
_FACTORS = (0.1, 10.0)  # a sum tells at least so much, and no more

Changes = tuple[Block, ...]  # blocks that are not the original's, in the order of positions


@dataclass(frozen=True)
class SumPrediction:
    """See [Note: a prediction]. Less is better; the original is 0."""

    singles: Mapping[Block, float]  # worse by, with this block alone in its original's place
    pairs: Mapping[Pair, float]  # worse by than the sum of both, with both
    factor: float = 1.0

    def of(self, changes: Changes) -> float:
        """What a network is worse by."""
        return self.factor * self.sum(changes) + self.together(changes)

    def sum(self, changes: Changes) -> float:
        """The scores of its blocks."""
        return sum(self.singles[block] for block in changes)

    def together(self, changes: Changes) -> float:
        """What pairs of its blocks that were measured add."""
        there = set(changes)
        return sum(worse for (one, other), worse in self.pairs.items() if one in there and other in there)

    def fitted(self, networks: Mapping[Changes, float]) -> SumPrediction:
        """The same with the factor that suits networks scored whole, by what each is worse by."""
        sums = np.array([self.sum(changes) for changes in networks])
        left = np.array([worse - self.together(changes) for changes, worse in networks.items()])
        return replace(self, factor=_factor(sums, left))

    def left_out(self, networks: Mapping[Changes, float]) -> dict[Changes, float]:
        """Of each network, what is predicted from the others alone."""
        found = {}
        for changes in networks:
            others = {one: worse for one, worse in networks.items() if one != changes}
            pairs = {pair: worse for pair, worse in self.pairs.items() if pair != changes}
            found[changes] = replace(self, pairs=pairs).fitted(others).of(changes)
        return found


def _factor(sums: np.ndarray, left: np.ndarray) -> float:
    """The factor of sums that gives what is left."""
    ridge = float(np.mean(sums**2)) if len(sums) else 0.0
    if not ridge:
        return 1.0
    factor, weights = 1.0, np.ones(len(sums))
    for _ in range(_REWEIGHTED):
        found = (float(weights @ (sums * left)) + ridge) / (float(weights @ sums**2) + ridge)
        if abs(found - factor) < 1e-9:
            break
        factor = found
        residuals = np.abs(left - factor * sums)
        usual = _HUBER * _NORMAL * float(np.median(residuals))
        weights = np.minimum(1.0, usual / np.maximum(residuals, 1e-300)) if usual else weights
    return float(np.clip(factor, *_FACTORS))


def pairs_to_measure(wrong: Mapping[Changes, float], known: Mapping[Pair, float], most: int) -> list[Pair]:
    """Neighbours among the changes of networks whose prediction was wrong, those first that may explain most.

    Args:
        wrong: of such networks, by how much.
        known: pairs that were measured.
        most: as many as they are at most.
    """
    credit: dict[Pair, float] = {}
    for changes, error in wrong.items():
        pairs: Sequence[Pair] = [pair for pair in itertools.pairwise(changes) if pair not in known]
        for pair in pairs:
            credit[pair] = credit.get(pair, 0.0) + abs(error) / len(pairs)

    def order(pair: Pair) -> tuple[float, int, Pair]:
        return -credit[pair], pair[1][0] - pair[0][0], pair

    return sorted(sorted(credit, key=order)[:most])
