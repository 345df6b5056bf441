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

[Note: back to the pool] Whatever becomes of a trial or finalist on a copy, the relay serves the shared weights again
before anything else happens, and nothing of the copy is left.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from optuna.trial import Trial

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, NonFiniteError
from l2l_nas.relay.executor import Relay
from l2l_nas.search.budget import Budget
from l2l_nas.search.coverage import Coverage
from l2l_nas.search.records import Goal, TrialRecord, counts, num_evaluated, ranked
from l2l_nas.search.study import Study
from l2l_nas.search.weights import FINALIST_WEIGHTS, TRIAL_WEIGHTS, Ledger
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty, first_violation
from l2l_nas.space.sampling import PathSampler, UniformPaths
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine

# proposals that repeat, or that a constraint refuses, before a random new architecture takes the sampler's place
_PATIENCE = 25
# random draws in the search for a new architecture; after them, all of a space up to this size are gone through
_DRAWS = 1000
_COUNTABLE = 100_000


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

    def finalist(self, record: TrialRecord, metrics: Mapping[str, float]) -> None:
        """A finalist was trained further and scored again; the record is that of its trial."""

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
    ) -> None:
        self._relay = relay
        self._pool = relay.pool
        self._server = relay.server
        self._trainer = trainer
        self._scorer = scorer or trainer
        self._validation = validation
        self._study = study
        self._goals = tuple(goals)
        self._budget = budget
        self._checkpoint = checkpoint
        self._constraints = (NonEmpty(self._pool), *constraints)
        self._draws = UniformPaths(self._pool, seed=seed, constraints=self._constraints)
        self._paths = paths or self._draws
        self.coverage = Coverage(self._pool)
        self._ledger = Ledger()
        self._observer = observer
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
        while self._evaluated() < self._budget.trials:
            self._observer.poll()
            if not self._next_trials():
                return
            self._observer.advance(self._evaluated())
            self._save_when_due()

    def _evaluated(self) -> int:
        return num_evaluated(self._study.records)

    def _next_trials(self) -> bool:
        """One trial, or a population of them where they only look; False if every allowed architecture was tried."""
        known = {r.architecture: r for r in self._study.records if not r.cached and r.state != "pruned"}
        fresh: dict[Architecture, Trial] = {}
        repeats: list[tuple[Trial, Architecture]] = []
        for _ in range(min(self._population, self._budget.trials - self._evaluated())):
            proposed = self._propose(known, fresh, repeats)
            if proposed is None:
                break
            fresh[proposed[1]] = proposed[0]
        if len(fresh) > 1:
            self._evaluate_population(fresh)
        else:
            for architecture, trial in fresh.items():
                self._note(self._evaluate_trial(trial, architecture))
        known |= {r.architecture: r for r in self._study.records if r.architecture in fresh and not r.cached}
        for trial, architecture in repeats:
            self._note(self._repeat(trial, known[architecture]))
        return bool(fresh)

    @property
    def _population(self) -> int:
        """How many trials are evaluated together: more than one where none changes what another sees."""
        looks_only = self._budget.steps_per_trial == 0
        has_buffers = any(self._server.layout(key).buffers for key in self._pool.states)
        return self._budget.population if looks_only and not has_buffers else 1

    def _propose(
        self,
        known: Mapping[Architecture, TrialRecord],
        fresh: Mapping[Architecture, Trial],
        repeats: list[tuple[Trial, Architecture]],
    ) -> tuple[Trial, Architecture] | None:
        """The next architecture to evaluate; repeats of one that is being evaluated are put aside."""
        for _ in range(_PATIENCE):
            trial, architecture = self._study.ask()
            reason = first_violation(architecture, self._constraints)
            if reason is not None:
                self._note(self._study.tell(trial, architecture, state="pruned", reason=reason))
            elif architecture in known:
                self._note(self._repeat(trial, known[architecture]))
            elif architecture in fresh:
                repeats.append((trial, architecture))
            else:
                return trial, architecture
        unseen = self._unseen({*known, *fresh})
        if unseen is None:
            return None
        self._study.propose(unseen)
        return self._study.ask()

    def _evaluate_population(self, fresh: Mapping[Architecture, Trial]) -> None:
        """Score architectures with the weights as they are, in one pass over their prefix tree."""
        started = time.monotonic()
        architectures = list(fresh)
        scores = self._trainer.evaluate_population(
            architectures, self._validation, max_bytes=self._budget.population_bytes
        )
        seconds = (time.monotonic() - started) / len(fresh)
        for architecture, metrics in zip(architectures, scores, strict=True):
            trial = fresh[architecture]
            try:
                _refuse_non_finite(metrics, step=self._budget.warmup_steps)
            except NonFiniteError as error:
                self._note(self._study.tell(trial, architecture, state="failed", reason=str(error), seconds=seconds))
            else:
                weights = self._ledger.entry(self._budget.trial_weights, self._server, architecture)
                self._note(self._complete(trial, architecture, metrics, weights=weights, seconds=seconds))

    def _note(self, record: TrialRecord) -> None:
        self._observer.trial(record, self._study.records)

    def _repeat(self, trial: Trial, earlier: TrialRecord) -> TrialRecord:
        complete = earlier.state == "complete"
        return self._study.tell(
            trial,
            earlier.architecture,
            state=earlier.state,
            values=earlier.values if complete else None,
            cached=True,
            reason=earlier.reason,
            weights=earlier.weights,
        )

    def _unseen(self, known: Collection[Architecture]) -> Architecture | None:
        """A random architecture that was not tried; None if there seems to be none left."""
        for draw in range(_DRAWS):
            # draws of their own: warm-up numbers its paths from 0
            try:
                architecture = self._draws.path_at(-1 - draw - _DRAWS * len(known))
            except ConstraintError:
                break
            if architecture not in known:
                return architecture
        if self._pool.size > _COUNTABLE:
            return None
        for names in itertools.product(*([c.name for c in p.candidates] for p in self._pool.positions)):
            architecture = self._pool.architecture(names)
            if architecture not in known and first_violation(architecture, self._constraints) is None:
                return architecture
        return None

    def _evaluate_trial(self, trial: Trial, architecture: Architecture) -> TrialRecord:
        started = time.monotonic()
        budget = self._budget
        first = budget.warmup_steps + self._evaluated() * budget.steps_per_trial
        server = TRIAL_WEIGHTS[budget.trial_weights](self._server, architecture)
        is_shared = server is self._server
        try:
            if not is_shared:
                self._relay.use(server)
            self._trainer.fit(
                lambda step: architecture,
                start=first,
                steps=budget.steps_per_trial,
                schedule=self._schedule if is_shared else Cosine(budget.learning_rate, budget.steps_per_trial),
                offset=0 if is_shared else first,
                after_step=self._trial_progress(architecture, is_shared=is_shared),
            )
            weights = self._ledger.entry(budget.trial_weights, server, architecture)
            metrics = self._score(server, architecture)
            _refuse_non_finite(metrics, step=first + budget.steps_per_trial)
        except NonFiniteError as error:
            return self._study.tell(
                trial,
                architecture,
                state="failed",
                reason=str(error),
                seconds=time.monotonic() - started,
            )
        finally:
            self._use_pool()
        return self._complete(trial, architecture, metrics, weights=weights, seconds=time.monotonic() - started)

    def _trial_progress(self, architecture: Architecture, *, is_shared: bool) -> Callable[[int, float], None]:
        def after_step(step: int, loss: float) -> None:
            if is_shared:
                self.coverage.add("trials", architecture)
            else:
                self._observer.poll()  # a trial on a copy may be dropped at any step

        return after_step

    def _complete(
        self,
        trial: Trial,
        architecture: Architecture,
        metrics: Mapping[str, float],
        *,
        weights: Mapping[str, Any],
        seconds: float,
    ) -> TrialRecord:
        figures = {**metrics, "parameters": num_parameters(self._pool, architecture)}
        return self._study.tell(
            trial,
            architecture,
            state="complete",
            values=figures,
            seconds=seconds,
            attributes=figures,
            weights=weights,
        )

    def _score(self, server: ParamServer, architecture: Architecture) -> dict[str, float]:
        """Metrics with these weights; BatchNorm's statistics are measured for this path, never on the shared ones.

        It may leave the relay with a copy.
        """
        states = path_states(self._pool, architecture)
        if server is self._server and any(server.layout(key).buffers for key in states):
            self._relay.use(server.fork(states))
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

    def _choose_best(self) -> Finalist:
        """Train the best few further, each on its own copy, and score them again on all validation data."""
        best = ranked(self._study.records, self._goals)[: self._budget.finalists]
        if not best:
            raise ConstraintError(self._nothing_found())
        steps = max(1, self._budget.finalist_steps)
        self._observer.phase("finalists", total=len(best) * steps, done=0)
        winner: Finalist | None = None
        refused: NonFiniteError | None = None
        for index, record in enumerate(best):
            try:
                finalist = self._train_finalist(index, record)
                self._observer.finalist(record, finalist.metrics)
                # only the winner so far is kept: each finalist is a copy of its weights and moments
                winner = min(filter(None, (winner, finalist)), key=self._finalist_rank)
            except NonFiniteError as error:
                refused = error
            self._observer.advance((index + 1) * steps)
        if winner is None:
            assert refused is not None
            raise refused
        return winner

    def _finalist_rank(self, finalist: Finalist) -> tuple[float, float]:
        goal = self._goals[0]
        value = finalist.metrics[goal.name]
        return (-value if goal.maximize else value, finalist.metrics["parameters"])

    def _train_finalist(self, index: int, record: TrialRecord) -> Finalist:
        budget = self._budget
        architecture = record.architecture
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
                after_step=self._finalist_progress(index, start),
            )
            if self._scorer is not self._trainer:
                self._scorer.executor.use(server)
            self._scorer.recalibrate(architecture)
            metrics = self._scorer.evaluate(architecture, self._validation)
            _refuse_non_finite(metrics, step=start + budget.finalist_steps)
        finally:
            self._use_pool()
        figures = {**metrics, "parameters": float(num_parameters(self._pool, architecture))}
        return Finalist(record, figures, server)

    def _finalist_progress(self, index: int, start: int) -> Callable[[int, float], None]:
        def after_step(step: int, loss: float) -> None:
            self._observer.advance(index * self._budget.finalist_steps + step + 1 - start, detail=f"loss {loss:.3f}")
            self._observer.poll()

        return after_step

    def _nothing_found(self) -> str:
        found = counts(self._study.records)
        reasons = [record.reason for record in self._study.records if record.reason]
        return (
            f"no trial finished: {found['pruned']} refused by constraints, {found['failed']} failed; "
            f"the last reason: {reasons[-1] if reasons else 'none'}"
        )


def _refuse_non_finite(metrics: Mapping[str, float], *, step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteError(f"the {name} on the validation data", layer=None, step=step)
