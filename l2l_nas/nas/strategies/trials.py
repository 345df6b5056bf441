"""Trials: architectures that the sampler proposes are trained, scored and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna.trial import Trial

from l2l_nas.cost.table import unmeasured
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import TrialError, failure_of, of_user, one_line
from l2l_nas.nas.evaluation.segment import Segment, SegmentResult
from l2l_nas.nas.objectives import State, TrialRecord, is_evaluated, ranked
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.proposer import Proposer
from l2l_nas.nas.suspects import in_words, to_retire
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import first_violation

_MOST_HELD = 0.25  # of free memory, by weights of trials that finalists may go on with


class Trials(Phase):
    """Evaluates architectures until as many as asked for are done, or the space has no more."""

    def run(self, search: SearchContext) -> None:
        search.callback.phase("search", total=search.budget.trials, done=search.study.num_evaluated)
        free = unmeasured(search.constraints)
        search.study.inform(
            lambda architecture: first_violation(architecture, free) is None,
            search.costs.sums(search.pool),
            is_raced=search.budget.is_raced and search.budget.finalists > 0,
        )
        TrialLoop(search).run()


@dataclass
class RunningTrial:
    """A trial that is being evaluated.

    Attributes:
        ordinal: how many trials came before.
        rungs: the metrics that it had on its way, by rung ("50/200").
        seconds: its segments took.
    """

    trial: Trial
    architecture: Architecture
    ordinal: int
    steps: int = 0
    rungs: dict[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0


class TrialLoop:
    """The trials of one session."""

    def __init__(self, search: SearchContext) -> None:
        self._search = search
        self._running: dict[Architecture, RunningTrial] = {}
        self._failed = 0  # trials in a row
        self._proposer = Proposer(
            search.study,
            search.pool,
            constraints=search.constraints,
            draws=search.draws(search.seed),
            note=self._note,
            costs=search.costs,
            poll=self._poll,
            first=search.enqueued,
        )

    def run(self) -> None:
        search = self._search
        while True:
            self._submit()
            if not self._running:
                return
            self._record()
            self._give_up_where_all_fail()
            search.callback.advance(search.study.num_evaluated)
            search.save_when_due()

    def _submit(self) -> None:
        """As many jobs as the executor has space for and the budget has left."""
        search = self._search
        while self._may_go_on():
            if not self._running:  # an executor that is at work asks for itself
                self._poll()
            proposed = self._proposer.next(self._running)
            if proposed is None:
                return
            trial, architecture = proposed
            running = RunningTrial(trial, architecture, self._num_begun)
            try:
                search.figures(architecture)  # what is measured is measured before the training, and remembered
            except Exception as error:
                self._finish(running, State.FAILED, SegmentResult(error=failure_of(error)))
            else:
                self._running[architecture] = running
                self._go_on(running, None)

    def _go_on(self, running: RunningTrial, server: ParamServer | None) -> None:
        search = self._search
        segment = Segment.of_trial(
            running.architecture, running.ordinal, search.budget, done=running.steps, server=server
        )
        search.executor.submit(segment)

    def _may_go_on(self) -> bool:
        return len(self._running) < self._search.executor.size and self._num_begun < self._search.budget.trials

    @property
    def _num_begun(self) -> int:
        return self._search.study.num_evaluated + len(self._running)

    def _stop_reason(self, running: RunningTrial, metrics: Mapping[str, float]) -> str | None:
        """Why a trial is stopped at the rung that it has come to; None if it goes on."""
        search, architecture = self._search, running.architecture
        rung = f"{running.steps}/{search.budget.steps_per_trial}"
        running.rungs[rung] = metrics
        rule = search.early_stop
        with of_user(rule, "early_stop"):
            reason = rule.stop_reason(architecture, rung, {**metrics, **search.figures(architecture)})
            if not isinstance(reason, str | None):
                raise TypeError(f"stop_reason gave {reason!r}, expected a reason in words, or None")
        return reason

    def _record(self) -> None:
        """Wait for segments; keep what came of trials that are over, and go on with the others.

        Behind this, no weights of trials are left but those held and those that go on.
        """
        for segment, result in self._search.executor.finished():
            running = self._running[segment.architecture]
            running.seconds += result.seconds
            state, reason = State.COMPLETE, ""
            if result.error is not None:
                state = State.FAILED
            elif running.steps + segment.steps < self._search.budget.steps_per_trial:
                running.steps += segment.steps
                stopped = self._stop_reason(running, result.metrics)
                if stopped is None:
                    self._go_on(running, result.server)
                    continue
                state, reason = State.STOPPED, stopped
            del self._running[segment.architecture]
            self._finish(running, state, result, reason)

    def _finish(self, running: RunningTrial, state: State, result: SegmentResult, reason: str = "") -> None:
        record = self._tell(running, state, result, reason)
        if state is State.COMPLETE:
            self._hold(record, result.server)
        self._note(record)
        self._proposer.record(record)

    def _note(self, record: TrialRecord) -> None:
        if is_evaluated(record):
            self._failed = self._failed + 1 if record.state is State.FAILED else 0
        self._search.note(record)

    def _poll(self) -> None:
        self._search.callback.poll()
        self._give_up_where_all_fail()

    def _give_up_where_all_fail(self) -> None:
        """End a search whose last trials have all failed, unless they were the last in any case.

        Raises:
            TrialError: with what they have in common, and how to leave it out.
        """
        search = self._search
        if self._failed < search.budget.failures or search.study.num_evaluated >= search.budget.trials:
            return
        reason = next(r.reason for r in reversed(search.study.records) if r.state is State.FAILED)
        found = search.suspects()
        what = f"leave out what they have in common ({in_words(found)}), and" if found else "mend what fails, and"
        more = f" {to_retire(one.pattern for one in found)}" if found else ""
        raise TrialError(
            f"failed trials in a row: {self._failed}, where search.failures={search.budget.failures} end a search; the "
            f"last reason: {reason}; {what} go on with: resume=FOLDER{more}"
        )

    def _tell(self, running: RunningTrial, state: State, result: SegmentResult, reason: str) -> TrialRecord:
        search, architecture = self._search, running.architecture
        metrics = result.metrics if state is State.COMPLETE else None
        # what failed may have failed in a measurement
        costs = search.figures(architecture) if metrics is not None else search.costs.figures(architecture)
        for _ in range(result.steps):
            search.coverage.add("trials", architecture)
        return search.study.tell(
            running.trial,
            state,
            {} if metrics is None else {**metrics, **costs},
            metrics={**(metrics or {}), **costs},
            reason=one_line(str(result.error)) if result.error is not None else reason,
            weights=result.provenance,
            seconds=running.seconds,
            worker=result.worker,
            rungs=running.rungs,
        )

    def _hold(self, record: TrialRecord, server: ParamServer | None) -> None:
        """Keep the weights of the best trials so far, for finalists to go on with."""
        search = self._search
        held, count = search.weights_of_trials, search.budget.finalists
        if server is None or not record.state.has_score or len(search.goals) > 1 or not count:
            return
        if (count + 1) * server.num_bytes > free_memory_bytes() * _MOST_HELD:
            return
        held[record.architecture] = server
        if len(held) > count:
            best = [one.architecture for one in ranked(search.study.records, search.goals)]
            places = {architecture: place for place, architecture in reversed(list(enumerate(best)))}
            del held[max(held, key=lambda one: places.get(one, len(best)))]
