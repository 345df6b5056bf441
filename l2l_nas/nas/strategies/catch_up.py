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


def plan_catch_up(
    pool: LayerPool,
    coverage: Coverage,
    *,
    targets: Targets,
    seed: int,
    constraints: Sequence[Constraint],
    done: int,
) -> list[Architecture]:
    """The paths that are left to train, in order.

    Args:
        pool: with the new candidates.
        coverage: what was trained so far.
        targets: target warm-up steps of each new candidate, by row and candidate.
        done: how many paths were trained already.
    """
    uniform = UniformPaths(pool, seed=seed, constraints=constraints)
    missing = {
        (row, name): target - coverage.steps("warmup", row).get(name, 0)
        for row, row_targets in targets.items()
        for name, target in row_targets.items()
    }
    missing = {key: left for key, left in missing.items() if left > 0}

    def path_at(step: int) -> Architecture | None:
        """A path with at least one new candidate; None where the constraints leave none."""
        lacking = _lacking(pool, coverage, missing)
        for draw in range(_DRAWS):
            generator = random.Random(f"{seed}/newcomers/{step}/{draw}")
            try:
                base = uniform.path_at(-(1 + draw + _DRAWS * (step + 1)))
            except ConstraintError:
                return None
            choices = list(base.choices)
            # where all new candidates at once are refused, fewer of them may be allowed
            count = len(lacking) if draw < _DRAWS // 2 else generator.randint(1, len(lacking))
            for index, name in generator.sample(lacking, count):
                choices[index] = name
            path = pool.canonical(Architecture(tuple(choices)))
            if first_violation(path, constraints) is None:
                return path
        return None

    paths: list[Architecture] = []
    while missing and (path := path_at(done + len(paths))) is not None:
        paths.append(path)
        for index, name in enumerate(path.choices):
            key = (coverage.row_of(index), name)
            if key in missing:
                missing[key] -= 1
                if missing[key] <= 0:
                    del missing[key]
    return paths


def _lacking(pool: LayerPool, coverage: Coverage, missing: Mapping[tuple[str, str], int]) -> list[tuple[int, str]]:
    """By position, the new candidate that lacks most."""
    found = []
    for index, position in enumerate(pool.positions):
        row = coverage.row_of(index)
        options = [(missing[row, c.name], c.name) for c in position.candidates if (row, c.name) in missing]
        if options:
            found.append((index, max(options)[1]))
    return found
