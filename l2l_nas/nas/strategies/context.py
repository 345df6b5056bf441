"""What the phases of a search work with: its parts, and what they have done so far."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from l2l_nas.cost.table import Costs, in_order, unmeasured
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import of_user
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.earlier_task import EarlierTask
from l2l_nas.nas.evaluation.early_stopping import EarlyStop
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import SegmentExecutor
from l2l_nas.nas.objectives import Goal, TrialRecord, ranked
from l2l_nas.nas.strategies.baseline import Baseline
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.finalists import Finalist, FinalistCache
from l2l_nas.nas.strategies.sizes import Size
from l2l_nas.nas.study.ledger import Ledger
from l2l_nas.nas.study.study import Study
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import PathSampler, UniformPaths
from l2l_nas.training.weights import SharedWeights

_DRAWS = 1000


class StatefulPhase(Protocol):
    """What is kept of a phase: see `Phase`."""

    def state(self, search: Any) -> Mapping[str, Any]:
        """How far it is."""

    def results(self, search: Any) -> Mapping[str, Any]:
        """What it found."""


@dataclass(kw_only=True)
class SearchContext:
    """The parts of a search, and what its phases have done so far.

    Args:
        evaluator: does what takes the weights. `train(path_at, start=, steps=, learning_rate=, total=)` trains the
            shared ones, of which `path_at(step)` is the architecture of a step. `score(architecture)` and
            `score_all(architectures)` are metrics of the validation part with them. `do(work)` is for all else.
        weights: saves and loads them.
        budget: numbers of the search, such as `budget.trials`.
        goals: the objectives, each with `name` and `maximize`.
        constraints: trials that they refuse are never trained, nor are paths of warm-up that those refuse which need no
            measurement. That a path has a layer is one of them in any case.
        costs: of an architecture, recorded with each trial.
        early_stop: says which trials end before their last step.
        paths: of warm-up: `path_at(step)`. They must be allowed, and not empty.
        seed: of the paths.
        enqueued: architectures that the user wants tried first.
        earlier_tasks: what earlier runs of the space found.
        executor: evaluates trials and trains networks alone, here or in workers; see `SegmentExecutor`.
        study: `propose(architecture)` makes an architecture the next trial; `records` are the trials; `num_evaluated`
            is how many of those asked for are done.
        checkpoint: where the shared weights are saved.
        callback: a long phase calls its `phase`, `advance` and `poll`.
        cache: finds finalists of an earlier session again; without it, they are always trained.

    Attributes:
        server: the shared weights.
        coverage: how often each candidate was trained on the shared weights.
        warm_steps: steps of warm-up on random paths.
        catch_up_steps: steps of warm-ups of candidates that joined later.
        new_candidates: target warm-up steps of each new candidate, by row and candidate.
        weights_of_trials: those that finalists may go on with.
        best: what is returned; None until a phase has chosen it.
        finalists: those trained further, in the order in which they were chosen; without weights.
        abandoned: why others were not trained further, or not to the end, by the numbers of their trials.
        baseline: what random search came to; None if it did not follow, or could not train any network.
        sizes: of networks that are asked for; see [Note: sizes] in `sizes.py`.
        of_sizes: the best of each size by its name, with its weights, once finalists are trained.
        phases: all of the search; what they are at is saved beside the weights. The search sets them.
        over: those that are done in this session. The search sets them.
    """

    evaluator: Evaluator
    weights: SharedWeights
    budget: Budget
    goals: tuple[Goal, ...]
    constraints: Sequence[Constraint]
    costs: Costs
    early_stop: EarlyStop
    paths: PathSampler
    seed: int
    enqueued: Sequence[Architecture] = ()
    earlier_tasks: tuple[EarlierTask, ...] = ()
    executor: SegmentExecutor
    study: Study
    checkpoint: Checkpoint
    callback: Callback
    cache: FinalistCache | None = None

    server: ParamServer = field(init=False)
    coverage: Coverage = field(init=False)
    warm_steps: int = field(default=0, init=False)
    catch_up_steps: int = field(default=0, init=False)
    new_candidates: Mapping[str, Mapping[str, int]] = field(default_factory=dict, init=False)
    weights_of_trials: dict[Architecture, ParamServer] = field(default_factory=dict, init=False)
    best: Finalist | None = field(default=None, init=False)
    finalists: tuple[Finalist, ...] = field(default=(), init=False)
    abandoned: Mapping[int, str] = field(default_factory=dict, init=False)
    baseline: Baseline | None = field(default=None, init=False)
    sizes: tuple[Size, ...] = field(default=(), init=False)
    of_sizes: Mapping[str, Finalist] = field(default_factory=dict, init=False)
    phases: tuple[StatefulPhase, ...] = field(default=(), init=False)
    over: list[StatefulPhase] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.server = self.evaluator.server
        self.evaluator.count_with(self.ledger.add)
        self.constraints = in_order((NonEmpty(self.pool), *self.constraints))
        self.coverage = Coverage(self.pool)
        for record in self.study.records:
            self.costs.remember(record.architecture, record.metrics)
        with of_user(self.early_stop, "early_stop"):
            self.early_stop.learn(self.study.records)
        self._saved_at = time.monotonic()

    @property
    def pool(self) -> LayerPool:
        """The space."""
        return self.server.whole_pool

    @property
    def ledger(self) -> Ledger:
        """What the search has spent.

        What `evaluator` and `executor` do is counted; `ledger.add(steps)` counts what else a phase does.
        """
        return self.study.ledger

    def save(self) -> None:
        """Save the shared weights, and how far the phases are.

        Raises:
            StorageError: the folder could not be written.
        """
        self.ledger.store()
        extra: dict[str, Any] = {}
        for phase in self.phases:
            with of_user(phase, "phase"):
                extra |= phase.state(self)
        self.weights.save(self.checkpoint, self.server, extra={**extra, "coverage": self.coverage.to_json()})
        self._saved_at = time.monotonic()

    def save_when_due(self) -> None:
        """The same, if the budget's time has passed since the last save."""
        if time.monotonic() - self._saved_at >= self.budget.checkpoint_seconds:
            self.save()

    def figures(self, architecture: Architecture) -> dict[str, float]:
        """All costs that take no time, and those measured that something depends on."""
        return self.costs.figures(architecture, measure=[g.name for g in self.goals if g.name in self.costs])

    def is_allowed(self, architecture: Architecture) -> bool:
        """Whether the constraints allow it; those that measure are asked last."""
        return first_violation(architecture, self.constraints) is None

    def draws(self, seed: int) -> UniformPaths:
        """Random architectures that all constraints allow which need no measurement."""
        return UniformPaths(self.pool, seed=seed, constraints=unmeasured(self.constraints))

    def random_architectures(self, seed: int) -> Iterator[Architecture]:
        """Random ones that are allowed, with repeats, until few are new."""
        draws = self.draws(seed)
        for step in range(_DRAWS):
            self.callback.poll()
            architecture = draws.path_at(step)
            if self.is_allowed(architecture):
                yield architecture

    def allowed(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Trials but those that were complete before a limit was set that they break.

        What has candidates that are gone stays: no limit can be asked about it.
        """
        return tuple(r for r in records if not r.state.has_score or not r.in_space or self.is_allowed(r.architecture))

    def costs_of(self, record: TrialRecord) -> dict[str, float]:
        """All costs that are known of a trial's architecture; of what is gone from the pool, those recorded with it."""
        if record.in_space:
            return self.figures(record.architecture)
        return {name: value for name, value in record.metrics.items() if name in self.costs}

    def best_so_far(self) -> Finalist | None:
        """What a search that ends now would return: what was chosen, else the best trial as it is; None before one."""
        if self.best is not None:
            return self.best
        best = ranked([record for record in self.allowed(self.study.records) if record.in_space], self.goals)
        return Finalist(best[0], self.figures(best[0].architecture)) if best else None

    def results(self) -> dict[str, Any]:
        """What phases found beside trials and finalists, of those that are over; see `Phase.results`."""
        found: dict[str, Any] = {}
        for phase in self.over:
            with of_user(phase, "phase"):
                more = phase.results(self)
                json.dumps(more)  # the study has it as JSON
                found |= more
        return found

    def note(self, record: TrialRecord) -> None:
        """Tell the callbacks of a trial."""
        self.callback.trial(record, self.study.records)
