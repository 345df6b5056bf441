"""Path samplers: which architecture a training step runs, from an explicit seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from l2l_nas.errors import ConstraintError
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, first_violation
from l2l_nas.space.pool import LayerPool

_MAX_DRAWS = 1000


class UniformPaths:
    """Every position draws its candidate uniformly and independently (single-path one-shot, arXiv 1904.00420, 3.3).

    The path of a step depends on (seed, step) alone, so a resumed run goes on with the very same paths.

    Args:
        pool: what may be drawn.
        seed: any integer.
        constraints: draws that violate one are drawn again.
    """

    def __init__(self, pool: LayerPool, *, seed: int, constraints: Sequence[Constraint] = ()) -> None:
        self._pool = pool
        self._seed = seed
        self._constraints = tuple(constraints)

    def path_at(self, step: int) -> Architecture:
        """The architecture of a step.

        Raises:
            ConstraintError: 1,000 draws in a row violated a constraint; it quotes the most frequent reason.
        """
        generator = random.Random(f"{self._seed}/paths/{step}")
        reasons: Counter[str] = Counter()
        for _ in range(_MAX_DRAWS):
            choices = (generator.choice(position.candidates).name for position in self._pool.positions)
            architecture = self._pool.canonical(Architecture(tuple(choices)))
            reason = first_violation(architecture, self._constraints)
            if reason is None:
                return architecture
            reasons[reason] += 1
        raise ConstraintError(
            f"none of {_MAX_DRAWS} random architectures satisfies the constraints; "
            f"most often: {reasons.most_common(1)[0][0]}; loosen them"
        )
