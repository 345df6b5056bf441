"""Which architecture is evaluated next: the sampler's, unless it repeats itself or a constraint refuses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from optuna.trial import Trial

from l2l_nas.cost.table import Costs
from l2l_nas.errors import ConstraintError, failure_of, one_line
from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.nas.study.study import Study
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import PathSampler

# proposals that repeat, or that a constraint refuses, before a random new architecture takes the sampler's place
_PATIENCE = 25
# random ones that a measurement refuses before none is taken to be left
_LONG_PATIENCE = 200
# random draws in the search for a new architecture; of a space up to this size fewer, then all are gone through
_DRAWS = 1000
_COUNTABLE = 100_000
_FEW_DRAWS = 100


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
        self._known = {record.architecture: record for record in study.records if self._is_answer(record)}
        self._waiting: dict[Architecture, list[Trial]] = {}  # repeats of architectures that are being evaluated
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
        if not self._is_answer(record):
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

    @staticmethod
    def _is_answer(record: TrialRecord) -> bool:
        """Whether it tells what becomes of its architecture."""
        return not record.cached and record.state is not State.PRUNED
