"""The evaluator: trains and scores segments of networks on one relay.

[Note: work] A phase runs on one process, and what it has done by all that share the weights goes through its evaluator:
to train, to score, or work of its own, `work(evaluator, ...)`. Whoever follows does it on an evaluator like this one.

[Note: back to the pool] Whatever becomes of a network on weights of its own, the relay serves the shared weights again
before anything else happens, and nothing of the copy is left.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch

from l2l_nas.cost.closed_form import path_states
from l2l_nas.cost.work import ForwardWork
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import (
    L2LError,
    MetricError,
    NonFiniteError,
    RankError,
    SettingError,
    SpaceError,
    TrialError,
    failure_of,
)
from l2l_nas.nas.evaluation.provenance import WeightProvenance
from l2l_nas.nas.evaluation.segment import START_WEIGHTS, AfterStep, ScoredOn, Segment, SegmentResult
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.relay.plan import UpdatePolicy
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.fit import Trainer, tested
from l2l_nas.training.lead import Lead, Solo
from l2l_nas.training.samples import Samples
from l2l_nas.training.score import Score

Result = TypeVar("Result")
Runs = Callable[[Segment, AfterStep, ParamServer | None], SegmentResult]

_OF_A_STEP = 1 / 3  # a forward pass: the backward one is twice that
_SAMPLE = 1024  # samples that a trial is scored on at its rungs


class Evaluator:
    """Trains and scores networks.

    Args:
        relay: with the shared weights.
        trainer: on that relay.
        validation: what networks are scored on.
        budget: how much of what.
        scorer: scores networks with standard errors; the trainer, unless its executor computes in low precision.
        test: what finalists are measured on besides, once each; nothing depends on what comes of it.
        lead: who does the work.

    Attributes:
        batches: of the training part, as they were when this was made.
        provenance: tells weights that are scored.
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
        lead: Lead | None = None,
    ) -> None:
        self._lead: Lead = lead or Solo()
        self.relay = relay
        self._pool = relay.pool
        self.server = relay.server
        self.trainer = trainer
        self.batches = trainer.batches
        self._scorer = scorer or trainer
        self.validation = validation
        self._test = test
        self._sample = sample_of(validation, seed=self.server.seed)
        self.budget = budget
        self._runs: Runs | None = None  # what does segments in place of `run_here`
        self.provenance = WeightProvenance()
        # what `score_all` gave, by architecture and checksums of its weights
        self._known: dict[tuple[Architecture, str], Score] = {}

    def do(self, work: Callable[..., Result], *args: Any) -> Result:
        """Have all that share the weights do work of a phase's own; see [Note: work].

        Args:
            work: called as `work(evaluator, *args)`. Ranks get it by its name: a function of a module, a `partial` of
                one, or an object of a module's class.
            args: plain data, and functions that this process alone calls; see `Lead.do`.

        Raises:
            SettingError: a lambda, or a function within another, of which ranks know no name.
            Exception: what the work raises.
        """
        function = work.func if isinstance(work, partial) else work
        if "<" in getattr(function, "__qualname__", ""):
            raise SettingError(
                "evaluator.do takes a function of a module or a method, which ranks know by its name; not a lambda, "
                "and no function within another"
            )
        return self._lead.do("work", (_Sent(work), *args), self._do)

    def _do(self, sent: _Sent, *args: Any) -> Any:
        return sent.work(self, *args)

    def run_with(self, runs: Runs) -> None:
        """Have segments done otherwise from now on, on weights that are none of the shared ones.

        Args:
            runs: takes what `run_here` does.
        """
        self._runs = runs

    def learn_from(self, trainer: Trainer) -> None:
        """Train with another trainer of the same relay from now on."""
        if self._scorer is self.trainer:
            self._scorer = trainer
        self.trainer = trainer

    def count_with(self, counted: Callable[[float], None]) -> None:
        """Have steps that are done counted; see [Note: a step] in `ledger.py`."""
        self.learn_from(replace(self.trainer, counted=counted))

    @cached_property
    def _work(self) -> ForwardWork:
        return ForwardWork(self._pool)

    def _count_scores(self, architectures: Sequence[Architecture]) -> None:
        """Of networks that were not trained for it: see [Note: a step] in `ledger.py`."""
        mini_batches = len(self.validation) / self.trainer.batches.batch_size
        self.trainer.counted(_OF_A_STEP * mini_batches * self._work.passes(architectures))

    def train(
        self,
        path_at: Callable[[int], Architecture],
        *,
        start: int,
        steps: int,
        learning_rate: float,
        total: int,
        offset: int = 0,
        after_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> None:
        """Train the shared weights.

        Args:
            path_at: the architecture of a step.
            start: number of the first step.
            learning_rate: peak.
            total: steps over which it rises and falls.
            offset: the step that these begin with.
            after_step: called with each step and its loss; it may raise, which ends the training.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
            TrialError: a layer raised.
        """

        def here(_: object, path_at: Callable[[int], Architecture], after_step: Callable[[int, float], None]) -> None:
            try:
                self.trainer.fit(
                    path_at,
                    start=start,
                    steps=steps,
                    schedule=self.budget.schedule(learning_rate, total),
                    offset=offset,
                    after_step=after_step,
                )
            except SpaceError as error:
                if error.candidate is None:
                    raise
                raise TrialError(f"{error}; {_leave_out(error, self._pool)}") from error

        numbers = {"start": start, "steps": steps, "learning_rate": learning_rate, "total": total, "offset": offset}
        self._lead.do("train shared weights", (numbers, path_at, after_step), here)

    def actions(self) -> dict[str, Callable[..., Any]]:
        """What those do that follow, by the names that `Lead.do` is given."""
        return {
            "train and score": lambda segment, done: self.run(segment, after_step=done),
            "score together": self.run_together,
            "score all": self.score_all,
            "score": self.score,
            "work": self._do,
            "train shared weights": lambda numbers, path_at, after: self.train(path_at, after_step=after, **numbers),
        }

    def on(self, relay: Relay) -> Evaluator:
        """The same on another relay, of a pool of the same architectures."""
        trainer = scorer = replace(self.trainer, executor=relay)
        if self._scorer is not self.trainer:  # in fp32
            plain = Relay(relay.server, device=str(relay.device.torch_device), seed=relay.seed)
            scorer = replace(self._scorer, executor=plain)
        return Evaluator(
            relay,
            trainer,
            validation=self.validation,
            budget=self.budget,
            scorer=scorer,
            test=self._test,
            lead=self._lead,
        )

    def run(
        self,
        segment: Segment,
        *,
        after_step: AfterStep | None = None,
        poll: Callable[[], None] | None = None,
        start: ParamServer | None = None,
    ) -> SegmentResult:
        """Train a segment, and score it.

        Args:
            after_step: called with the loss of each step; it may raise, which ends the segment.
            poll: asked after each step on weights of the network's own, which may be dropped at any; it may raise.
            start: weights that the network begins with, in place of those that `segment.weights` names.

        Raises:
            Exception: anything that is not the architecture's fault; see `failure_of`.
        """
        given = segment.server or start
        is_own = segment.weights != "shared" if given is None else given is not self.server
        is_own |= self._runs is not None

        def done(loss: float) -> None:
            if after_step is not None:
                after_step(loss)
            if poll is not None and is_own:
                poll()

        def here(segment: Segment, done: AfterStep) -> SegmentResult:
            return (self._runs or self.run_here)(segment, done, start)

        return self._lead.do("train and score", (segment, done), here)

    def run_here(self, segment: Segment, after_step: AfterStep, start: ParamServer | None = None) -> SegmentResult:
        """This process's part of `run`."""
        started = time.monotonic()
        server = segment.server or start or START_WEIGHTS[segment.weights](self.server, segment.architecture)
        is_own = server is not self.server
        again = segment.done if is_own and segment.server is None else 0
        steps, first = 0, segment.start - segment.done
        rungs: dict[str, Mapping[str, float]] = {}
        self._lead.note(f"step 0 of {segment.name}")

        def count(_: int, loss: float) -> None:
            nonlocal steps
            steps += 1
            self._lead.note(f"step {steps} of {segment.name}")
            after_step(loss)

        try:
            if is_own:
                self.relay.use(server)
            begin = segment.start - again
            is_trial = segment.scored_on in (ScoredOn.SAMPLE, ScoredOn.VALIDATION)
            for done in (segment.done + segment.steps,) if is_trial else segment.score_steps:
                self.trainer.fit(
                    lambda _: segment.architecture,
                    start=begin,
                    steps=first + done - begin,
                    schedule=self.budget.schedule(segment.learning_rate, segment.total or segment.steps),
                    offset=first,
                    after_step=count,
                )
                begin = first + done
                if done < segment.done + segment.steps:
                    rungs[segment.rung(done)] = self._on_the_way(server, segment.architecture, step=begin)
            result = self._scored(segment, server, rungs)
            self._lead.done()
        except Exception as error:
            result = SegmentResult(error=self._failure(error, is_own=is_own))
        finally:
            self._use_pool()
        return replace(result, seconds=time.monotonic() - started, steps=0 if is_own else steps)

    def _failure(self, error: Exception, *, is_own: bool) -> L2LError:
        """What a network failed with.

        Raises:
            Exception: the error, where the network is not at fault.
            L2LError: shared weights were trained, and parts of them may differ between ranks: one rank alone failed,
                or updates were under way that do not wait for a check.
        """
        is_eager = self.relay.update is UpdatePolicy.EAGER
        found, is_alike = self._lead.failure(error, self._use_pool, may_differ=is_eager)
        if not is_own and not is_alike:
            text = f"{found}; shared weights are as they were saved last: go on with: resume=FOLDER"
            if isinstance(error, RankError):  # the rank that it came from says so
                raise RankError(text, rank=error.rank)
            raise L2LError(text) from (error if isinstance(error, NonFiniteError) else None)
        return found

    def _on_the_way(self, server: ParamServer, architecture: Architecture, *, step: int) -> Mapping[str, float]:
        """Metrics of the validation part; training goes on as if they had not been measured."""
        states = path_states(self._pool, architecture)
        has_buffers = any(server.layout(key).buffers for key in states)
        self._scorer.executor.use(server.fork(states) if has_buffers else server)
        self._scorer.recalibrate(architecture)
        values = self._scorer.evaluate(architecture, self.validation)
        self.relay.use(server)
        return _finite(values, step=step)

    def _scored(self, segment: Segment, server: ParamServer, rungs: Mapping[str, Mapping[str, float]]) -> SegmentResult:
        """What a segment comes to whose steps are done.

        Args:
            rungs: what it was scored with on its way.
        """
        architecture, end = segment.architecture, segment.start + segment.steps
        provenance: Mapping[str, object] = {}
        match segment.scored_on:
            case ScoredOn.SAMPLE:
                scores = {"validation": self._score(server, architecture, self._sample, goes_on=True)}
            case ScoredOn.VALIDATION:
                provenance = self.provenance.entry(segment.weights, server, architecture)
                known = self._known.get((architecture, str(provenance["crc32"])))
                if not segment.steps and known is None:
                    self._count_scores([architecture])
                scores = {"validation": known or self._score(server, architecture, self.validation)}
            case _:
                if self._scorer is not self.trainer:
                    self._scorer.executor.use(server)
                self._scorer.recalibrate(architecture)
                scores = {"validation": self._scorer.score(architecture, self.validation)}
        values = _finite(scores["validation"].values, step=end)
        if segment.scored_on is ScoredOn.TEST and self._test is not None:
            scores["test"] = tested(self._scorer, architecture, self._test)
        if segment.scored_on in (ScoredOn.ERRORS, ScoredOn.TEST):
            rungs = {**rungs, segment.rung(segment.done + segment.steps): values}
        return SegmentResult(scores, server if segment.keeps_weights else None, rungs=rungs, provenance=provenance)

    def run_together(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Score networks with the shared weights as they are, in one pass over their prefix tree.

        Where one of them fails, each is scored by itself.
        """
        return self._lead.do("score together", (list(segments),), self._run_together)

    def _run_together(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        started = time.monotonic()
        try:
            entries = [self.provenance.entry(one.weights, self.server, one.architecture) for one in segments]
            keys = [(one.architecture, str(entry["crc32"])) for one, entry in zip(segments, entries, strict=True)]
            new = [key for key in keys if key not in self._known]
            architectures, most = [architecture for architecture, _ in new], self.budget.population_bytes
            scored = self.trainer.score_population(architectures, self.validation, max_bytes=most) if new else []
            self._count_scores(architectures)
            scores = {**self._known, **dict(zip(new, scored, strict=True))}
            self._lead.done()
        except Exception as error:
            failure, _ = self._lead.failure(error, self._use_pool)
            if len(segments) > 1:
                return [result for one in segments for result in self._run_together([one])]
            return [SegmentResult(error=failure, seconds=time.monotonic() - started)]
        seconds = (time.monotonic() - started) / len(segments)
        results = []
        for key, entry in zip(keys, entries, strict=True):
            try:
                _finite(scores[key].values, step=self.budget.warmup_steps)
            except MetricError as error:
                results.append(SegmentResult(error=error, seconds=seconds))
            else:
                results.append(SegmentResult({"validation": scores[key]}, provenance=entry, seconds=seconds))
        return results

    def score_all(self, architectures: Sequence[Architecture]) -> list[Mapping[str, float] | None]:
        """Metrics of the validation part with the shared weights as they are, in one pass; None where it failed.

        A trial of the same weights that trains nothing is not scored again, unless a pass changes buffers.
        """
        return self._lead.do("score all", (list(architectures),), self._score_all)

    def _score_all(self, architectures: Sequence[Architecture]) -> list[Mapping[str, float] | None]:
        segments = [Segment("", one, "shared", 0, 0, 0.0) for one in architectures]
        results = self._run_together(segments)
        has_buffers = any(self.server.layout(key).buffers for key in self._pool.states)
        for one, result in zip(architectures, results, strict=True):
            if result.error is None and not has_buffers:
                self._known[one, str(result.provenance["crc32"])] = result.scores["validation"]
        return [result.metrics if result.error is None else None for result in results]

    def score(self, architecture: Architecture) -> dict[str, float]:
        """Metrics of the validation part with the shared weights as they are; nothing is trained or recorded.

        Raises:
            MetricError: one is not finite.
        """
        return self._lead.do("score", (architecture,), self._score_shared)

    def _score_shared(self, architecture: Architecture) -> dict[str, float]:
        try:
            self._count_scores([architecture])
            return dict(_finite(self._score(self.server, architecture, self.validation).values, step=0))
        finally:
            self._use_pool()

    def _score(self, server: ParamServer, architecture: Architecture, data: Samples, *, goes_on: bool = False) -> Score:
        """Metrics with these weights; BatchNorm's statistics are measured for this path.

        Where the weights are shared, or training goes on with them, that is on a copy, and the relay may keep it.
        """
        states = path_states(self._pool, architecture)
        if (goes_on or server is self.server) and any(server.layout(key).buffers for key in states):
            self.relay.use(server.fork(states))
        elif server is not self.relay.server:
            self.relay.use(server)
        self.trainer.recalibrate(architecture)
        return self.trainer.score_population([architecture], data)[0]

    def _use_pool(self) -> None:
        """See [Note: back to the pool]."""
        try:
            self.relay.use(self.server)
        except Exception as error:  # an update that was under way
            if not (isinstance(error, RankError) and error.goes_on):
                failure_of(error)
            if self.relay.server is self.server:
                raise
            self.relay.use(self.server)


@dataclass(frozen=True)
class _Sent:
    """Work as ranks get it: a function that stood alone among the arguments would be called by the first one alone."""

    work: Callable[..., Any]


def sample_of(split: Samples, *, seed: int) -> Samples:
    """At most 1,024 random samples: enough to compare trials on their way, whatever the size of a data set.

    They follow from the seed and the number of samples, so that a run goes on with the same ones, in every process.
    Evenly spaced ones would follow the order of the data: of classes that take turns they may all be of one.
    """
    if len(split) <= _SAMPLE:
        return split
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(seed))
    return split.some(order[:_SAMPLE].sort().values)


def _finite(metrics: Mapping[str, float], *, step: int) -> Mapping[str, float]:
    """The metrics, all of them finite: NaN in one may mean outputs of NaN, of which another one makes a number.

    Raises:
        MetricError: one is not.
    """
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise MetricError(f"the {name} on the validation data ({value})", layer=None, step=step)
    return metrics


def _leave_out(error: SpaceError, pool: LayerPool) -> str:
    """How to go on without a candidate that shared weights cannot be trained with."""
    places = [one.name for one in pool.positions if error.candidate in [c.name for c in one.candidates]]
    cell = f"{error.position if len(places) == 1 else '*'}/{error.candidate}"
    return f"leave it out, and go on with: resume=FOLDER {shlex.quote(f'search.retire=[{cell}]')}"
