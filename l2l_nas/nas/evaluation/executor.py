"""Who runs segments: this process, or any `concurrent.futures.Executor`. The search alone asks and tells the study."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from l2l_nas.nas.evaluation.evaluator import AfterStep, Evaluator
from l2l_nas.nas.evaluation.segment import Segment, SegmentResult


def no_step(loss: float) -> None:
    """Count nothing."""


class SegmentExecutor(Protocol):
    """Runs segments. What waits may raise `Stopped`, as the callback's `poll`."""

    @property
    def size(self) -> int:
        """How many trials are worth submitting at a time."""

    def submit(self, segment: Segment, *, after_step: AfterStep = no_step) -> None:
        """Take a segment.

        Args:
            after_step: called with the loss of each step that is done, perhaps only at the end.
        """

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """Segments that are done, each once: waits for one at least, if any was submitted.

        Raises:
            Exception: something failed that is not the architecture's fault.
        """


def run_all(
    executor: SegmentExecutor, segments: Sequence[Segment], *, after_step: AfterStep
) -> Iterator[tuple[str, SegmentResult]]:
    """Run segments: name and result of each, as they come to their ends.

    A generator of results with weights: whoever drops one frees its weights.
    """
    left = len(segments)
    for segment in segments:
        executor.submit(segment, after_step=after_step)
    del segment, segments
    while left:
        results = executor.finished()
        left -= len(results)
        while results:
            one, result = results.pop()
            yield one.name, result
            del one, result


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
        self._waiting: deque[tuple[Segment, AfterStep]] = deque()

    def submit(self, segment: Segment, *, after_step: AfterStep = no_step) -> None:
        """See `SegmentExecutor`."""
        self._waiting.append((segment, after_step))

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """See `SegmentExecutor`: the first that waits, or all that only score."""
        scored = [segment for segment, _ in self._waiting if segment.only_scores]
        if len(scored) > 1 and len(scored) == len(self._waiting):
            self._waiting.clear()
            return list(zip(scored, self._evaluator.run_together(scored), strict=True))
        if not self._waiting:
            return []
        segment, after_step = self._waiting.popleft()

        def after(loss: float) -> None:
            after_step(loss)
            if not segment.is_shared:
                self._poll()

        return [(segment, self._evaluator.run(segment, after_step=after))]
