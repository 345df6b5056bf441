"""One search, in phases: warm-up, trials, finalists.

Paths, batches, random numbers and learning rates depend on (seed, step) alone, so that an interrupted warm-up goes on
as if nothing had been. A resumed search keeps its trials and goes on with a newly seeded sampler and the weights last
saved; finalists that were not written yet are trained again.

Trials train the shared weights, a copy of them, or first weights (`Budget.trial_weights`); the last two leave the
shared weights untouched, and have a learning rate that rises and falls within each trial, or is that of the finalists'
training (see [Note: a race]), so that trials are treated alike. Finalists always train a copy, or first weights where
trials do: shared weights that no trial was scored with say nothing of the trials' order.

[Note: steps] Training steps are numbered through the whole run: warm-up first, then `steps_per_trial` for each trial
evaluated, then each finalist's, then those of candidates that joined later. A step's number decides its batch, its
random numbers and its learning rate.

[Note: a race] Where trials begin with first weights and finalists follow, all are one training, cut where networks are
compared: each network has steps 0, 1, ... of the same batches, and the learning rate that a training to the end would
have there. A trial whose learning rate falls by itself tells less of the end after as many steps (docs/log.md).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Costs, Limit
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, StorageError, described
from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.evaluation.early_stopping import EarlyStop, NeverStop
from l2l_nas.nas.evaluation.evaluator import Evaluator, InlineExecutor, Job, TrialExecutor, population_size
from l2l_nas.nas.objectives import Goal, TrialRecord, counts, ranked
from l2l_nas.nas.strategies import baseline
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.catch_up import Introduction, Targets
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.finalists import Finalist, Recall, choose, key_of, order
from l2l_nas.nas.strategies.proposer import Proposer
from l2l_nas.nas.strategies.rounds import Counted, Rounds
from l2l_nas.nas.study.study import Study
from l2l_nas.relay.executor import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty, first_violation
from l2l_nas.space.sampling import PathSampler, UniformPaths
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine

_BASELINE_SEED = 1_000_003  # far from those of other runs
_BASELINE_DRAWS = 1000
_MOST_HELD = 0.25  # of free memory, by weights of trials that finalists may go on with
# between two looks at whether others are done with the last trials
_OTHERS_SECONDS = 0.5


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
        constraints: trials that they refuse are never trained, nor are paths of warm-up that those refuse which need no
            measurement.
        seed: of the paths.
        observer: sees it go by.
        paths: of warm-up; uniform if nothing is said. They must be allowed, and not empty.
        scorer: scores finalists; the trainer, unless its executor computes in low precision.
        executor: evaluates trials and trains finalists; without it this process, with relay, trainer and scorer.
        costs: of an architecture, recorded with each trial; the number of parameters if nothing is said.
        early_stop: which trials do not take all their steps.
        test: what finalists are measured on besides, once each; nothing else sees it.
        recall: finds finalists of an earlier session again; without it, they are always trained.

    Attributes:
        finalists: those trained further, in the order in which they were chosen; without weights.
        baseline: what random search came to; None if it did not follow, or could not train any network.
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
        observer: Callback,
        paths: PathSampler | None = None,
        scorer: Trainer | None = None,
        executor: TrialExecutor | None = None,
        costs: Costs | None = None,
        early_stop: EarlyStop | None = None,
        test: Split | None = None,
        recall: Recall | None = None,
    ) -> None:
        self._pool = relay.pool
        self._server = relay.server
        self._trainer = trainer
        self._study = study
        self._goals = tuple(goals)
        self._budget = budget
        self._checkpoint = checkpoint
        self._constraints = in_order((NonEmpty(self._pool), *constraints))
        self._draws = UniformPaths(self._pool, seed=seed, constraints=unmeasured(self._constraints))
        self._paths = paths or self._draws
        self.coverage = Coverage(self._pool)
        self._observer = observer
        self._costs = costs or Costs([parameters_cost(self._pool)])
        for record in study.records:
            self._costs.remember(record.architecture, record.metrics)
        self._early_stop = early_stop or NeverStop()
        self._early_stop.learn(study.records)
        self._evaluator = Evaluator(relay, trainer, validation=validation, budget=budget, scorer=scorer, test=test)
        size = population_size(self._server, budget)
        self._executor: TrialExecutor = executor or InlineExecutor(self._evaluator, size=size, poll=observer.poll)
        self._schedule = Cosine(budget.learning_rate, budget.shared_steps)
        self._warm_steps = 0
        self._seed = seed
        self._newcomers: Targets = {}
        self._introduced = 0  # steps of their warm-ups, of all of them
        self._saved_at = time.monotonic()
        self._recall = recall
        self._held: dict[Architecture, ParamServer] = {}  # weights of trials
        self.finalists: tuple[Finalist, ...] = ()
        self.baseline: baseline.Baseline | None = None

    def restore(self) -> None:
        """Go on from the checkpoint; without one, from the start, if no trial was finished.

        Raises:
            StorageError: it is missing, damaged, or of another pool or optimizer.
        """
        if not self._checkpoint.exists() and (self._study.is_shared or not self._study.records):
            return  # killed before the first save
        extra = self._checkpoint.load(self._server)
        try:
            self._take_over(extra)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(
                f"{self._checkpoint.folder}: holds weights, but not of a search ({described(error)}); restore it from "
                "a copy, or start a new run"
            ) from None

    def _take_over(self, extra: Mapping[str, Any]) -> None:
        """What was kept beside the weights."""
        self._warm_steps = int(extra.get("warm_steps", 0))
        self.coverage.load(extra.get("coverage", {}))
        self._introduced = int(extra.get("introduced", 0))
        met = self.coverage.newcomers(self._budget.introduce) if self._warm_steps >= self._budget.warmup_steps else {}
        self._newcomers = {
            row: {**extra.get("newcomers", {}).get(row, {}), **met.get(row, {})}
            for row in self.coverage.rows
            if row in met or row in extra.get("newcomers", {})
        }

    def run(self) -> Finalist:
        """All phases; returns the best finalist.

        Raises:
            Stopped: the observer asked for it; everything is saved.
            ConstraintError: nothing satisfies the constraints, or nothing that does could be trained.
            StorageError: something could not be saved.
        """
        try:
            self._warm_up()
            self._introduce()
            self._save()
            self._search()
            self._save()
            best = self._choose_best()
            if self._budget.baseline != "none":
                if self._recall is not None:
                    self._recall.save(best)
                self._play_baseline()
            return best
        except Stopped:
            self._save()
            raise

    def _save(self) -> None:
        extra = {"warm_steps": self._warm_steps, "coverage": self.coverage.to_json()}
        if self._newcomers or self._introduced:
            extra |= {"newcomers": self._newcomers, "introduced": self._introduced}
        self._checkpoint.save(self._server, extra=extra)
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

    def _introduce(self) -> None:
        """Train candidates that joined since warm-up until they had as many steps as the others; see `catch_up.py`."""
        plan = Introduction(
            self._pool, self.coverage, targets=self._newcomers, seed=self._seed, constraints=self._constraints
        ).plan(done=self._introduced)
        if not plan:
            self._newcomers = {}
            return
        # numbers behind all others: see [Note: steps]
        first = self._budget.steps
        start, done = first + self._introduced, self._introduced
        self._observer.phase("newcomers", total=len(plan), done=0)

        def after_step(step: int, loss: float) -> None:
            self.coverage.add("warmup", plan[step - start])
            self._introduced = done + step + 1 - start
            self._observer.advance(step + 1 - start, detail=f"loss {loss:.3f}")
            self._save_when_due()
            self._observer.poll()

        self._trainer.fit(
            lambda step: plan[step - start],
            start=start,
            steps=len(plan),
            schedule=Cosine(self._budget.learning_rate, done + len(plan)),
            offset=first,
            after_step=after_step,
        )
        self._newcomers = {}
        self._observer.covered(self.coverage)

    def _search(self) -> None:
        """Trials until as many as asked for are evaluated, or the space has no more."""
        self._observer.phase("search", total=self._budget.trials, done=self._evaluated())
        free = unmeasured(self._constraints)
        self._study.inform(
            lambda architecture: first_violation(architecture, free) is None,
            self._costs.sums(self._pool),
            is_raced=self._budget.is_raced and self._budget.finalists > 0,
        )
        proposer = Proposer(
            self._study,
            self._pool,
            constraints=self._constraints,
            draws=self._draws,
            note=self._note,
            costs=self._costs,
            poll=self._observer.poll,
        )
        running: set[Architecture] = set()
        while True:
            self._submit(running, proposer)
            if not running and not self._study.elsewhere:
                return
            if not running:  # the last trials are others'; if those are lost, they come back
                self._observer.poll()
                time.sleep(_OTHERS_SECONDS)
                continue
            self._record(running, proposer)
            self._observer.advance(self._evaluated())
            self._save_when_due()

    def _record(self, running: set[Architecture], proposer: Proposer) -> None:
        """Wait for jobs, and keep what came of them; behind this, no weights of theirs are left but those held."""
        for job, outcome in self._executor.finished():
            running.discard(job.architecture)
            costs = self._figures(job.architecture)
            for _ in range(outcome.shared_steps):
                self.coverage.add("trials", job.architecture)
            record = self._study.tell(
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
            self._hold(record, outcome.server)
            self._note(record)
            proposer.record(record)

    def _hold(self, record: TrialRecord, server: ParamServer | None) -> None:
        """Keep the weights of the best trials so far, for finalists to go on with; others' are made again."""
        count = self._budget.finalists
        if server is None or not record.state.has_score or len(self._goals) > 1 or not count:
            return
        if (count + 1) * server.num_bytes > free_memory_bytes() * _MOST_HELD:
            return
        self._held[record.architecture] = server
        if len(self._held) > count:
            best = [one.architecture for one in ranked(self._study.records, self._goals)]
            places = {architecture: place for place, architecture in reversed(list(enumerate(best)))}
            del self._held[max(self._held, key=lambda one: places.get(one, len(best)))]

    def _submit(self, running: set[Architecture], proposer: Proposer) -> None:
        """As many jobs as the executor has room for and the budget has left."""
        while self._has_room(running, proposer):
            if not running:  # a executor that is at work asks for itself
                self._observer.poll()
            proposed = proposer.next(running)
            if proposed is None:
                return
            trial, architecture = proposed
            self._figures(architecture)  # what is measured is measured before the training, and remembered
            ordinal = self._leased(running)
            self._executor.submit(
                Job(trial, architecture, ordinal, stop_reason=partial(self._stop_reason, architecture))
            )
            running.add(architecture)

    def _has_room(self, running: set[Architecture], proposer: Proposer) -> bool:
        if len(running) >= self._executor.size:
            return False
        proposer.hear()
        return self._leased(running) < self._budget.trials

    def _leased(self, running: set[Architecture]) -> int:
        return self._evaluated() + len(running) + len(self._study.elsewhere)

    def _figures(self, architecture: Architecture) -> dict[str, float]:
        """All costs that take no time, and those measured that something depends on."""
        return self._costs.figures(architecture, measure=[g.name for g in self._goals if g.name in self._costs])

    def _stop_reason(self, architecture: Architecture, rung: str, metrics: Mapping[str, float]) -> str | None:
        return self._early_stop.stop_reason(architecture, rung, {**metrics, **self._figures(architecture)})

    def allowed(self, records: Sequence[TrialRecord]) -> tuple[TrialRecord, ...]:
        """Trials but those that were complete before a limit was set that they break.

        What has candidates that are gone stays: no limit can be asked about it.
        """
        return tuple(
            r
            for r in records
            if not r.state.has_score or not r.live or first_violation(r.architecture, self._constraints) is None
        )

    def costs_of(self, record: TrialRecord) -> dict[str, float]:
        """All costs that are known of a trial's architecture; of what is gone from the pool, those recorded with it."""
        if record.live:
            return self._figures(record.architecture)
        return {name: value for name, value in record.metrics.items() if name in self._costs}

    def _evaluated(self) -> int:
        return self._study.num_evaluated

    def _note(self, record: TrialRecord) -> None:
        if record.elsewhere:
            self._early_stop.learn([record])
        self._observer.trial(record, self._study.records)

    def _choose_best(self) -> Finalist:
        """Train finalists further, each on its own copy, and score them again; the best on the validation part."""
        allowed = [record for record in self.allowed(self._study.by_number) if record.live]
        best = ranked(allowed, self._goals)
        if not best:
            raise ConstraintError(self._nothing_found())
        if self._budget.finalists == 0:
            return Finalist(best[0], self._figures(best[0].architecture))
        chosen = choose(allowed, self._goals, count=self._budget.finalists, believed=self._study.believed())
        key = key_of(chosen, self._finalist_settings())
        return self._kept_finalists(key) or self._train_finalists(chosen, key)

    def _finalist_settings(self) -> dict[str, Any]:
        """All that finalists' scores depend on but which they are; the steps behind the shared weights among it."""
        budget = self._budget
        return {
            **(self._recall.settings if self._recall else {}),
            "steps": [budget.steps_before_finalists, budget.finalist_steps, *map(astuple, budget.rounds[1:])],
            "learning_rate": budget.finalist_learning_rate,
            "trial_weights": budget.trial_weights,
            "trained": [self._warm_steps, self._introduced, self.coverage.to_json()],
        }

    def _kept_finalists(self, key: str) -> Finalist | None:
        """The best of those that an earlier session trained, if they are these and the best one's weights are there."""
        content = self._study.kept_finalists(key)
        if content is None or self._recall is None:
            return None
        records = {record.number: record for record in self._study.records}
        try:
            kept = [Finalist.from_kept(one, records) for one in content]
            best = order(kept, self._goals)[0]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return None  # of another version, or by another hand: they are trained again, and kept as they should be
        server = self._recall.weights(best)
        if server is None:
            return None
        for one in kept:
            self._observer.finalist(one)
        self.finalists = tuple(kept)
        return replace(best, server=server)

    def _train_finalists(self, chosen: Sequence[TrialRecord], key: str) -> Finalist:
        rounds = Rounds(self._executor, self._budget, self._goals, self._observer)
        going = [
            Finalist(r, self._figures(r.architecture), server=self._held.get(r.architecture), steps=self._budget.begun)
            for r in chosen
        ]
        self._held.clear()
        best = rounds.train(going)
        self.finalists = rounds.finalists
        self._study.keep_finalists(key, [one.kept() for one in self.finalists])
        return best

    def _play_baseline(self) -> None:
        total = self._budget.steps
        self._observer.phase("baseline", total=total, done=0)
        trainings = baseline.plan(self._budget, self._random_networks())
        steps = Counted(self._observer, total)
        self.baseline = baseline.play(
            self._executor, trainings, self._goals[0], costs=self._figures, after_step=steps.after_step
        )

    def _random_networks(self) -> Iterator[Architecture]:
        """Allowed ones, other draws than warm-up's, until few are new."""
        draws = UniformPaths(self._pool, seed=self._seed + _BASELINE_SEED, constraints=unmeasured(self._constraints))
        for step in range(_BASELINE_DRAWS):
            self._observer.poll()
            architecture = draws.path_at(step)
            if first_violation(architecture, self._constraints) is None:
                yield architecture

    def _nothing_found(self) -> str:
        found = counts(self._study.records)
        reasons = [record.reason for record in self._study.records if record.reason]
        return (
            f"no trial finished: {found['pruned']} refused by constraints, {found['failed']} failed; "
            f"the last reason: {reasons[-1] if reasons else 'none'}"
        )


def unmeasured(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Those that take no time to ask."""
    return tuple(c for c in constraints if not (isinstance(c, Limit) and c.cost.is_measured))


def in_order(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Those that measure something last: what the others refuse is not measured."""
    return (*unmeasured(constraints), *(c for c in constraints if isinstance(c, Limit) and c.cost.is_measured))
