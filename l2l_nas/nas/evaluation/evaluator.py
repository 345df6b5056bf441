"""One trial: weights, training, score. And who evaluates trials: this process, one job or one population after another.

[Note: back to the pool] Whatever becomes of a trial or finalist on a copy, the relay serves the shared weights again
before anything else happens, and nothing of the copy is left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from optuna.trial import Trial

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, MetricError, NonFiniteError, failure_of, one_line
from l2l_nas.nas.evaluation.trial_weights import FINALIST_WEIGHTS, TRIAL_WEIGHTS, Ledger
from l2l_nas.nas.objectives import State
from l2l_nas.nas.strategies.budget import Budget, Round
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.fit import Trainer
from l2l_nas.training.samples import Samples
from l2l_nas.training.score import Score, tested

AfterStep = Callable[[int, float], None]
# asked at a rung ("50/200") with the metrics there: why a trial is stopped, None if it goes on
StopReason = Callable[[str, Mapping[str, float]], str | None]

_SCORED_EARLY = 1024  # samples that a trial is scored on at its rungs


def go_on(rung: str, metrics: Mapping[str, float]) -> str | None:
    """A rule that stops nothing."""
    return None


@dataclass(frozen=True)
class Job:
    """A trial to evaluate.

    Args:
        trial: Optuna's.
        architecture: canonical, and allowed.
        ordinal: how many jobs came before; it decides the numbers of its steps.
        stop_reason: asked at the rungs of the budget, in the search's own process, why it is stopped; None goes on.
    """

    trial: Trial
    architecture: Architecture
    ordinal: int
    stop_reason: StopReason = go_on


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Args:
        metrics: the task's, by name; None unless complete.
        reason: why it failed, or was stopped.
        weights: which weights it was scored with; see `Ledger.entry`.
        seconds: what it took.
        shared_steps: how many steps on the shared weights it trained.
        worker: which process evaluated it, from 1; 0 for the search's own.
        rungs: the metrics that it had on its way.
        server: the weights that it has, where finalists go on with them and they are in this process.
    """

    state: State
    metrics: Mapping[str, float] | None = None
    reason: str = ""
    weights: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    shared_steps: int = 0
    worker: int = 0
    rungs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    server: ParamServer | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", State.of(self.state))  # from a worker it comes as text


@dataclass(frozen=True)
class Training:
    """A network's training on weights of its own, or a part of one; the learning rate rises and falls once in it.

    Args:
        name: what it is, in words: "finalist 3".
        architecture: of the network.
        weights: which it starts from, a key of `FINALIST_WEIGHTS`.
        start: number of its first step; see [Note: steps] in `strategies/default.py`.
        steps: how many.
        learning_rate: peak.
        server: weights of its own that it goes on with; None: it starts from `weights`, and what was done before is
            done again.
        is_tested: whether it is measured on the test part as well.
        done: steps that it had before, of the same rise and fall.
        total: steps of all parts; 0: there are no others.
    """

    name: str
    architecture: Architecture
    weights: str
    start: int
    steps: int
    learning_rate: float
    server: ParamServer | None = None
    is_tested: bool = True
    done: int = 0
    total: int = 0

    @classmethod
    def of_finalist(
        cls, architecture: Architecture, index: int, budget: Budget, *, spend: Round, done: int = 0
    ) -> Training:
        """The part of a finalist's training that is in a round.

        Args:
            index: among those of the round.
            done: steps that it had before.
        """
        return cls(
            f"finalist {index + 1}",
            architecture,
            budget.trial_weights,
            # in a race all networks have the same steps: those of its trial go on
            done if budget.is_raced else spend.start + index * spend.steps,
            spend.steps,
            budget.finalist_learning_rate,
            is_tested=spend.is_last,
            done=done,
            total=budget.finalist_steps,
        )


@dataclass(frozen=True)
class Trained:
    """A network that was trained alone, or the reason why it was not.

    Args:
        index: which one.
        scores: by part of the data, "validation" and, where there is one, "test".
        server: its weights.
        refused: why there are none.
    """

    index: int
    scores: Mapping[str, Score] | None = None
    server: ParamServer | None = None
    refused: L2LError | None = None


class TrialExecutor(Protocol):
    """Evaluates trials and trains networks alone. What waits may raise `Stopped`, as the callback's `poll`."""

    @property
    def size(self) -> int:
        """How many jobs it takes at a time."""

    def submit(self, job: Job) -> None:
        """Take a job."""

    def finished(self) -> list[tuple[Job, Outcome]]:
        """Jobs that are done: waits for one at least, if any was submitted."""

    def train_alone(self, trainings: Sequence[Training], *, after_step: Callable[[float], None]) -> Iterator[Trained]:
        """Train networks, each on weights of its own, and score them; see `Evaluator.train_alone`.

        Args:
            after_step: called with the loss of each step that is done.
        """


