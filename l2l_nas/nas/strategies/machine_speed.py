"""How fast a machine is at the parts of a search, measured by a few steps and scores before a time is divided."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.strategies.budget import Division
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine

# steps, of which the first are slow, and scores; fewer where they are slow
_SLOW, _STEPS, _SCORES = 4, 16, 3
_LEAST_SLOW, _LEAST_STEPS = 2, 2
_PROPOSAL = 0.05  # seconds that a sampler thinks of a trial, about


@dataclass(frozen=True)
class MachineSpeed:
    """How fast a machine is.

    Args:
        step: seconds of a training step.
        score: seconds that a trial takes besides its steps.
        workers: processes that share trials and finalists.
        block_step: seconds of one step of each block that is trained by itself.
        fixed: seconds of what is not divided: the measurement itself; of blocks all but their steps, and their scores.
        tried: how many whole trainings of a finalist its learning rate is tried for.
    """

    step: float
    score: float
    workers: int = 1
    block_step: float = 0.0
    fixed: float = 0.0
    tried: float = 0.0

    def seconds(self, division: Division) -> float:
        """What a search will take, about: without start, pictures and export."""
        trials = division.trials * (division.steps_per_trial * self.step + self.score) / self.workers
        finalists = sum(
            -(-one.finalists // self.workers) * one.steps * self.step
            + one.finalists * len(one.score_steps) * self.score / self.workers
            for one in division.rounds
        )
        blocks = self.fixed + (division.block_steps or 0) * self.block_step
        tried = self.tried * division.finalist_steps * self.step if division.finalists else 0.0
        return division.warmup_steps * self.step + blocks + trials + tried + finalists


@dataclass(frozen=True)
class SpeedContext:
    """What a speed is measured with.

    Args:
        evaluator: with the shared weights, which stay as they are.
        path_at: the architecture of a step or a score.
        workers: processes that will share trials and finalists.
        seconds: that steps, scores and blocks may take each, about, where they are slow.
        seed: of the search.
        clock: gives the time in seconds.
    """

    evaluator: Evaluator
    path_at: Callable[[int], Architecture]
    workers: int = 1
    seconds: float = 1.0
    seed: int = 0
    clock: Callable[[], float] = time.perf_counter


def measured(context: SpeedContext) -> MachineSpeed:
    """The speed of this machine, by a few steps and scores on a copy of the weights.

    Raises:
        L2LError: a network cannot be trained.
    """
    step, score = context.evaluator.do(_seconds, context.seconds, context.path_at, context.clock)
    return MachineSpeed(step, score + _PROPOSAL, context.workers)


def _seconds(
    evaluator: Evaluator, seconds: float, path_at: Callable[[int], Architecture], clock: Callable[[], float]
) -> tuple[float, float]:
    """Seconds of a step and of a score."""
    relay, trainer = evaluator.relay, evaluator.trainer
    try:
        relay.use(evaluator.server.fork(()))
        step = _step_seconds(trainer, seconds, path_at, clock)
        began, done = clock(), 0
        while done < _SCORES:
            path = path_at(done)
            trainer.recalibrate(path)
            trainer.evaluate(path, evaluator.validation)
            done += 1
            if clock() - began > seconds:
                break
        return step, (clock() - began) / done
    finally:
        relay.use(evaluator.server)


def _step_seconds(
    trainer: Trainer, seconds: float, path_at: Callable[[int], Architecture], clock: Callable[[], float]
) -> float:
    """Seconds of a training step; the first ones, which are slow, do not count."""
    times: list[float] = []

    def fit(steps: int) -> float:
        trainer.fit(
            path_at,
            start=len(times),
            steps=steps,
            schedule=Cosine(1e-4, 2 * (_SLOW + _STEPS)),
            after_step=lambda step, loss: times.append(clock()),
        )
        return times[-1] - times[-2]

    last = fit(_LEAST_SLOW)
    if last * (_SLOW - _LEAST_SLOW) <= seconds:
        last = fit(_SLOW - _LEAST_SLOW)
    first, fitting = len(times), int(min(_STEPS, seconds / max(last, 1e-9)))
    fit(1 + max(_LEAST_STEPS, fitting))  # the first one has a start
    return statistics.fmean(later - earlier for earlier, later in itertools.pairwise(times[first:]))
