"""A segment: a stretch of one network's training, and what it is scored on at its end.

A trial is a segment, or several where it is scored on its way; a finalist's round is another; so is a network of random
search. A network is paused where a segment ends, and goes on with the weights that it has, wherever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, SettingError, did_you_mean
from l2l_nas.nas.evaluation.stage_score import StageScore, score_steps, stage_score
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.score import Score

AfterStep = Callable[[float], None]  # called with the loss of a step

# what a network trains first, given the shared weights; a server other than the shared one is its own
START_WEIGHTS: dict[str, Callable[[ParamServer, Architecture], ParamServer]] = {
    "shared": lambda shared, architecture: shared,
    "fork": lambda shared, architecture: shared.fork(path_states(shared.pool, architecture)),
    "scratch": lambda shared, architecture: shared.fork(()),  # every layer from the run's seed
}


def check_trial_weights(name: str) -> None:
    """Refuse a name that is none.

    Raises:
        SettingError: with those there are.
    """
    if name not in START_WEIGHTS:
        raise SettingError(f"search.trial_weights: no such weights as '{name}'{did_you_mean(name, START_WEIGHTS)}")


class ScoredOn(StrEnum):
    """The data that a segment is scored on.

    Attributes:
        SAMPLE: at most 1,024 samples of the validation part; training goes on as if it had not been scored.
        VALIDATION: the validation part, as trials are compared.
        ERRORS: the validation part, with standard errors and in the precision of the result.
        TEST: the same, and the test part.
    """

    SAMPLE = "sample"
    VALIDATION = "validation"
    ERRORS = "errors"
    TEST = "test"


@dataclass(frozen=True)
class Segment:
    """A stretch of one network's training. The learning rate rises and falls once over all segments of a network.

    Args:
        name: what it is, in words: "trial 12".
        architecture: of the network.
        weights: that the network starts from, a key of `START_WEIGHTS`; "shared": it trains the shared weights.
        start: number of the segment's first step; it decides the batches and the dropout.
        steps: to train.
        learning_rate: peak.
        done: steps that the network had before, of the same rise and fall.
        total: steps of all its segments; 0: of this one.
        scored_on: what it is scored on at its end.
        server: weights that the network goes on with; None: it starts from `weights`, and on weights of its own what
            was done before is done again.
        keeps_weights: whether its weights are wanted.
    """

    name: str
    architecture: Architecture
    weights: str
    start: int
    steps: int
    learning_rate: float
    done: int = 0
    total: int = 0
    scored_on: ScoredOn = ScoredOn.TEST
    server: ParamServer | None = None
    keeps_weights: bool = True

    @property
    def score_steps(self) -> tuple[int, ...]:
        """After how many steps of its training a finalist is scored; the last is the segment's end."""
        return score_steps(self.done, self.steps, self.total or self.steps)

    def rung(self, done: int) -> str:
        """The name of a place in the network's training: "620/740"."""
        return f"{done}/{self.total or self.steps}"

    @property
    def only_scores(self) -> bool:
        """Whether it scores the shared weights as they are."""
        return self.weights == "shared" and self.server is None and not self.steps


@dataclass(frozen=True)
class SegmentResult:
    """A segment that was trained and scored, or the reason why it was not.

    Args:
        scores: by part of the data, "validation" and, where there is one, "test"; empty where it failed.
        server: the network's weights, if they are wanted.
        rungs: metrics of the validation part on its way and at its end, by `Segment.rung`; of a trial there are none.
        error: what the architecture failed with.
        provenance: which weights a trial was scored with; see `WeightProvenance.entry`.
        steps: how many were trained on the shared weights.
        seconds: it took.
        worker: which process trained it, from 1; 0 for the search's own.
    """

    scores: Mapping[str, Score] = field(default_factory=dict)
    server: ParamServer | None = None
    rungs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    error: L2LError | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    worker: int = 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the validation part."""
        return self.scores["validation"].values if self.scores else {}

    @property
    def stage_score(self) -> StageScore | None:
        """What networks are compared by after it, of the segment alone; None where that are its metrics."""
        return stage_score(self.rungs, self.scores["validation"]) if self.scores else None


class SegmentExecutor(Protocol):
    """Runs segments: in this process, or on any `concurrent.futures.Executor`.

    The search alone asks and tells the study. What waits may raise `Stopped`, as the callback's `poll`.
    """

    @property
    def size(self) -> int:
        """How many trials are worth submitting at a time."""

    def submit(self, segment: Segment, *, after_step: AfterStep | None = None) -> None:
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
    executor: SegmentExecutor, segments: Sequence[Segment], *, after_step: Callable[[int, float], None]
) -> Iterator[tuple[int, SegmentResult]]:
    """Run segments: index and result of each, as they come to their ends.

    A generator of results with weights: whoever drops one frees its weights.

    Args:
        after_step: called with the index of a segment and the loss of each of its steps.
    """
    if not segments:
        return
    left = len(segments)
    indices = {segment.name: index for index, segment in enumerate(segments)}
    for index, segment in enumerate(segments):
        executor.submit(segment, after_step=partial(after_step, index))
    del segment, segments
    while left:
        results = executor.finished()
        left -= len(results)
        while results:
            one, result = results.pop()
            yield indices[one.name], result
            del one, result
