"""Whether anything keeps the limits, or fits into memory, asked before any training: if not, the nearest is reported.

Where a cost is a sum over layers, its least value is exact. Otherwise architectures are led towards the limits, from
the cheapest ones and from random ones (see `Repair`), and the nearest that was found is reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from l2l_nas.cost.closed_form import num_parameters, pool_bytes
from l2l_nas.cost.device_bytes import device_bytes
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.cost.table import Costs, Limit, format_cost, unmeasured, with_unit
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import ConstraintError, SettingError, SpaceError
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture, format_choices
from l2l_nas.space.constraint import Constraint, NonEmpty, first_violation, total_excess
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.sampling import Repair, UniformPaths

_STARTS = 4  # random ones
_DRAWS = 51  # the median is that of so many random architectures
_MEASUREMENTS = 40  # each takes some tenths of a second


def check_limits(
    pool: LayerPool, costs: Costs, limits: Sequence[Limit], *, constraints: Sequence[Constraint] = (), seed: int = 0
) -> None:
    """Refuse limits that no architecture keeps. The cheapest in FLOPs are the first to be measured.

    Args:
        constraints: what architectures must keep beside limits.
        seed: of random starts.

    Raises:
        ConstraintError: none was found; the message has the nearest miss.
    """
    for limit in limits:
        cheapest = least(pool, costs, limit.cost.name)
        if cheapest is not None and limit.excess(cheapest) > 0:
            raise _missed(limit, "no architecture needs so little; the least is", cheapest)
    cheap = [limit for limit in limits if not limit.cost.is_measured]
    measured = [limit for limit in limits if limit.cost.is_measured]
    others = (NonEmpty(pool), *constraints, *cheap)
    allowed = UniformPaths(pool, seed=seed, constraints=others)
    try:
        allowed.path_at(0)
    except ConstraintError as error:
        raise _nearest_miss(pool, costs, cheap, others, seed) or error from None
    if measured:
        draws = [allowed.path_at(-1 - number) for number in range(_STARTS)]
        _refuse_slow(pool, costs, measured, others, draws, seed)


def least(pool: LayerPool, costs: Costs, name: str) -> Architecture | None:
    """The cheapest architecture that has a layer at all; None where the cost is no sum over layers."""
    of_layer = costs[name].of_layer
    if of_layer is None:
        return None

    def spent(layer: Layer) -> float:
        return 0.0 if layer.candidate.is_skip else of_layer(layer)

    rows = [[layer for layer in pool.layers if layer.position == index] for index in range(len(pool))]
    chosen = [min(row, key=spent) for row in rows]
    if all(layer.candidate.is_skip for layer in chosen):
        cheapest = min((layer for row in rows for layer in row if not layer.candidate.is_skip), key=spent)
        chosen[cheapest.position] = cheapest
    return pool.canonical(Architecture(tuple(layer.candidate.name for layer in chosen)))


def _nearest_miss(
    pool: LayerPool, costs: Costs, limits: Sequence[Limit], constraints: Sequence[Constraint], seed: int
) -> ConstraintError | None:
    """The error for limits that allow nothing, alone or with other constraints; None if they are not the cause."""
    repair = Repair(pool, partial(total_excess, constraints=constraints))
    generator = random.Random(f"{seed}/limits")
    draws = UniformPaths(pool, seed=seed)
    starts = [draws.path_at(-1 - number) for number in range(_STARTS)]
    starts += filter(None, (least(pool, costs, name) for name in costs))
    nearest, _ = min((repair.descend(start, generator) for start in starts), key=lambda pair: pair[1])
    missed = [limit for limit in limits if limit.excess(nearest) > 0]
    if not missed:
        return None
    worst = max(missed, key=lambda limit: limit.excess(nearest))
    rest = [limit for limit in limits if limit is not worst]
    return _missed(worst, "no architecture was found that keeps to it; the nearest has", nearest, beside=rest)


def _refuse_slow(
    pool: LayerPool,
    costs: Costs,
    limits: Sequence[Limit],
    constraints: Sequence[Constraint],
    draws: Sequence[Architecture],
    seed: int,
) -> None:
    """Measure architectures that should be fast, then neighbours of the fastest, until one is fast enough."""
    tried: dict[Architecture, float] = {}

    def excess(architecture: Architecture) -> float:
        if architecture not in tried:
            if len(tried) == _MEASUREMENTS or first_violation(architecture, constraints) is not None:
                return math.inf
            tried[architecture] = total_excess(architecture, limits)
        return tried[architecture]

    small = [least(pool, costs, name) for name in costs]
    allowed = [a for a in (*filter(None, small), *draws) if first_violation(a, constraints) is None]
    for architecture in sorted(allowed, key=partial(costs.value, "flops")):
        if excess(architecture) == 0:
            return
    fastest = min(tried, key=lambda architecture: tried[architecture])
    nearest, missed = Repair(pool, excess).descend(fastest, random.Random(f"{seed}/measured"))
    if missed > 0:
        worst = max(limits, key=lambda limit: limit.excess(nearest))
        why = f"none of {len(tried)} architectures measured keeps to it; the nearest has"
        raise _missed(worst, why, nearest)


def _missed(limit: Limit, why: str, nearest: Architecture, *, beside: Sequence[Limit] = ()) -> ConstraintError:
    settings = [f"search.limits.{one.cost.name}={format_cost(one.cost.name, one.most)}" for one in (limit, *beside)]
    together = f" together with {', '.join(settings[1:])}" if beside else ""
    runs = [(name, len(list(group))) for name, group in groupby(nearest.choices)]
    named = ", ".join(f"{count}*{name}" if count > 1 else name for name, count in runs)
    spent = with_unit(limit.cost.name, limit.value(nearest))
    return ConstraintError(f"{settings[0]}{together}: {why} {spent} ({named}): allow at least that")


def extremes(pool: LayerPool, *, constraints: Sequence[Constraint] = (), seed: int = 0) -> dict[str, Architecture]:
    """The smallest, the median and the largest architecture, by their weights.

    The ends are those of every position by itself, or the ends of the random ones where constraints refuse those; the
    median is that of random ones.

    Raises:
        ConstraintError: no architecture is allowed.
    """
    rules = (NonEmpty(pool), *constraints)
    draws = UniformPaths(pool, seed=seed, constraints=rules)
    count = min(_DRAWS, pool.size)
    found = sorted((draws.path_at(number) for number in range(count)), key=lambda one: num_parameters(pool, one))
    ends = [_end(pool, is_large=is_large) for is_large in (False, True)]
    allowed = [one for one in ends if one is not None and first_violation(one, rules) is None]
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


def check_memory(relay: Relay, sizes: tuple[int, ...], architecture: Architecture, *, storage: str) -> None:
    """Refuse an architecture that needs more memory than there is, before anything is trained.

    Args:
        sizes: samples of each micro-batch.
        storage: `relay.storage`: states in files, which are opened when the run begins, need no host memory.

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
    if storage != "file" and relay.server.storage.is_lasting:
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
