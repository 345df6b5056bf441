"""What a network is predicted to be worse by than the original, from its blocks' scores and networks scored whole.

[Note: a prediction] A network is worse by a times the sum of its blocks' scores, and by b times what pairs of blocks do
only together, of those pairs that were measured. Both factors are fitted to networks that were scored whole: least
squares, with a ridge toward 1 as heavy as one more network that adds up, and with Huber's weights (Robust estimation of
a location parameter, 1964), so that one network that fell apart does not decide them. The factor of pairs is above 1
where changes interact that are no neighbours, of which no pair was measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from l2l_nas.compress.block_solver import Block, Pair
from l2l_nas.nas.samplers.base import Floats

# residuals beyond so many times their usual size count less (Huber: 95 % of the efficiency for a normal distribution)
_HUBER = 1.345
_NORMAL = 1.4826  # a normal distribution's deviation over the median of its absolute residuals
_REWEIGHTED = 20  # times at most
_FACTORS = (0.1, 10.0)  # what is measured tells at least so much, and no more

Changes = tuple[Block, ...]  # blocks that are not the original's, in the order of positions


@dataclass(frozen=True)
class SumPrediction:
    """See [Note: a prediction]. Less is better; the original is 0."""

    singles: Mapping[Block, float]  # worse by, with this block alone in its original's place
    pairs: Mapping[Pair, float]  # worse by than the sum of both, with both
    factor: float = 1.0  # of singles
    pair_factor: float = 1.0

    def of(self, changes: Changes) -> float:
        """What a network is worse by."""
        return self.factor * self.sum(changes) + self.pair_factor * self.together(changes)

    def sum(self, changes: Changes) -> float:
        """The scores of its blocks."""
        return sum(self.singles[block] for block in changes)

    def together(self, changes: Changes) -> float:
        """What pairs of its blocks that were measured add."""
        there = set(changes)
        return sum(worse for (one, other), worse in self.pairs.items() if one in there and other in there)

    def fitted(self, networks: Mapping[Changes, float]) -> SumPrediction:
        """The same with the factors that suit networks scored whole, by what each is worse by."""
        parts = np.array([(self.sum(changes), self.together(changes)) for changes in networks]).reshape(-1, 2)
        factor, pair_factor = _factors(parts, np.array([*networks.values()]))
        return replace(self, factor=factor, pair_factor=pair_factor)

    def left_out(self, networks: Mapping[Changes, float]) -> dict[Changes, float]:
        """Of each network, what is predicted from the others alone."""
        found = {}
        for changes in networks:
            others = {one: worse for one, worse in networks.items() if one != changes}
            found[changes] = self.fitted(others).of(changes)
        return found


def _factors(parts: Floats, worse: Floats) -> tuple[float, float]:
    """The factors whose weighted sum of parts, of shape (networks, 2), is what networks are worse by."""
    ridge = np.mean(parts**2, axis=0) if len(parts) else np.zeros(2)
    ridge = np.where(ridge > 0, ridge, 1.0)  # a part that no network has: its factor is 1
    factors, weights = np.ones(2), np.ones(len(parts))
    for _ in range(_REWEIGHTED):
        weighted = parts * weights[:, None]
        found = np.linalg.solve(weighted.T @ parts + np.diag(ridge), weighted.T @ worse + ridge)
        if np.abs(found - factors).max() < 1e-9:
            break
        factors = found
        residuals = np.abs(worse - parts @ factors)
        usual = _HUBER * _NORMAL * float(np.median(residuals)) if len(parts) else 0.0
        weights = np.minimum(1.0, usual / np.maximum(residuals, 1e-300)) if usual else weights
    factor, pair_factor = np.clip(factors, *_FACTORS).tolist()
    return factor, pair_factor


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