@dataclass
class _Course:
    """How far a trial is.

    Attributes:
        first: number of its first step.
        is_shared: whether it trains the shared weights.
        done: how many steps it has trained.
        rungs: the metrics that it had on its way.
    """

    first: int
    is_shared: bool
    poll: Callable[[], None]
    done: int = 0
    rungs: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def after_step(self, step: int, loss: float) -> None:
        """A step is done."""
        self.done += 1
        if not self.is_shared:
            self.poll()


class Evaluator:
    """Evaluates architectures on one relay.

    Args:
        relay: with the shared weights.
        trainer: on that relay.
        validation: what trials are scored on.
        budget: how much of what.
        scorer: scores networks that were trained alone; the trainer, unless its executor computes in low precision.
        test: what those are measured on besides, once each; nothing depends on what comes of it.
    """

    def __init__(
        self,
        relay: Relay,
        trainer: Trainer,
        *,
        validation: Samples,
        budget: Budget,
        scorer: Trainer | None = None,
        test: Samples | None = None,
    ) -> None:
        self._relay = relay
        self._pool = relay.pool
        self._server = relay.server
        self._trainer = trainer
        self._scorer = scorer or trainer
        self._validation = validation
        self._test = test
        self._part = sample_of(validation, seed=self._server.seed)
        self._budget = budget
        self._schedule = budget.schedule(budget.learning_rate, budget.shared_steps)
        self._ledger = Ledger()

    def learn_from(self, trainer: Trainer) -> None:
        """Train with another trainer of the same relay from now on."""
        if self._scorer is self._trainer:
            self._scorer = trainer
        self._trainer = trainer

    def evaluate(
        self, architecture: Architecture, ordinal: int, *, poll: Callable[[], None], stop_reason: StopReason = go_on
    ) -> Outcome:
        """Train an architecture as the budget says, and score it.

        Args:
            ordinal: see `Job`.
            poll: called between two steps of a trial on a copy, which may be dropped at any of them.
            stop_reason: asked at the rungs of the budget whether to go on.
        """
        started = time.monotonic()
        budget = self._budget
        server = TRIAL_WEIGHTS[budget.trial_weights](self._server, architecture)
        first = 0 if budget.is_raced else budget.warmup_steps + ordinal * budget.steps_per_trial
        course = _Course(first, server is self._server, poll)
        try:
            if not course.is_shared:
                self._relay.use(server)
            outcome = self._run(course, server, architecture, stop_reason)
        except Exception as error:
            outcome = Outcome(State.FAILED, reason=one_line(str(failure_of(error))))
        finally:
            self._use_pool()
        return replace(
            outcome,
            seconds=time.monotonic() - started,
            shared_steps=course.done if course.is_shared else 0,
            rungs=course.rungs,
        )

    def _run(
        self, course: _Course, server: ParamServer, architecture: Architecture, stop_reason: StopReason
    ) -> Outcome:
        """Train to one rung after the other and to the end, unless the rule stops it."""
        steps = self._budget.steps_per_trial
        for rung in self._budget.rungs:
            self._train_to(rung, course, architecture)
            name = f"{rung}/{steps}"
            course.rungs[name] = _finite(self._score_early(server, architecture), step=course.first + rung)
            reason = stop_reason(name, course.rungs[name])
            if reason is not None:
                return Outcome(State.STOPPED, reason=reason)
        self._train_to(steps, course, architecture)
        scored = self._unchanging(server, architecture)
        weights = self._ledger.entry(self._budget.trial_weights, scored, architecture)
        metrics = _finite(self._score(scored, architecture), step=course.first + steps)
        return Outcome(State.COMPLETE, metrics, weights=weights, server=server if self._budget.is_raced else None)

    def _train_to(self, end: int, course: _Course, architecture: Architecture) -> None:
        budget = self._budget
        own = budget.schedule(
            budget.learning_rate, budget.finalist_steps if budget.is_raced else budget.steps_per_trial
        )
        self._trainer.fit(
            lambda step: architecture,
            start=course.first + course.done,
            steps=end - course.done,
            schedule=self._schedule if course.is_shared else own,
            offset=0 if course.is_shared else course.first,
            after_step=course.after_step,
        )

    def evaluate_population(self, architectures: Sequence[Architecture]) -> list[Outcome]:
        """Score architectures with the weights as they are, in one pass over their prefix tree.

        Where one of them fails, each is scored by itself.
        """
        started = time.monotonic()
        try:
            scores = self._trainer.evaluate_population(
                architectures, self._validation, max_bytes=self._budget.population_bytes
            )
        except Exception as error:
            failure = failure_of(error)
            if len(architectures) > 1:
                return [outcome for one in architectures for outcome in self.evaluate_population([one])]
            return [Outcome(State.FAILED, reason=one_line(str(failure)), seconds=time.monotonic() - started)]
        seconds = (time.monotonic() - started) / len(architectures)
        outcomes = []
        for architecture, metrics in zip(architectures, scores, strict=True):
            try:
                figures = _finite(metrics, step=self._budget.warmup_steps)
            except NonFiniteError as error:
                outcomes.append(Outcome(State.FAILED, reason=str(error), seconds=seconds))
            else:
                weights = self._ledger.entry(self._budget.trial_weights, self._server, architecture)
                outcomes.append(Outcome(State.COMPLETE, figures, weights=weights, seconds=seconds))
        return outcomes

    def train_alone(self, training: Training, *, after_step: AfterStep) -> tuple[dict[str, Score], ParamServer]:
        """Train a network on weights of its own, and score it; returns its scores, and its weights.

        Raises:
            Exception: the architecture failed, or something else did; `failure_of` tells which.
        """
        architecture = training.architecture
        server = training.server or FINALIST_WEIGHTS[training.weights](self._server, architecture)
        again = training.done if training.server is None else 0
        try:
            self._relay.use(server)
            self._trainer.fit(
                lambda step: architecture,
                start=training.start - again,
                steps=training.steps + again,
                schedule=self._budget.schedule(training.learning_rate, training.total or training.steps),
                offset=training.start - training.done,
                after_step=after_step,
            )
            if self._scorer is not self._trainer:
                self._scorer.executor.use(server)
            self._scorer.recalibrate(architecture)
            scores = {"validation": self._scorer.score(architecture, self._validation)}
            _finite(scores["validation"].values, step=training.start + training.steps)
            if self._test is not None and training.is_tested:
                scores["test"] = tested(self._scorer, architecture, self._test)
            return scores, server
        finally:
            self._use_pool()

    def score(self, architecture: Architecture) -> dict[str, float]:
        """Metrics of the validation part with the shared weights as they are; nothing is trained or recorded.

        Raises:
            MetricError: one is not finite.
        """
        try:
            return dict(_finite(self._score(self._unchanging(self._server, architecture), architecture), step=0))
        finally:
            self._use_pool()

    def _score_early(self, server: ParamServer, architecture: Architecture) -> dict[str, float]:
        """Metrics of a part of the validation data in the midst of training, which goes on as if it had not been."""
        states = path_states(self._pool, architecture)
        if any(server.layout(key).buffers for key in states):
            self._relay.use(server.fork(states))
            self._trainer.recalibrate(architecture)
        metrics = self._trainer.evaluate(architecture, self._part)
        if self._relay.server is not server:
            self._relay.use(server)
        return metrics

    def _unchanging(self, server: ParamServer, architecture: Architecture) -> ParamServer:
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
        except Exception as error:  # an update that was under way
            failure_of(error)
            if self._relay.server is self._server:
                raise
            self._relay.use(self._server)


