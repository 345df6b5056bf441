"""One search, in phases: warm-up, trials, finalists.

Paths, batches, random numbers and learning rates depend on (seed, step) alone, so that an interrupted warm-up goes on
as if nothing had been. A resumed search keeps its trials and goes on with a newly seeded sampler and the weights last
saved; finalists that were not written yet are trained again.

Trials train the shared weights, a copy of them, or first weights (`Budget.trial_weights`); the last two leave the
shared weights untouched, and have a learning rate that rises and falls within each trial, so that trials are treated
alike. Finalists always train a copy, or first weights where trials do: shared weights that no trial was scored with say
nothing of the trials' order.

[Note: steps] Training steps are numbered through the whole run: warm-up first, then `steps_per_trial` for each trial
evaluated, then each finalist's. A step's number decides its batch, its random numbers and its learning rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, L2LError
from l2l_nas.relay.executor import Relay
from l2l_nas.search.budget import Budget
from l2l_nas.search.coverage import Coverage
from l2l_nas.search.proposals import Proposer
from l2l_nas.search.records import Goal, TrialRecord, counts, num_evaluated, ranked
from l2l_nas.search.study import Study
from l2l_nas.search.trials import Crew, Evaluator, InlineCrew, Job, population_size
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty
from l2l_nas.space.sampling import PathSampler, UniformPaths
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine


class Observer(Protocol):
    """Sees a search go by: for progress lines and logs. May raise `Stopped` between steps."""

    def phase(self, name: str, *, total: int, done: int) -> None:
        """A phase begins: "warm-up" (in steps), "search" (in trials), "finalists" (in steps)."""

    def advance(self, done: int, *, detail: str = "") -> None:
        """So much of the phase is done."""

    def covered(self, coverage: Coverage) -> None:
        """Warm-up is over."""

    def trial(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """A trial is finished and saved."""

    def poll(self) -> None:
        """Between two trials, and two steps other than a trial's on the shared weights. May raise `Stopped`."""


class Stopped(Exception):
    """The search was asked to stop; what is done is saved."""


@dataclass(frozen=True)
class Finalist:
    """An architecture that was trained further, with its own weights.

    Args:
        record: the trial that found it.
        metrics: all metrics of the validation data after training.
        server: its weights.
    """

    record: TrialRecord
    metrics: Mapping[str, float]
    server: ParamServer


