"""Path samplers: which architecture a training step runs.

Each is a function of (seed, step) alone, so that an interrupted run goes on with the very same paths. A new one is a
class with `path_at` and one entry in `PATH_SAMPLERS`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

from l2l_nas.arguments import check_kind, check_list, check_methods, check_whole
from l2l_nas.errors import ConstraintError, SettingError, did_you_mean
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, Graded, first_violation, total_excess
from l2l_nas.space.pool import LayerPool

_MAX_DRAWS = 1000
# draws before one is led towards what is allowed, if a constraint tells how far off it is, and starts of that
_FREE_DRAWS = 100
_REPAIRS = 5
# exchanges tried to make a fair round allowed, each with two checks of constraints. Where no such round exists, with
# 6 candidates and a limit on parameters: 2 ms a step for 8 positions, 12 for 94, far below the step itself
_MAX_SWAPS = 200


class PathSampler(Protocol):
    """Anything with this one method."""

    def path_at(self, step: int) -> Architecture:
        """The architecture of a step."""


class Repair:
    """Changes architectures, one position at a time, from a refused one towards what is allowed.

    In a shared pool a candidate may also take another one's place wherever that is: a layer that is used twice is gone
    only when all its places change.

    Args:
        excess: how far off an architecture is; 0 where it is allowed.
    """

    def __init__(self, pool: LayerPool, excess: Callable[[Architecture], float]) -> None:
        self._pool = pool
        self._excess = excess
        self._varied = [
            index
            for index, position in enumerate(pool.positions)
            if len(position.candidates) > 1 and position.follows is None
        ]

    def descend(self, start: Architecture, generator: random.Random) -> tuple[Architecture, float]:
        """Take the first change that reduces the excess, until there is none: the architecture, and its excess."""
        best, value = start, self._excess(start)
        is_better = True
        while value > 0 and is_better:
            is_better = False
            for other in self._changes(best, generator):
                reached = self._excess(other)
                if reached < value:
                    best, value, is_better = other, reached, True
                    break
        return best, value

    def wander(self, start: Architecture, generator: random.Random) -> Architecture:
        """A random walk among allowed architectures, four changes tried for each position.

        Each changes one position at random and is taken if it is allowed: Metropolis' rule for the uniform distribution
        (J. Chem. Phys. 21, 1087, 1953). So what `descend` reaches is mixed as far as what is allowed is connected.
        """
        current = start
        for _ in range(4 * len(self._varied)):
            index = generator.choice(self._varied)
            other = self._changed(current, (index,), generator.choice(self._pool.positions[index].candidates).name)
            if self._excess(other) == 0:
                current = other
        return current

    def _changes(self, architecture: Architecture, generator: random.Random) -> Iterator[Architecture]:
        """The architectures that one change makes, in random order."""
        names_at = {index: [c.name for c in self._pool.positions[index].candidates] for index in self._varied}
        chosen = architecture.choices
        changes: list[tuple[Sequence[int], str]] = [
            ((index,), name) for index, names in names_at.items() for name in names if name != chosen[index]
        ]
        if self._pool.shared:
            for name in dict.fromkeys(chosen):
                indices = [index for index in self._varied if chosen[index] == name]
                if len(indices) > 1:
                    offered = set.intersection(*(set(names_at[index]) for index in indices))
                    changes += [(indices, other) for other in sorted(offered) if other != name]
        generator.shuffle(changes)
        return (self._changed(architecture, indices, name) for indices, name in changes)

    def _changed(self, architecture: Architecture, indices: Sequence[int], name: str) -> Architecture:
        choices = list(architecture.choices)
        for index in indices:
            choices[index] = name
        return self._pool.canonical(Architecture(tuple(choices)))


class UniformPaths:
    """Every position draws its candidate uniformly and independently (single-path one-shot, arXiv 1904.00420, 3.3).

    Where 100 draws in a row are refused, and a limit is among the constraints, the next draws are changed until they
    are allowed, and then mixed by a random walk (see `Repair`): nearly uniform, in a time that does not grow with what
    is refused.

    Args:
        constraints: draws that violate one are drawn again.

    Raises:
        SettingError: an argument of another type.
    """

    def __init__(self, pool: LayerPool, *, seed: int, constraints: Sequence[Constraint] = ()) -> None:
        check_kind("UniformPaths: pool", pool, LayerPool, wanted="a LayerPool")
        check_whole("UniformPaths: seed", seed)
        for one in check_list("UniformPaths: constraints", constraints, of=object, wanted="constraints"):
            check_methods("UniformPaths: constraints", one, ["violation"], wanted="constraints, such as Require")
        self._pool = pool
        self._seed = seed
        self._constraints = tuple(constraints)
        self._is_graded = any(isinstance(constraint, Graded) for constraint in self._constraints)
        self._repair = Repair(pool, partial(total_excess, constraints=self._constraints))

    def path_at(self, step: int) -> Architecture:
        """The architecture of a step.

        Raises:
            ConstraintError: 1,000 draws in a row violated a constraint; it quotes the most frequent reason.
        """
        generator = random.Random(f"{self._seed}/paths/{check_whole('path_at: step', step)}")
        reasons: Counter[str] = Counter()
        for draw in range(_MAX_DRAWS):
            choices = (generator.choice(position.candidates).name for position in self._pool.positions)
            architecture = self._pool.canonical(Architecture(tuple(choices)))
            if self._is_graded and _FREE_DRAWS <= draw < _FREE_DRAWS + _REPAIRS:
                repaired, excess = self._repair.descend(architecture, generator)
                if excess == 0:
                    return self._repair.wander(repaired, generator)
            reason = first_violation(architecture, self._constraints)
            if reason is None:
                return architecture
            reasons[reason] += 1
        raise ConstraintError(
            f"none of {_MAX_DRAWS} random architectures satisfies the constraints; "
            f"most often: {reasons.most_common(1)[0][0]}; loosen them"
        )


class FairPaths(UniformPaths):
    """Strict fairness (FairNAS, arXiv 1907.01845, 3.3): in a round, every candidate of every position is trained once.

    A round has as many steps as the largest position has candidates, skips included. A position with fewer goes round
    again within it; what does not come out even is dealt from round to round, so that after any number of whole
    rounds two candidates of a position differ by at most one step. FairNAS updates once a round, with the gradients of
    all its paths; here every step updates, as with the other samplers.

    Constraints: where they refuse paths of a round, candidates are exchanged between its paths, which keeps it fair,
    until all are allowed. If that does not succeed (under a limit below the mean of a round there is no such round),
    the paths refused are replaced by uniform draws, and only these are not fair: the coverage tells what became
    of it. A candidate that no allowed architecture has is never trained.

    In a shared pool a candidate is counted by its name at a position, before paths take their canonical form: a name
    that is offered at d like positions is placed d times a round, now and then twice in one path, which updates its
    layer once.
    """

    def __init__(self, pool: LayerPool, *, seed: int, constraints: Sequence[Constraint] = ()) -> None:
        super().__init__(pool, seed=seed, constraints=constraints)
        self.round_steps = max(len(position.candidates) for position in pool.positions)
        self._last: tuple[int, list[Architecture | None]] | None = None

    def path_at(self, step: int) -> Architecture:
        """See `UniformPaths`."""
        number, index = divmod(check_whole("path_at: step", step), self.round_steps)
        if self._last is None or self._last[0] != number:
            self._last = number, self._round(number)
        return self._last[1][index] or super().path_at(step)

    def _round(self, number: int) -> list[Architecture | None]:
        """The paths of a round; None where no fair one is allowed."""
        orders = [self._deal(number, index) for index in range(len(self._pool))]
        paths = [self._allowed(orders, step) for step in range(self.round_steps)]
        generator = random.Random(f"{self._seed}/fair/{number}/swaps")
        varied = [index for index, order in enumerate(orders) if len(set(order)) > 1]
        for _ in range(_MAX_SWAPS if varied else 0):
            refused = [step for step, path in enumerate(paths) if path is None]
            if not refused:
                break
            one, other = generator.choice(refused), generator.randrange(self.round_steps)
            order = orders[generator.choice(varied)]
            if order[one] == order[other]:
                continue
            order[one], order[other] = order[other], order[one]
            swapped = self._allowed(orders, one), self._allowed(orders, other)
            if swapped.count(None) > (paths[one], paths[other]).count(None):
                order[one], order[other] = order[other], order[one]
            else:
                paths[one], paths[other] = swapped
        return paths

    def _deal(self, number: int, index: int) -> list[str]:
        """The candidate of one position at each step of a round."""
        names = [candidate.name for candidate in self._pool.positions[index].candidates]
        generator = random.Random(f"{self._seed}/fair/{number}/{index}")
        times, left = divmod(self.round_steps, len(names))
        order = [name for _ in range(times) for name in generator.sample(names, len(names))]
        extra = random.Random(f"{self._seed}/fair/{index}").sample(names, len(names))
        begin = number * left
        return order + [extra[(begin + offset) % len(names)] for offset in range(left)]

    def _allowed(self, orders: Sequence[Sequence[str]], step: int) -> Architecture | None:
        architecture = self._pool.canonical(Architecture(tuple(order[step] for order in orders)))
        return architecture if first_violation(architecture, self._constraints) is None else None


PATH_SAMPLERS: dict[str, type[UniformPaths]] = {"uniform": UniformPaths, "fair": FairPaths}


def build_paths(name: str, pool: LayerPool, *, seed: int, constraints: Sequence[Constraint] = ()) -> PathSampler:
    """A path sampler by its name in `PATH_SAMPLERS`.

    Raises:
        SettingError: no such name.
    """
    if name not in PATH_SAMPLERS:
        raise SettingError(f"search.warmup_paths: no path sampling '{name}'{did_you_mean(name, PATH_SAMPLERS)}")
    return PATH_SAMPLERS[name](pool, seed=seed, constraints=constraints)
