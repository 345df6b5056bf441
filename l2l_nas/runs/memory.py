"""The smallest and the largest architectures of a space, and whether the memory there is holds the largest."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from l2l_nas.cost.closed_form import num_parameters, pool_bytes
from l2l_nas.cost.device import device_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.cost.table import unmeasured
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import ConstraintError, SettingError, SpaceError
from l2l_nas.relay.relay import Relay
from l2l_nas.report.text import format_choices
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty, first_violation
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.sampling import Repair, UniformPaths
from l2l_nas.training.problem import Problem

_DRAWS = 51  # the median is that of so many random architectures


def extremes(problem: Problem, *, seed: int = 0) -> dict[str, Architecture]:
    """The smallest, the median and the largest architecture, by their weights.

    The ends are those of every position by itself, or the ends of the random ones where constraints refuse those; the
    median is that of random ones.

    Raises:
        ConstraintError: no architecture is allowed.
    """
    pool = problem.pool
    constraints = (NonEmpty(pool), *problem.constraints)
    draws = UniformPaths(pool, seed=seed, constraints=constraints)
    count = min(_DRAWS, pool.size)
    found = sorted((draws.path_at(number) for number in range(count)), key=lambda one: num_parameters(pool, one))
    ends = [_end(pool, is_large=is_large) for is_large in (False, True)]
    allowed = [one for one in ends if one is not None and first_violation(one, constraints) is None]
    ranked = sorted((*found, *allowed), key=lambda one: num_parameters(pool, one))
    return {"smallest": ranked[0], "median": found[len(found) // 2], "largest": ranked[-1]}


def _end(pool: LayerPool, *, is_large: bool) -> Architecture | None:
    def size(layer: Layer) -> int:
        return sum(layout_of(pool, state).num_parameters for state in layer.states)

    rows: list[list[Layer]] = [[] for _ in pool.positions]
    for layer in pool.layers:
        rows[layer.position].append(layer)
    pick = max if is_large else min
    try:
        return pool.canonical(pool.architecture([pick(row, key=size).candidate.name for row in rows]))
    except (SpaceError, ConstraintError):
        return None  # choices that must follow others


def largest(pool: LayerPool, *, constraints: Sequence[Constraint] = ()) -> Architecture:
    """The architecture with most weights that is allowed, or a random one where the largest of all is refused.

    Raises:
        ConstraintError: no architecture is allowed.
    """
    allowed = (NonEmpty(pool), *unmeasured(constraints))
    end = _end(pool, is_large=True)
    if end is not None and first_violation(end, allowed) is None:
        return end
    return UniformPaths(pool, seed=0, constraints=allowed).path_at(0)


def check_memory(relay: Relay, sizes: tuple[int, ...], architecture: Architecture) -> None:
    """Refuse an architecture that needs more memory than there is, before anything is trained.

    Args:
        sizes: samples of each micro-batch.

    Raises:
        SettingError: it does not fit; the message has the nearest one that does, if any was found.
    """
    there = relay.device.free_bytes() + relay.device_bytes - relay.bank.unused_bytes
    _refuse(
        relay.pool,
        architecture,
        needs=lambda one: float(device_bytes(RelayPath(relay, sizes, one))),
        there=there,
        what="device memory",
        advice=f"a smaller train.micro_batch, relay.stash=host, search.limits.device_bytes={there}",
    )
    if relay.server.storage.is_lasting:
        host_bytes = free_memory_bytes()
        _refuse(
            relay.pool,
            architecture,
            needs=lambda one: float(pool_bytes(relay, relay.pool.path(one))),
            there=host_bytes,
            what="host memory",
            advice="relay.storage=file",
        )


def _refuse(
    pool: LayerPool,
    architecture: Architecture,
    *,
    needs: Callable[[Architecture], float],
    there: int,
    what: str,
    advice: str,
) -> None:
    if needs(architecture) <= there:
        return

    def excess(one: Architecture) -> float:
        return max(0.0, needs(one) / max(there, 1) - 1) if NonEmpty(pool).violation(one) is None else math.inf

    nearest, left = Repair(pool, excess).descend(architecture, random.Random(0))
    hint = "none was found that fits" if left > 0 else f"the nearest that fits: {format_choices(nearest)}"
    raise SettingError(
        f"{format_choices(architecture)}: a training step needs {needs(architecture):,.0f} bytes of {what}, {there:,} "
        f"are free; {hint}; what would help: {advice}"
    )
