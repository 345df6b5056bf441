"""What a search that takes a network apart takes besides trials and finalists: its blocks, and their scores.

[Note: seconds of blocks] Positions are alike in most networks. So those of each kind are measured once, the first of
them, with a few steps of each candidate; the others take as long. Scores are passes through networks, in which layers
are shared as `prefixes` says. What a pass takes follows from what a score of the original takes, and from the layers'
operations.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Sequence

from l2l_nas.compress.imitation import BlockDistillation
from l2l_nas.cost.work import ForwardWork
from l2l_nas.eps.layout import layout_of
from l2l_nas.relay.interface import Batch
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes

MEASURED_STEPS = 3  # of each candidate; the first one is slow


class _Clock:
    """Tells the seconds of a candidate's steps from those of all else that is done for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last, self._steps = clock(), list[float]()

    def after_step(self, key: str, samples: int) -> None:
        """A step is done."""
        self._steps.append(self._clock())

    def candidate(self) -> tuple[float, float]:
        """A candidate is done: seconds of all but its steps, and of a step."""
        now = self._clock()
        each = [later - earlier for earlier, later in itertools.pairwise(self._steps)]
        step = min(each, default=0.0)
        fixed = max(0.0, now - self._last - len(self._steps) * step)
        self._last, self._steps = now, []
        return fixed, step


def block_seconds(
    distillation: BlockDistillation, inputs: Batch, *, seconds: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds of all blocks but their steps, and of one step of each of them; see [Note: seconds of blocks].

    Args:
        distillation: on a copy of the weights, with as many steps as are measured.
        seconds: that may pass before kinds of positions that were not seen count as the others do on average.
        clock: gives the time in seconds.
    """
    pool = distillation.server.pool
    last = {position.name: position.candidates[-1].name for position in pool.positions}
    kinds = _kinds(pool)
    found: dict[object, tuple[float, float]] = {}
    position, sums = "", (0.0, 0.0)
    times, began = _Clock(clock), clock()
    with contextlib.closing(distillation.run(inputs, after_step=times.after_step)) as blocks:
        for key, _ in blocks:
            name, candidate = key.rsplit("/", 1)
            sums = (0.0, 0.0) if name != position else sums
            position, one = name, times.candidate()
            sums = (sums[0] + one[0], sums[1] + one[1])
            if name not in kinds or candidate != last[name]:
                continue
            found.setdefault(kinds[name], sums)
            if found.keys() >= {*kinds.values()} or clock() - began > seconds:
                break
    if not found:
        return 0.0, 0.0
    usual = tuple(map(statistics.fmean, zip(*found.values(), strict=True)))
    every = [found.get(kind, usual) for kind in kinds.values()]
    return sum(one[0] for one in every), sum(one[1] for one in every)


def _kinds(pool: LayerPool) -> dict[str, object]:
    """Of positions with a choice, what tells those apart that may take unlike times."""
    takes = check_shapes(pool).takes
    found: dict[str, list[object]] = {}
    for layer in pool.layers:
        shapes = [entry.shape for entry in layout_of(pool, layer.key).parameters]
        name = pool.positions[layer.position].name
        found.setdefault(name, [takes[layer.position]]).append((layer.candidate.name, tuple(shapes)))
    choosing = {position.name for position in pool.positions if len(position.candidates) > 1}
    return {name: tuple(kind) for name, kind in found.items() if name in choosing}


class ScorePasses:
    """Counts passes of the original network that scores of networks take; see [Note: seconds of blocks].

    Args:
        population: networks that are scored at once.
        extra: passes of the original beside those.
    """

    def __init__(self, pool: LayerPool, *, population: int, extra: int = 0) -> None:
        self._population, self._extra, self._work = population, extra, ForwardWork(pool)
        self._original = self._work.of_network(pool.original)

    def __call__(self, networks: Sequence[Architecture]) -> float:
        """Of networks that are scored in this order, so many at once."""
        starts = range(0, len(networks), self._population)
        parts = (networks[start : start + self._population] for start in starts)
        return sum(self._work.of_pass(part) / self._original + self._extra for part in parts)
