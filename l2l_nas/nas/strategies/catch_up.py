"""A warm-up for candidates that joined the pool between two runs: untrained, they could only get bad scores.

Its paths are random ones that take new candidates wherever a position has one to train, each up to its target: those
of all positions are trained at a time. They are planned beforehand, and a plan made again half way through is the rest
of the first one, so that an interrupted catch-up goes on as if nothing had been.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from l2l_nas.errors import ConstraintError
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths

Targets = Mapping[str, Mapping[str, int]]

# draws for a step before it is given up, where constraints refuse the new candidates
_DRAWS = 50


class Introduction:
    """Plans the paths.

    Args:
        pool: with the new candidates.
        coverage: what was trained so far.
        targets: target warm-up steps of each new candidate, by row and candidate.
        seed: of the paths.
        constraints: what is allowed.
    """

    def __init__(
        self, pool: LayerPool, coverage: Coverage, *, targets: Targets, seed: int, constraints: Sequence[Constraint]
    ) -> None:
        self._pool = pool
        self._coverage = coverage
        self._targets = targets
        self._seed = seed
        self._constraints = constraints
        self._uniform = UniformPaths(pool, seed=seed, constraints=constraints)

    def plan(self, *, done: int) -> list[Architecture]:
        """The paths that are left to train, in order.

        Args:
            done: how many were trained already.
        """
        missing = {
            (row, name): target - self._coverage.steps("warmup", row).get(name, 0)
            for row, targets in self._targets.items()
            for name, target in targets.items()
        }
        missing = {key: left for key, left in missing.items() if left > 0}
        paths: list[Architecture] = []
        while missing:
            path = self._path(done + len(paths), missing)
            if path is None:
                break
            paths.append(path)
            for index, name in enumerate(path.choices):
                key = (self._coverage.row_of(index), name)
                if key in missing:
                    missing[key] -= 1
                    if missing[key] <= 0:
                        del missing[key]
        return paths

    def _path(self, step: int, missing: Mapping[tuple[str, str], int]) -> Architecture | None:
        """A path with at least one new candidate; None where the constraints leave none."""
        for draw in range(_DRAWS):
            generator = random.Random(f"{self._seed}/newcomers/{step}/{draw}")
            try:
                base = self._uniform.path_at(-(1 + draw + _DRAWS * (step + 1)))
            except ConstraintError:
                return None
            choices = list(base.choices)
            wanting = self._wanting(missing)
            # where all new candidates at once are refused, fewer of them may be allowed
            count = len(wanting) if draw < _DRAWS // 2 else generator.randint(1, len(wanting))
            for index, name in generator.sample(wanting, count):
                choices[index] = name
            path = self._pool.canonical(Architecture(tuple(choices)))
            if first_violation(path, self._constraints) is None:
                return path
        return None

    def _wanting(self, missing: Mapping[tuple[str, str], int]) -> list[tuple[int, str]]:
        """By position, the new candidate that lacks most."""
        found = []
        for index, position in enumerate(self._pool.positions):
            row = self._coverage.row_of(index)
            options = [(missing[row, c.name], c.name) for c in position.candidates if (row, c.name) in missing]
            if options:
                found.append((index, max(options)[1]))
        return found