class InlineExecutor:
    """This process: jobs one after the other, or a population in one pass, where trials only score.

    Args:
        evaluator: does the work.
        size: how many trials are evaluated together.
        poll: asked between steps; see `Evaluator.evaluate`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        size: int,
        poll: Callable[[], None],
    ) -> None:
        self.size = size
        self._evaluator = evaluator
        self._poll = poll
        self._jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        """See `TrialExecutor`."""
        self._jobs.append(job)

    def finished(self) -> list[tuple[Job, Outcome]]:
        """See `TrialExecutor`: all that were submitted."""
        jobs, self._jobs = self._jobs, []
        if len(jobs) > 1:
            outcomes = self._evaluator.evaluate_population([job.architecture for job in jobs])
        else:
            outcomes = [
                self._evaluator.evaluate(job.architecture, job.ordinal, poll=self._poll, stop_reason=job.stop_reason)
                for job in jobs
            ]
        return list(zip(jobs, outcomes, strict=True))

    def train_alone(self, trainings: Sequence[Training], *, after_step: Callable[[float], None]) -> Iterator[Trained]:
        """See `TrialExecutor`: one after the other."""

        def after(step: int, loss: float) -> None:
            after_step(loss)
            self._poll()

        for index, training in enumerate(trainings):
            try:
                scores, server = self._evaluator.train_alone(training, after_step=after)
            except Exception as error:
                yield Trained(index, refused=failure_of(error))
            else:
                yield Trained(index, scores, server)
                del server  # whoever wants it has it: each is a copy of weights and moments


def population_size(server: ParamServer, budget: Budget) -> int:
    """How many trials are evaluated in one pass: more than one where none changes what another sees."""
    reads_only = budget.steps_per_trial == 0
    has_buffers = any(server.layout(key).buffers for key in server.pool.states)
    return budget.population if reads_only and not has_buffers else 1


def sample_of(split: Samples, *, seed: int) -> Samples:
    """At most 1,024 random samples: enough to compare trials on their way, whatever the size of a data set.

    They follow from the seed and the number of samples, so that a run goes on with the same ones, in every process.
    Evenly spaced ones would follow the order of the data: of classes that take turns they may all be of one.
    """
    if len(split) <= _SCORED_EARLY:
        return split
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    return split.some(order[:_SCORED_EARLY].sort().values)


def _finite(metrics: Mapping[str, float], *, step: int) -> Mapping[str, float]:
    """The metrics, all of them finite: NaN in one may mean outputs of NaN, of which another one makes a number.

    Raises:
        MetricError: one is not.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise MetricError(f"the {name} on the validation data ({value})", layer=None, step=step)
    return metrics