class Search:
    """Runs the phases.

    Args:
        relay: with the shared weights.
        trainer: on that relay.
        validation: what trials are scored on.
        study: where trials are recorded.
        goals: the study's.
        budget: how much of what.
        checkpoint: where the shared weights are saved.
        constraints: architectures they refuse are never trained.
        seed: of the paths.
        observer: sees it go by.
        paths: of warm-up; uniform if nothing is said. They must be allowed, and not empty.
        scorer: scores finalists; the trainer, unless its executor computes in low precision.
        crew: evaluates trials and trains finalists; this process, with relay, trainer and scorer, if nothing is said.
    """

    def __init__(
        self,
        relay: Relay,
        trainer: Trainer,
        *,
        validation: Split,
        study: Study,
        goals: Sequence[Goal],
        budget: Budget,
        checkpoint: Checkpoint,
        constraints: Sequence[Constraint],
        seed: int,
        observer: Observer,
        paths: PathSampler | None = None,
        scorer: Trainer | None = None,
        crew: Crew | None = None,
    ) -> None:
        self._relay = relay
        self._pool = relay.pool
        self._server = relay.server
        self._trainer = trainer
        self._study = study
        self._goals = tuple(goals)
        self._budget = budget
        self._checkpoint = checkpoint
        self._constraints = (NonEmpty(self._pool), *constraints)
        self._draws = UniformPaths(self._pool, seed=seed, constraints=self._constraints)
        self._paths = paths or self._draws
        self.coverage = Coverage(self._pool)
        self._observer = observer
        self._evaluator = Evaluator(relay, trainer, validation=validation, budget=budget, scorer=scorer)
        size = population_size(self._server, budget)
        self._crew: Crew = crew or InlineCrew(self._evaluator, size=size, poll=observer.poll)
        self._schedule = Cosine(budget.learning_rate, budget.shared_steps)
        self._warm_steps = 0
        self._saved_at = time.monotonic()

    def restore(self) -> None:
        """Go on from the checkpoint; without one, from the start, if no trial was finished.

        Raises:
            StorageError: it is missing, damaged, or of another pool or optimizer.
        """
        if not self._checkpoint.exists() and not self._study.records:
            return  # killed before the first save
        extra = self._checkpoint.load(self._server)
        self._warm_steps = int(extra.get("warm_steps", 0))
        self.coverage.load(extra.get("coverage", {}))

    def run(self) -> Finalist:
        """All phases; returns the best finalist.

        Raises:
            Stopped: the observer asked for it; everything is saved.
            ConstraintError: nothing satisfies the constraints, or nothing that does could be trained.
            StorageError: something could not be saved.
        """
        try:
            self._warm_up()
            self._save()
            self._search()
            self._save()
            return self._choose_best()
        except Stopped:
            self._save()
            raise

    def _save(self) -> None:
        self._checkpoint.save(self._server, extra={"warm_steps": self._warm_steps, "coverage": self.coverage.to_json()})
        self._saved_at = time.monotonic()

    def _save_when_due(self) -> None:
        if time.monotonic() - self._saved_at >= self._budget.checkpoint_seconds:
            self._save()

    def _warm_up(self) -> None:
        total = self._budget.warmup_steps
        self._observer.phase("warm-up", total=total, done=min(self._warm_steps, total))
        if self._warm_steps >= total:
            return
        paths: dict[int, Architecture] = {}

        def path_at(step: int) -> Architecture:
            paths[step] = self._paths.path_at(step)
            return paths[step]

        def after_step(step: int, loss: float) -> None:
            self._warm_steps = step + 1
            self.coverage.add("warmup", paths.pop(step))
            self._observer.advance(step + 1, detail=f"loss {loss:.3f}")
            self._save_when_due()
            self._observer.poll()

        self._trainer.fit(
            path_at,
            start=self._warm_steps,
            steps=total - self._warm_steps,
            schedule=self._schedule,
            after_step=after_step,
        )
        self._observer.covered(self.coverage)

    def _search(self) -> None:
        """Trials until as many as asked for are evaluated, or the space has no more."""
        self._observer.phase("search", total=self._budget.trials, done=self._evaluated())
        proposer = Proposer(self._study, self._pool, constraints=self._constraints, draws=self._draws, note=self._note)
        running: set[Architecture] = set()
        while True:
            self._submit(running, proposer)
            if not running:
                return
            for job, outcome in self._crew.finished():
                running.discard(job.architecture)
                record = self._study.tell(
                    job.trial,
                    job.architecture,
                    state=outcome.state,
                    values=outcome.metrics,
                    attributes=outcome.metrics,
                    reason=outcome.reason,
                    weights=outcome.weights,
                    seconds=outcome.seconds,
                    worker=outcome.worker,
                )
                self._note(record)
                proposer.settle(record)
                for _ in range(outcome.shared_steps):
                    self.coverage.add("trials", job.architecture)
            self._observer.advance(self._evaluated())
            self._save_when_due()

    def _submit(self, running: set[Architecture], proposer: Proposer) -> None:
        """As many jobs as the crew has room for and the budget has left."""
        while len(running) < self._crew.size and self._evaluated() + len(running) < self._budget.trials:
            if not running:  # a crew that is at work asks for itself
                self._observer.poll()
            proposed = proposer.next(running)
            if proposed is None:
                return
            trial, architecture = proposed
            self._crew.submit(Job(trial, architecture, self._evaluated() + len(running)))
            running.add(architecture)

    def _evaluated(self) -> int:
        return num_evaluated(self._study.records)

    def _note(self, record: TrialRecord) -> None:
        self._observer.trial(record, self._study.records)

    def _choose_best(self) -> Finalist:
        """Train the best few further, each on its own copy, and score them again on all validation data."""
        best = ranked(self._study.records, self._goals)[: self._budget.finalists]
        if not best:
            raise ConstraintError(self._nothing_found())
        steps = max(1, self._budget.finalist_steps)
        self._observer.phase("finalists", total=len(best) * steps, done=0)
        winner: tuple[tuple[float, ...], Finalist] | None = None
        refused: L2LError | None = None
        trained = 0

        def after_step(loss: float) -> None:
            nonlocal trained
            trained += 1
            self._observer.advance(min(trained, len(best) * steps), detail=f"loss {loss:.3f}")

        architectures = [record.architecture for record in best]
        for over, one in enumerate(self._crew.train_finalists(architectures, after_step=after_step), start=1):
            if one.metrics is not None and one.server is not None:
                # only the winner so far is kept: each finalist is a copy of its weights and moments
                rank = (*self._finalist_rank(one.metrics), float(one.index))
                if winner is None or rank < winner[0]:
                    winner = rank, Finalist(best[one.index], one.metrics, one.server)
            else:
                refused = one.refused
            del one
            self._observer.advance(max(min(trained, len(best) * steps), over * steps))
        if winner is None:
            assert refused is not None
            raise refused
        return winner[1]

    def _finalist_rank(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        goal = self._goals[0]
        value = metrics[goal.name]
        return (-value if goal.maximize else value, metrics["parameters"])

    def _nothing_found(self) -> str:
        found = counts(self._study.records)
        reasons = [record.reason for record in self._study.records if record.reason]
        return (
            f"no trial finished: {found['pruned']} refused by constraints, {found['failed']} failed; "
            f"the last reason: {reasons[-1] if reasons else 'none'}"
        )
