"""One trial: weights, training, score. And who evaluates trials: this process, one job or one population after another.

[Note: back to the pool] Whatever becomes of a trial or finalist on a copy, the relay serves the shared weights again
before anything else happens, and nothing of the copy is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from optuna.trial import Trial

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, NonFiniteError
from l2l_nas.relay.executor import Relay
from l2l_nas.search.budget import Budget
from l2l_nas.search.records import State
from l2l_nas.search.weights import FINALIST_WEIGHTS, TRIAL_WEIGHTS, Ledger
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine

AfterStep = Callable[[int, float], None]


@dataclass(frozen=True)
class Job:
    """A trial to evaluate.

    Args:
        trial: Optuna's.
        architecture: canonical, and allowed.
        ordinal: how many jobs came before; it decides the numbers of its steps.
    """

    trial: Trial
    architecture: Architecture
    ordinal: int


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Args:
        metrics: all of them by name, costs too; None unless complete.
        reason: why it failed.
        weights: which weights it was scored with; see `Ledger.entry`.
        seconds: what it took.
        shared_steps: how many steps on the shared weights it trained.
        worker: which process evaluated it, from 1; 0 for the search's own.
    """

    state: State
    metrics: Mapping[str, float] | None = None
    reason: str = ""
    weights: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    shared_steps: int = 0
    worker: int = 0


@dataclass(frozen=True)
class Trained:
    """A finalist that was trained further, or the reason why it was not.

    Args:
        index: which one.
        metrics: all of them by name, costs too.
        server: its weights.
        refused: why there are none.
    """

    index: int
    metrics: dict[str, float] | None = None
    server: ParamServer | None = None
    refused: L2LError | None = None


class Crew(Protocol):
    """Evaluates trials and trains finalists. What waits may raise `Stopped`, as the observer's `poll`."""

    @property
    def size(self) -> int:
        """How many jobs it takes at a time."""

    def submit(self, job: Job) -> None:
        """Take a job."""

    def finished(self) -> list[tuple[Job, Outcome]]:
        """Jobs that are done: waits for one at least, if any was submitted."""

    def train_finalists(
        self, architectures: Sequence[Architecture], *, after_step: Callable[[float], None]
    ) -> Iterator[Trained]:
        """Train architectures further, each on a copy, and score them; see `Evaluator.train_finalist`.

        Args:
            after_step: called with the loss of each step that is done.
        """


