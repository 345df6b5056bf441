"""Segments in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from l2l_nas.eps.server import ParamServer
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import AfterStep, Segment, SegmentResult
from l2l_nas.nas.strategies.budget import Budget


class InlineExecutor:
    """This process: segments one after the other, or a population in one pass, where trials only score.

    Args:
        evaluator: does the work.
        size: how many trials are scored together.
        poll: asked between two steps of a network on weights of its own, which may be dropped at any of them.
    """

    def __init__(self, evaluator: Evaluator, *, size: int, poll: Callable[[], None]) -> None:
        self.size = size
        self._evaluator = evaluator
        self._poll = poll
        self._waiting: deque[tuple[Segment, AfterStep | None]] = deque()

    def submit(self, segment: Segment, *, after_step: AfterStep | None = None) -> None:
        """See `SegmentExecutor`."""
        self._waiting.append((segment, after_step))

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """See `SegmentExecutor`: the first that waits, or all that only score."""
        waiting = self._waiting
        if len(waiting) > 1 and all(segment.only_scores for segment, _ in waiting):
            scored = [segment for segment, _ in waiting]
            waiting.clear()
            return list(zip(scored, self._evaluator.run_together(scored), strict=True))
        if not waiting:
            return []
        segment, after_step = waiting.popleft()
        return [(segment, self._evaluator.run(segment, after_step=after_step, poll=self._poll))]


def population_size(server: ParamServer, budget: Budget) -> int:
    """How many trials are evaluated in one pass: more than one where none changes what another sees."""
    reads_only = budget.steps_per_trial == 0
    has_buffers = any(server.layout(key).buffers for key in server.pool.states)
    return budget.population if reads_only and not has_buffers else 1
