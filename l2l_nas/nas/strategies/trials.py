"""Trials: architectures that the sampler proposes are trained, scored and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from l2l_nas.cost.table import unmeasured
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import TrialError, failure_of, of_user, one_line
from l2l_nas.nas.evaluation.evaluator import Job, Outcome
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
        """See `Phase`."""
        search.callback.phase("search", total=search.budget.trials, done=search.study.num_evaluated)
        free = unmeasured(search.constraints)
        search.study.inform(
            lambda architecture: first_violation(architecture, free) is None,
            search.costs.sums(search.pool),
            is_raced=search.budget.is_raced and search.budget.finalists > 0,
        )
        TrialLoop(search).run()


class TrialLoop:
    """The trials of one session.

    Args:
        search: whose they are.
    """

    def __init__(self, search: SearchContext) -> None:
        self._search = search
        self._running: set[Architecture] = set()
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
        """All of them."""
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
            job = Job(trial, architecture, self._num_begun, stop_reason=partial(self._stop_reason, architecture))
            try:
                search.figures(architecture)  # what is measured is measured before the training, and remembered
            except Exception as error:
                self._finish(job, Outcome(State.FAILED, reason=one_line(str(failure_of(error)))))
            else:
                search.executor.submit(job)
                self._running.add(architecture)

    def _may_go_on(self) -> bool:
        return len(self._running) < self._search.executor.size and self._num_begun < self._search.budget.trials

    @property
    def _num_begun(self) -> int:
        """Trials that are being evaluated, or were."""
        return self._search.study.num_evaluated + len(self._running)

    def _stop_reason(self, architecture: Architecture, rung: str, metrics: Mapping[str, float]) -> str | None:
        values = {**metrics, **self._search.figures(architecture)}
        rule = self._search.early_stop
        with of_user(rule, "early_stop"):
            reason = rule.stop_reason(architecture, rung, values)
            if not isinstance(reason, str | None):
                raise TypeError(f"stop_reason gave {reason!r}, expected a reason in words, or None")
        return reason

    def _record(self) -> None:
        """Wait for jobs, and keep what came of them; behind this, no weights of theirs are left but those held."""
        for job, outcome in self._search.executor.finished():
            self._running.discard(job.architecture)
            self._finish(job, outcome)

    def _finish(self, job: Job, outcome: Outcome) -> None:
        record = self._tell(job, outcome)
        self._hold(record, outcome.server)
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

    def _tell(self, job: Job, outcome: Outcome) -> TrialRecord:
        search = self._search
        is_scored = outcome.metrics is not None  # what failed may have failed in a measurement
        costs = search.figures(job.architecture) if is_scored else search.costs.figures(job.architecture)
        for _ in range(outcome.shared_steps):
            search.coverage.add("trials", job.architecture)
        return search.study.tell(
            job.trial,
            job.architecture,
            state=outcome.state,
            values=None if outcome.metrics is None else {**outcome.metrics, **costs},
            attributes={**(outcome.metrics or {}), **costs},
            reason=outcome.reason,
            weights=outcome.weights,
            seconds=outcome.seconds,
            worker=outcome.worker,
            rungs=outcome.rungs,
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