class Evaluator:
    """Evaluates architectures on one relay.

    Args:
        relay: with the shared weights.
        trainer: on that relay.
        validation: what trials are scored on.
        budget: how much of what.
        scorer: scores finalists; the trainer, unless its executor computes in low precision.
    """

    def __init__(
        self, relay: Relay, trainer: Trainer, *, validation: Split, budget: Budget, scorer: Trainer | None = None
    ) -> None:
        self._relay = relay
        self._pool = relay.pool
        self._server = relay.server
        self._trainer = trainer
        self._scorer = scorer or trainer
        self._validation = validation
        self._budget = budget
        self._schedule = Cosine(budget.learning_rate, budget.shared_steps)
        self._ledger = Ledger()

    def evaluate(self, architecture: Architecture, ordinal: int, *, poll: Callable[[], None]) -> Outcome:
        """Train an architecture as the budget says, and score it.

        Args:
            ordinal: see `Job`.
            poll: called between two steps of a trial on a copy, which may be dropped at any of them.
        """
        started = time.monotonic()
        budget = self._budget
        first = budget.warmup_steps + ordinal * budget.steps_per_trial
        server = TRIAL_WEIGHTS[budget.trial_weights](self._server, architecture)
        is_shared = server is self._server
        trained = 0

        def after_step(step: int, loss: float) -> None:
            nonlocal trained
            trained += 1
            if not is_shared:
                poll()

        try:
            if not is_shared:
                self._relay.use(server)
            self._trainer.fit(
                lambda step: architecture,
                start=first,
                steps=budget.steps_per_trial,
                schedule=self._schedule if is_shared else Cosine(budget.learning_rate, budget.steps_per_trial),
                offset=0 if is_shared else first,
                after_step=after_step,
            )
            scored = self._still(server, architecture)
            weights = self._ledger.entry(budget.trial_weights, scored, architecture)
            metrics = self._score(scored, architecture)
            _refuse_non_finite(metrics, step=first + budget.steps_per_trial)
        except NonFiniteError as error:
            metrics, weights, reason = None, {}, str(error)
        else:
            reason = ""
        finally:
            self._use_pool()
        return Outcome(
            state="complete" if metrics is not None else "failed",
            metrics=self._with_costs(architecture, metrics),
            reason=reason,
            weights=weights,
            seconds=time.monotonic() - started,
            shared_steps=trained if is_shared else 0,
        )

    def evaluate_population(self, architectures: Sequence[Architecture]) -> list[Outcome]:
        """Score architectures with the weights as they are, in one pass over their prefix tree."""
        started = time.monotonic()
        scores = self._trainer.evaluate_population(
            architectures, self._validation, max_bytes=self._budget.population_bytes
        )
        seconds = (time.monotonic() - started) / len(architectures)
        outcomes = []
        for architecture, metrics in zip(architectures, scores, strict=True):
            try:
                _refuse_non_finite(metrics, step=self._budget.warmup_steps)
            except NonFiniteError as error:
                outcomes.append(Outcome("failed", reason=str(error), seconds=seconds))
            else:
                weights = self._ledger.entry(self._budget.trial_weights, self._server, architecture)
                figures = self._with_costs(architecture, metrics)
                outcomes.append(Outcome("complete", figures, weights=weights, seconds=seconds))
        return outcomes

    def train_finalist(
        self, architecture: Architecture, index: int, *, after_step: AfterStep
    ) -> tuple[dict[str, float], ParamServer]:
        """Train an architecture further, on a copy, and score it; returns all metrics, and its weights.

        Args:
            index: which finalist it is; it decides the numbers of its steps.

        Raises:
            NonFiniteError: a gradient or a metric is not finite.
        """
        budget = self._budget
        server = FINALIST_WEIGHTS[budget.trial_weights](self._server, architecture)
        start = budget.steps_before_finalists + index * budget.finalist_steps
        try:
            self._relay.use(server)
            self._trainer.fit(
                lambda step: architecture,
                start=start,
                steps=budget.finalist_steps,
                schedule=Cosine(budget.finalist_learning_rate, budget.finalist_steps),
                offset=start,
                after_step=after_step,
            )
            if self._scorer is not self._trainer:
                self._scorer.executor.use(server)
            self._scorer.recalibrate(architecture)
            metrics = self._scorer.evaluate(architecture, self._validation)
            _refuse_non_finite(metrics, step=start + budget.finalist_steps)
        finally:
            self._use_pool()
        figures = self._with_costs(architecture, metrics)
        assert figures is not None
        return figures, server

    def _with_costs(self, architecture: Architecture, metrics: Mapping[str, float] | None) -> dict[str, float] | None:
        if metrics is None:
            return None
        return {**metrics, "parameters": float(num_parameters(self._pool, architecture))}

    def _still(self, server: ParamServer, architecture: Architecture) -> ParamServer:
        """The server itself, or what it holds for a path now, where other processes go on training it."""
        if not server.storage.is_shared:
            return server
        return server.snapshot(path_states(self._pool, architecture))

    def _score(self, server: ParamServer, architecture: Architecture) -> dict[str, float]:
        """Metrics with these weights; BatchNorm's statistics are measured for this path, never on the shared ones.

        It may leave the relay with a copy.
        """
        states = path_states(self._pool, architecture)
        if server is self._server and any(server.layout(key).buffers for key in states):
            self._relay.use(server.fork(states))
        elif server is not self._relay.server:
            self._relay.use(server)
        self._trainer.recalibrate(architecture)
        return self._trainer.evaluate(architecture, self._validation)

    def _use_pool(self) -> None:
        """See [Note: back to the pool]."""
        try:
            self._relay.use(self._server)
        except NonFiniteError:  # an update that was still under way
            if self._relay.server is self._server:
                raise
            self._relay.use(self._server)


class InlineCrew:
    """This process: jobs one after the other, or a population in one pass, where trials only look.

    Args:
        evaluator: does the work.
        size: how many trials are evaluated together.
        poll: asked between steps; see `Evaluator.evaluate`.
    """

    def __init__(self, evaluator: Evaluator, *, size: int, poll: Callable[[], None]) -> None:
        self.size = size
        self._evaluator = evaluator
        self._poll = poll
        self._jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        """See `Crew`."""
        self._jobs.append(job)

    def finished(self) -> list[tuple[Job, Outcome]]:
        """See `Crew`: all that were submitted."""
        jobs, self._jobs = self._jobs, []
        if len(jobs) > 1:
            outcomes = self._evaluator.evaluate_population([job.architecture for job in jobs])
        else:
            outcomes = [self._evaluator.evaluate(job.architecture, job.ordinal, poll=self._poll) for job in jobs]
        return list(zip(jobs, outcomes, strict=True))

    def train_finalists(
        self, architectures: Sequence[Architecture], *, after_step: Callable[[float], None]
    ) -> Iterator[Trained]:
        """See `Crew`: one after the other."""

        def after(step: int, loss: float) -> None:
            after_step(loss)
            self._poll()

        for index, architecture in enumerate(architectures):
            try:
                metrics, server = self._evaluator.train_finalist(architecture, index, after_step=after)
            except NonFiniteError as error:
                yield Trained(index, refused=error)
            else:
                yield Trained(index, metrics, server)
                del server  # whoever wants it has it: each is a copy of weights and moments


def population_size(server: ParamServer, budget: Budget) -> int:
    """How many trials are evaluated in one pass: more than one where none changes what another sees."""
    looks_only = budget.steps_per_trial == 0
    has_buffers = any(server.layout(key).buffers for key in server.pool.states)
    return budget.population if looks_only and not has_buffers else 1


def _refuse_non_finite(metrics: Mapping[str, float], *, step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"the {name} on the validation data", layer=None, step=step)
