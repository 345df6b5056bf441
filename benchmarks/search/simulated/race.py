"""The project's own search on a landscape: its phases, study, sampler and budget as they are, and no training.

What carries out a search's segments answers from the landscape and charges what it answers. It hands on the shared
weights, of which nothing is ever made, in place of a network's own: the phases ask only whether there are some.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import torch
from torch import nn

from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.simulated.search import Ledger
from l2l_nas import AdamW, Batches, Candidate, Data, LayerPool, ParamServer, Position, Relay, TensorSpec, Trainer
from l2l_nas.cost.table import Costs
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.evaluation.early_stopping import NeverStop
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import AfterStep, ScoredOn, Segment, SegmentResult
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.samplers.base import Genotype
from l2l_nas.nas.strategies.budget import Budget, Division
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.division import division, in_trainings
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.nas.study.storage import Unsaved
from l2l_nas.nas.study.study import Study
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.score import Score
from l2l_nas.training.task import Classification
from l2l_nas.training.weights import SharedWeights

_GOALS = (Goal("accuracy", True),)
_RATE = 0.008
_SAMPLES, _BATCH = 4308, 64  # of the default task: a finalist in all rounds has 740 steps


class LandscapeExecutor:
    """Answers segments from a landscape; see `SegmentExecutor`."""

    size = 1

    def __init__(self, landscape: Landscape, server: ParamServer) -> None:
        self.ledger = Ledger()
        self._landscape = landscape
        self._server = server
        self._waiting: list[Segment] = []

    def submit(self, segment: Segment, *, after_step: AfterStep | None = None) -> None:
        self._waiting.append(segment)

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        waiting, self._waiting = self._waiting, []
        return [(segment, self._result(segment)) for segment in waiting]

    def _result(self, segment: Segment) -> SegmentResult:
        genotype = segment.architecture.choices
        scores = {
            segment.rung(done): {"accuracy": self.ledger.train(self._landscape, genotype, done / segment.total)}
            for done in segment.score_steps
        }
        *_, last = scores.values()
        is_trial = segment.scored_on is ScoredOn.VALIDATION
        return SegmentResult({"validation": Score(last)}, self._server, rungs={} if is_trial else scores)


def race(landscape: Landscape, numbers: Division, *, seed: int) -> tuple[Genotype, Ledger]:
    """What the project's search returns; `numbers` are what it does how often."""
    pool = _pool(landscape)
    same = {name: getattr(numbers, name) for name in Division.__dataclass_fields__}
    budget = Budget(**same, learning_rate=_RATE, finalist_learning_rate=_RATE, checkpoint_seconds=math.inf)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay, data = Relay(server), _no_data()
    trainer = Trainer(relay, Classification(), Batches(data.train, batch_size=1, seed=0), 1)
    executor = LandscapeExecutor(landscape, server)
    context = SearchContext(
        evaluator=Evaluator(relay, trainer, validation=data.validation, budget=budget),
        weights=SharedWeights(server),
        budget=budget,
        goals=_GOALS,
        constraints=(),
        costs=Costs(()),
        early_stop=NeverStop(),
        paths=UniformPaths(pool, seed=seed),
        seed=seed,
        executor=executor,
        study=Study(Unsaved(), pool=pool, goals=_GOALS, sampler="gp_hamming", seed=seed, num_trials=numbers.trials),
        checkpoint=Checkpoint(Path("never written")),
        callback=Callback(),
    )
    for phase in (Trials(), Finalists()):
        phase.run(context)
    assert context.best is not None  # `Finalists` has chosen it
    return context.best.architecture.choices, executor.ledger


def numbers_for(landscape: Landscape, budget: float) -> Division:
    """How the project divides so many whole trainings, as `search.trainings` does."""
    pool = _pool(landscape)
    given = {"finalists": 8, "finalist_rounds": 3}  # the default settings
    start = division(pool, samples=_SAMPLES, batch_size=_BATCH, trial_weights="scratch", explicit=given)
    return in_trainings(start, budget, explicit=(), most_trials=pool.size)


def _pool(landscape: Landscape) -> LayerPool:
    return pool_of(tuple((name, tuple(some)) for name, some in landscape.space.items()))


@cache
def pool_of(space: tuple[tuple[str, tuple[str, ...]], ...]) -> LayerPool:
    """Positions and candidates of a space, by name; their layers are never built."""
    positions = [Position(name, [Candidate(one, nn.Identity) for one in names]) for name, names in space]
    return LayerPool(positions, inputs=TensorSpec((1,)))


@cache
def _no_data() -> Data:
    """Three samples, which a trainer asks for and nobody looks at."""
    return Data.from_arrays(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
