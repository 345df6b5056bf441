"""Trials: architectures that the sampler proposes are trained, scored and recorded.

Which one is evaluated next is the sampler's proposal, unless it repeats itself or a constraint refuses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from optuna.trial import Trial

from l2l_nas.cost.table import Costs, unmeasured
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, TrialError, failure_of, of_user, one_line
from l2l_nas.nas.callback import Numbers
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import State, TrialRecord, is_evaluated, ranked
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.study.study import Study
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import PathSampler

_MOST_HELD = 0.25  # of free memory, by weights of trials that finalists may go on with
# proposals that repeat, or that a constraint refuses, before a random new architecture takes the sampler's place
_PATIENCE = 25
# random ones that a measurement refuses before none is taken to be left
_LONG_PATIENCE = 200
# random draws in the search for a new architecture; of a space up to this size fewer, then all are gone through
_DRAWS = 1000
_COUNTABLE = 100_000
_FEW_DRAWS = 100


class Trials(Phase):
    """Evaluates architectures until as many as asked for are done, or the space has no more."""

    def run(self, search: SearchContext) -> None:
        search.callback.phase("search", total=search.budget.trials, done=search.study.num_evaluated)
        free = unmeasured(search.constraints)
        search.study.inform(
            lambda architecture: first_violation(architecture, free) is None,
            search.costs.sums(search.pool),
            is_raced=search.budget.is_raced and search.budget.finalists > 0,
            earlier_tasks=search.earlier_tasks,
        )
        TrialLoop(search).run()


@dataclass
class RunningTrial:
    """A trial that is being evaluated.

    Attributes:
        ordinal: how many trials came before.
        rungs: the metrics that it had on its way, by rung ("50/200").
        seconds: its segments took.
        losses: of its steps; its number is known when it is over.
    """

    trial: Trial
    architecture: Architecture
    ordinal: int
    steps: int = 0
    rungs: dict[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


class TrialLoop:
    """The trials of one session."""

    def __init__(self, search: SearchContext) -> None:
        self._search = search
        self._running: dict[Architecture, RunningTrial] = {}
        self._num_before = len(search.study.records)  # of earlier sessions
        self._proposer = Proposer(
            search.study,
            search.pool,
            constraints=search.constraints,
            draws=search.draws(search.seed),
            note=search.note,
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
            search.callback.advance(search.study.num_evaluated)
            search.save_when_due()

    def _submit(self) -> None:
        """Begin as many trials as the executor has space for and the budget has left."""
        search, running = self._search, self._running
        study, budget = search.study, search.budget
        while len(running) < search.executor.size and study.num_evaluated + len(running) < budget.trials:
            if not running:  # an executor that is at work asks for itself
                self._poll()
            proposed = self._proposer.next(running)
            if proposed is None:
                return
            trial, architecture = proposed
            begun = RunningTrial(trial, architecture, study.num_evaluated + len(running))
            try:
                search.figures(architecture)  # what is measured is measured before the training, and remembered
            except Exception as error:
                self._finish(begun, State.FAILED, SegmentResult(error=failure_of(error)))
            else:
                running[architecture] = begun
                segment = budget.trial_segment(architecture, begun.ordinal)
                search.executor.submit(segment, after_step=begun.losses.append)

    def _record(self) -> None:
        """Wait for segments; keep what came of trials that are over, and go on with the others.

        Behind this, no weights of trials are left but those held and those that go on.
        """
        search, budget = self._search, self._search.budget
        for segment, result in search.executor.finished():
            architecture = segment.architecture
            trial = self._running[architecture]
            trial.seconds += result.seconds
            state, reason = State.COMPLETE, ""
            if result.error is not None:
                state = State.FAILED
            elif trial.steps + segment.steps < budget.steps_per_trial:
                trial.steps += segment.steps
                stopped = self._stop_reason(trial, result.metrics)
                if stopped is None:
                    further = budget.trial_segment(architecture, trial.ordinal, done=trial.steps, server=result.server)
                    search.executor.submit(further, after_step=trial.losses.append)
                    continue
                state, reason = State.STOPPED, stopped
            del self._running[architecture]
            self._finish(trial, state, result, reason)

    def _stop_reason(self, running: RunningTrial, metrics: Mapping[str, float]) -> str | None:
        """Why a trial is stopped at the rung that it has come to; None if it goes on."""
        search, architecture = self._search, running.architecture
        rung = f"{running.steps}/{search.budget.steps_per_trial}"
        running.rungs[rung] = metrics
        rule, figures = search.early_stop, {**metrics, **search.figures(architecture)}

        with of_user(rule, "early_stop"):
            reason = rule.stop_reason(architecture, rung, figures)
            if not isinstance(reason, str | None):
                raise TypeError(f"stop_reason gave {reason!r}, expected a reason in words, or None")
        return reason

    def _finish(self, running: RunningTrial, state: State, result: SegmentResult, reason: str = "") -> None:
        """Tell the study and the callbacks what became of a trial."""
        search, architecture = self._search, running.architecture
        is_scored = state is State.COMPLETE
        metrics = result.metrics if is_scored else {}
        # what failed may have failed in a measurement
        costs = search.figures(architecture) if is_scored else search.costs.figures(architecture)
        for _ in range(result.steps):
            search.coverage.add("trials", architecture)
        figures = {**metrics, **costs}
        record = search.study.tell(
            running.trial,
            state,
            figures if is_scored else {},
            metrics=figures,
            errors=result.scores["validation"].errors if is_scored else {},
            reason=one_line(str(result.error)) if result.error is not None else reason,
            weights=result.provenance,
            seconds=running.seconds,
            worker=result.worker,
            rungs=running.rungs,
        )
        if is_scored and result.server is not None:
            self._hold(record, result.server)
        search.note(record)
        if search.callback.takes_numbers:
            numbers = Numbers(search.callback, "search", record.number)
            for loss in running.losses:
                numbers.loss(loss)
            numbers.scores(running.rungs, result.scores if is_scored else {})
        self._proposer.record(record)

    def _hold(self, record: TrialRecord, server: ParamServer) -> None:
        """Keep the weights of the best trials so far, for finalists to go on with."""
        search = self._search
        held, count = search.weights_of_trials, search.budget.finalists
        if len(search.goals) > 1 or not count:
            return
        if (count + 1) * server.num_bytes > free_memory_bytes() * _MOST_HELD:
            return
        held[record.architecture] = server
        if len(held) > count:
            best = [one.architecture for one in ranked(search.study.records, search.goals)]
            places = {architecture: place for place, architecture in reversed(list(enumerate(best)))}
            del held[max(held, key=lambda one: places.get(one, len(best)))]

    def _poll(self) -> None:
        """Ask whether to stop. A search whose last trials have all failed ends, unless they were the last in any case.

        Raises:
            Stopped: the callback asked for it.
            TrialError: with the last reason.
        """
        search = self._search
        search.callback.poll()
        last = filter(is_evaluated, reversed(search.study.records[self._num_before :]))
        failed = list(itertools.takewhile(lambda record: record.state is State.FAILED, last))
        if len(failed) < search.budget.failures or search.study.num_evaluated >= search.budget.trials:
            return
        raise TrialError(
            f"failed trials in a row: {len(failed)}, where search.failures={search.budget.failures} end a search; the "
            f"last reason: {failed[0].reason}; mend what fails, and go on with: resume=FOLDER"
        )


class Proposer:
    """Asks the study until it gives an architecture that is allowed and new.

    Args:
        study: whose sampler proposes, and where repeats and refusals are recorded.
        draws: random architectures, for where the sampler only repeats itself.
        note: called with of every trial that is recorded here.
        costs: recorded with what is refused.
        poll: called between two proposals, as constraints may measure; may raise.
        first: architectures to propose before the sampler is asked; those that have a trial are left out.
    """

    def __init__(
        self,
        study: Study,
        pool: LayerPool,
        *,
        constraints: Sequence[Constraint],
        draws: PathSampler,
        note: Callable[[TrialRecord], None],
        costs: Costs | None = None,
        poll: Callable[[], None] = lambda: None,
        first: Sequence[Architecture] = (),
    ) -> None:
        self._study = study
        self._pool = pool
        self._constraints = constraints
        self._draws = draws
        self._note = note
        self._costs = costs or Costs(())
        self._poll = poll
        self._refused: set[Architecture] = set()
        self._known: dict[Architecture, TrialRecord] = {}
        self._waiting: dict[Architecture, list[Trial]] = {}  # repeats of architectures that are being evaluated
        for record in study.records:
            self.record(record)
        tried = {record.architecture for record in study.records}
        self._first = [architecture for architecture in dict.fromkeys(first) if architecture not in tried]

    def next(self, running: Collection[Architecture]) -> tuple[Trial, Architecture] | None:
        """The next architecture to evaluate; None if there is none.

        Every allowed one was tried or is being evaluated, or the sampler has stopped.

        Args:
            running: those that are being evaluated here.
        """
        for _ in range(_PATIENCE + len(self._first)):
            if self._first:
                self._study.propose(self._first.pop(0), enqueued=True)
            elif self._study.is_exhausted:
                return None
            trial, architecture = self._study.ask()
            if not self._is_allowed(trial, architecture):
                continue
            if architecture in self._known:
                self._note(self._repeat(trial, self._known[architecture]))
            elif architecture in running:
                self._waiting.setdefault(architecture, []).append(trial)
            else:
                return trial, architecture
        for _ in range(_LONG_PATIENCE):
            if self._study.is_exhausted:
                return None
            unseen = self._unseen({*self._known, *running, *self._refused})
            if unseen is None:
                return None
            self._study.propose(unseen)
            trial, architecture = self._study.ask()
            if self._is_allowed(trial, architecture):
                return trial, architecture
        return None

    def _is_allowed(self, trial: Trial, architecture: Architecture) -> bool:
        """Whether the constraints allow it; if not, or if a measurement fails, it is recorded with the reason."""
        self._poll()
        known = self._known.get(architecture)
        if known is not None and known.state is State.FAILED:  # a measurement would fail again
            self._note(self._repeat(trial, known))
            return False
        state = State.PRUNED
        try:
            reason = first_violation(architecture, self._constraints)
        except Exception as error:
            state, reason = State.FAILED, one_line(str(failure_of(error)))
        if reason is None:
            return True
        self._refused.add(architecture)
        costs = self._costs.figures(architecture) if self._pool.path(architecture) else {}
        record = self._study.tell(trial, state, reason=reason, metrics=costs)
        self._note(record)
        self.record(record)
        return False

    def record(self, record: TrialRecord) -> None:
        """An architecture is evaluated: it answers the repeats that wait for it, and those to come."""
        if record.cached or record.state is State.PRUNED:  # tells nothing of what becomes of it
            return
        self._known[record.architecture] = record
        for trial in self._waiting.pop(record.architecture, []):
            self._note(self._repeat(trial, record))

    def _repeat(self, trial: Trial, earlier: TrialRecord) -> TrialRecord:
        return self._study.tell(
            trial,
            earlier.state,
            earlier.values,
            cached=True,
            reason=earlier.reason,
            metrics=earlier.metrics,
            errors=earlier.errors,
            weights=earlier.weights,
        )

    def _unseen(self, known: Collection[Architecture]) -> Architecture | None:
        """A random architecture that was not tried; None if there seems to be none left."""
        for draw in range(_FEW_DRAWS if self._pool.size <= _COUNTABLE else _DRAWS):
            # draws of their own: warm-up numbers its paths from 0
            try:
                architecture = self._draws.path_at(-1 - draw - _DRAWS * len(known))
            except ConstraintError:
                break
            if architecture not in known:
                return architecture
        if self._pool.size > _COUNTABLE:
            return None
        for architecture in self._pool.every():
            if architecture not in known and first_violation(architecture, self._constraints) is None:
                return architecture
        return None
