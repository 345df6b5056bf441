"""A search on a landscape: a method asks for networks, and everything that it asks for is charged.

[Note: fairness] A method asks that a network be trained to a share of a whole training, and is told its validation
score there. It pays for the steps that the network did not have yet: who comes back to a network goes on with it free
of charge, whether its own package would have kept the weights or not. A network asked for beyond what is left of the
budget ends the search. What is returned is the network that was trained longest, of equals the best score, and its
figure is the test accuracy that it would have if it were trained to its end, whether it was or not: both are generous
to methods that leave off early. The race alone returns what it says itself; it always trains that to the end.

Landscapes and the luck of trainings belong to a repetition: all methods of one see the same.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field

from benchmarks.search.simulated.landscape import Landscape
from l2l_nas.nas.samplers.base import Genotype

# asks for a network at a share of a whole training, is sent its score; one that ends by itself has nothing more to ask
Method = Generator[tuple[Genotype, float], float, None]
_ROUNDING = 1e-9


@dataclass
class Ledger:
    """What was trained, and what it cost.

    Attributes:
        spent: in whole trainings.
        trained: by network, its share and the score there.
    """

    spent: float = 0.0
    trained: dict[Genotype, tuple[float, float]] = field(default_factory=dict)

    def price(self, genotype: Genotype, share: float) -> float:
        return max(0.0, share - self.trained.get(genotype, (0.0, 0.0))[0])

    def train(self, landscape: Landscape, genotype: Genotype, share: float) -> float:
        score = landscape.score(genotype, share)
        self.spent += self.price(genotype, share)
        if share >= self.trained.get(genotype, (0.0, 0.0))[0]:
            self.trained[genotype] = share, score
        return score

    def best(self) -> Genotype:
        longest = max(share for share, _ in self.trained.values())
        best = (one for one, (share, _) in self.trained.items() if share >= longest - _ROUNDING)
        return max(best, key=lambda one: self.trained[one][1])


def searched(method: Method, landscape: Landscape, budget: float) -> tuple[Genotype, Ledger]:
    """What a method returns; see [Note: fairness].

    Args:
        budget: in whole trainings.
    """
    ledger = Ledger()
    try:
        genotype, share = next(method)
        while ledger.spent + ledger.price(genotype, share) <= budget + _ROUNDING:
            genotype, share = method.send(ledger.train(landscape, genotype, share))
    except StopIteration:
        pass
    finally:
        method.close()
    return ledger.best(), ledger


def random_search(landscape: Landscape, rng: random.Random) -> Method:
    for genotype in _unseen(landscape, rng):
        yield genotype, 1.0


def promoting(landscape: Landscape, rng: random.Random, *, eta: int, first: float) -> Method:
    """Asynchronous successive halving on one worker (ASHA: Li et al., arXiv 1810.05934, algorithm 2).

    As published: whoever is in the best 1/eta of a rung goes on to the next whenever there is a place, and where nobody
    is, a new random network begins.

    Args:
        eta: of a rung, one in so many goes on; the next rung is so many times as far.
        first: share of the first rung.
    """
    rungs = [first]
    while rungs[-1] * eta < 1 - _ROUNDING:
        rungs.append(rungs[-1] * eta)
    rungs.append(1.0)
    scores: list[dict[Genotype, float]] = [{} for _ in rungs]
    new = _unseen(landscape, rng)
    while True:
        promoted = _promoted(scores, eta)
        try:
            rung, genotype = promoted or (0, next(new))
        except StopIteration:  # there are no more
            return
        scores[rung][genotype] = yield genotype, rungs[rung]


def _promoted(scores: list[dict[Genotype, float]], eta: int) -> tuple[int, Genotype] | None:
    """Who goes on, and to which rung; the highest rung first."""
    for rung in reversed(range(len(scores) - 1)):
        best = sorted(scores[rung], key=lambda one: -scores[rung][one])[: len(scores[rung]) // eta]
        for genotype in best:
            if genotype not in scores[rung + 1]:
                return rung + 1, genotype
    return None


def _unseen(landscape: Landscape, rng: random.Random) -> Generator[Genotype, None, None]:
    """Random networks, each once, until new ones are hardly met."""
    seen: set[Genotype] = set()
    misses = 0
    while misses < 2000:
        genotype = landscape.random(rng)
        misses = misses + 1 if genotype in seen else 0
        if not misses:
            seen.add(genotype)
            yield genotype
