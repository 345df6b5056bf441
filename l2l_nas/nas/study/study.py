"""The study: an in-memory one that the sampler reads, and a saved one that gets each finished trial at once.

In a saved study every `suggest` and every attribute would be a line of its own.

[Note: attributes] What is in a study, beside what Optuna keeps (the names of the objectives, the choices by position as
parameters, the goals' values). Of a trial, as user attributes:

    architecture   list of str   candidate names by position, canonical
    digest         str           of the architecture, 16 hexadecimal digits
    enqueued       bool          it was asked for by `search.enqueue`; the sampler chose the others
    cached         bool          its values are those of an earlier trial of the same architecture; not counted
    seconds        float, s      what its training and scoring took
    metric_NAME    float         each metric of the validation part with the weights that the trial had, and each cost:
                                 parameters, flops, file_bytes, streamed_bytes, device_bytes (bytes), latency_ms (ms)
    standard_error dict          of these metrics, over samples, where figures of each sample give it
    reason         str           why it was pruned, stopped or failed
    stopped        bool          it was stopped early; a constraint pruned the others that are pruned
    rungs          dict          metrics on its way, by "steps done/steps"; with one goal its values at these steps are
                                 Optuna's intermediate values as well, which Optuna keeps for one goal alone
    weights        dict          which weights it was scored with; see `WeightProvenance.entry`
    process        int           the worker process (search.workers) that evaluated it, from 1
    ended          float, s      when it was finished, since 1970

Of the study: `space`, `goals`, `data` (see `Data.digest`), `finalists`: what came of those trained further, with
validation and test metrics and standard errors, and the key that tells which they are; and `ledger`: what each phase
has spent, see `ledger.py`.

[Note: one numbering] A trial has the number that the saved study gives it: records, callbacks, files and pages have
that one. The sampler alone works in a copy in memory, which lacks trials whose candidates are gone. A place in that
copy is known to the study and its store alone.

[Note: parameters] A trial has one parameter for each position with a choice. Its name is the position's, its value a
candidate's name. The sampler's copy has today's choices; trials with other candidates are left out of it, and of it
alone. What is saved has the choices of all that ever were candidates, as far as was known then: older trials keep the
choices that they had.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from l2l_nas.eps.identity import space_of
from l2l_nas.errors import SettingError, SpaceError, of_user
from l2l_nas.nas.earlier_task import EarlierTask
from l2l_nas.nas.objectives import Goal, State, TrialRecord, is_evaluated, num_evaluated
from l2l_nas.nas.samplers.base import Floats, GenotypeSampler
from l2l_nas.nas.samplers.registry import build_sampler, check_sampler
from l2l_nas.nas.study.choices import as_choices, choices_in, with_choices
from l2l_nas.nas.study.events import StudyLog
from l2l_nas.nas.study.journal import readable
from l2l_nas.nas.study.ledger import Ledger
from l2l_nas.nas.study.storage import Store
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

_STATES: dict[State, TrialState] = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.STOPPED: TrialState.PRUNED,  # distinguished from the one above by an attribute
    State.FAILED: TrialState.FAIL,
}
T = TypeVar("T")

# attribute of the study: what came of its finalists
FINALISTS = "finalists"
_NAMES: dict[TrialState, State] = {state: name for name, state in reversed(_STATES.items())}


class _Memory(optuna.Study):
    """The study that the sampler reads. A sampler may stop it at any time, not within `optimize` alone.

    Attributes:
        is_stopped: whether its sampler did.
    """

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Study:
    """Asks a sampler for architectures and records what became of them.

    Args:
        goals: one to three.
        sampler: its name, or the sampler itself.
        num_trials: how many trials are asked for in all.
        data: a hash of what trials are scored on; a study of other data is refused.

    Attributes:
        records: of all finished trials.
        num_evaluated: how many of the trials asked for are done.
        ledger: what the search has spent; it is stored with each trial.
        log: what else is told of it.
        place: where it is saved, for messages.

    Raises:
        StorageError: the file cannot be written; or, on resume, is missing, damaged, of another space or other goals.
        SettingError: no such sampler, or one that does not suit a space of this size.
    """

    def __init__(
        self,
        store: Store,
        *,
        pool: LayerPool,
        goals: Sequence[Goal],
        sampler: str | Mapping[str, Any] | optuna.samplers.BaseSampler,
        seed: int,
        num_trials: int,
        data: str = "",
    ) -> None:
        check_sampler(sampler)
        self._pool = pool
        self._goals = tuple(goals)
        self._store = store
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        identity = {
            "space": space_of(pool),
            "goals": [[goal.name, goal.maximize] for goal in goals],
            "data": data,
        }
        space, finished = self._store.open(identity, directions)
        self.place = store.place
        self._order = [position.name for position in pool.positions]
        self._choices = choices_in(pool)
        with readable(store.place):
            # as trials are saved
            self._saved_choices = as_choices({p.name: space["candidates"].get(p.name, ()) for p in pool.free})
        storage = optuna.storages.InMemoryStorage()
        storage.create_new_study(directions, "memory")
        self._memory = _Memory(
            "memory",
            storage,
            sampler=build_sampler(sampler, seed=seed, num_trials=num_trials, num_finished=len(finished)),
        )
        self._asked: dict[int, Architecture] = {}  # by the trial's number in memory
        self._proposed: list[tuple[Architecture, bool]] = []  # that wait, and whether the user asked for them
        with readable(store.place):
            self.records = tuple(map(self._read, finished))
            self.ledger = Ledger(store, has_trials=bool(finished))
            self.log = StudyLog(store, lambda: self.records)
        self.num_evaluated = num_evaluated(self.records)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What is searched for."""
        return self._goals

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to ask for: the sampler stopped, and no architecture that was proposed waits."""
        return self._memory.is_stopped and not self._proposed

    def keep_finalists(self, key: str, finalists: Sequence[Mapping[str, Any]]) -> None:
        """Keep what came of finalists, as JSON, in place of those before.

        Args:
            key: tells them from those of other trials and settings.

        Raises:
            StorageError: the study could not be written.
        """
        self._store.note(FINALISTS, {"key": key, "finalists": [dict(one) for one in finalists]})

    def stored_finalists(self, key: str) -> list[Mapping[str, Any]] | None:
        """What `keep_finalists` stored under this key; None where it is something else.

        Raises:
            StorageError: the study could not be read.
        """
        content = self._store.noted(FINALISTS)
        if not isinstance(content, dict) or content.get("key") != key:
            return None
        return list(content["finalists"])

    def ask(self) -> tuple[Trial, Architecture]:
        """What was proposed, else the sampler's next proposal, in canonical form.

        Raises:
            UserCodeError: the sampler raised something.
        """
        if self._proposed:
            self._enqueue(*self._proposed.pop(0))
        with of_user(self._memory.sampler, "sampler"):
            trial = self._memory.ask({**self._choices})
        architecture = self._pool.canonical(choices_of(trial.params, self._pool))
        self._asked[trial.number] = architecture
        return trial, architecture

    def inform(
        self,
        is_allowed: Callable[[Architecture], bool],
        costs: Mapping[str, Callable[[Architecture], float]] | None = None,
        *,
        is_raced: bool = False,
        earlier_tasks: tuple[EarlierTask, ...] = (),
    ) -> None:
        """Tell the sampler what is known without a trial, if it is one of our own; Optuna's cannot be informed.

        Both are asked for many architectures at each proposal, so they measure nothing.

        Args:
            is_allowed: whether an architecture would be evaluated; nothing else is proposed.
            costs: by name; those that are goals need no model, and `parameters` tells which candidates are large.
            is_raced: whether the best will be trained further, and compared then.
            earlier_tasks: what earlier runs found, of networks as this pool has them.

        Raises:
            SettingError: there are earlier tasks, and the sampler has no use for them; see `uses_earlier_tasks`.
        """
        sampler, pool = self._memory.sampler, self._pool
        if earlier_tasks and not self.uses_earlier_tasks:
            raise SettingError(f"{type(sampler).__name__} has no use for earlier tasks; choose sampler=gp_hamming")
        if not isinstance(sampler, GenotypeSampler):
            return
        costs = costs or {}

        def of_params(function: Callable[[Architecture], T]) -> Callable[[Mapping[str, Any]], T]:
            return lambda params: function(pool.canonical(choices_of(params, pool)))

        places = {place: goal.name for place, goal in enumerate(self._goals) if goal.name in costs}
        known = {place: of_params(costs[name]) for place, name in places.items()}
        size = of_params(costs["parameters"]) if "parameters" in costs else None
        sampler.inform(
            of_params(is_allowed),
            known,
            size=size,
            is_raced=is_raced,
            earlier_tasks=earlier_tasks,
            goals=self._goals,
            choices=self._choices,
        )

    @property
    def uses_earlier_tasks(self) -> bool:
        """Whether the sampler has a use for earlier tasks: those without a model have none."""
        return isinstance(self._memory.sampler, GenotypeSampler) and self._memory.sampler.uses_earlier_tasks

    def posterior(self) -> dict[Architecture, Floats]:
        """What scored architectures may come to if trained further, of shape (goals, draws); see `choose`.

        Empty where the sampler has no model.
        """
        sampler = self._memory.sampler
        if not isinstance(sampler, GenotypeSampler):
            return {}
        found = sampler.posterior(self._memory)
        return {self._pool.canonical(choices_of(params, self._pool)): values for params, values in found}

    def propose(self, architecture: Architecture, *, enqueued: bool = False) -> None:
        """Have `ask` give this architecture, behind those proposed before it.

        Args:
            enqueued: whether the user asked for it: it comes before all others, and its trial says so.
        """
        place = sum(is_enqueued for _, is_enqueued in self._proposed) if enqueued else len(self._proposed)
        self._proposed.insert(place, (architecture, enqueued))

    def _enqueue(self, architecture: Architecture, enqueued: bool) -> None:
        named = zip(self._pool.positions, architecture.choices, strict=True)
        self._memory.enqueue_trial(
            {p.name: name for p, name in named if p.name in self._choices},
            user_attrs={"enqueued": True} if enqueued else None,
        )

    def tell(self, trial: Trial, state: State, values: Mapping[str, float] | None = None, **facts: Any) -> TrialRecord:
        """Record a finished trial; when this returns, it is in the saved study.

        Args:
            trial: that `ask` gave.
            values: by goal name, and others; none for a state that has no score.
            facts: what else is known of it, by `TrialRecord`'s names.

        Raises:
            StorageError: the study could not be written.
            UserCodeError: the sampler raised something; the trial is saved.
        """
        scores = {goal.name: float(values[goal.name]) for goal in self._goals} if values else {}
        record = TrialRecord(
            trial.number, self._asked.pop(trial.number), state, scores, ended=round(time.time(), 3), **facts
        )
        for name, value in attributes_of(record).items():
            trial.set_user_attr(name, value)
        if record.rungs and len(self._goals) == 1:
            self._report(trial, record)
        try:
            with of_user(self._memory.sampler, "sampler"):
                self._memory.tell(trial, list(scores.values()) or None, state=_STATES[state])
        finally:  # what was trained is saved, whatever the sampler makes of it
            ended = self._memory.get_trials(deepcopy=False)[trial.number]
            if self._saved_choices != self._choices:
                ended = with_choices(ended, self._saved_choices, positions=self._order)
            self.ledger.store()  # before the trial: a kill in between counts its steps, which were done
            record = replace(record, number=self._store.save(ended))
            self.records += (record,)
            self.num_evaluated += is_evaluated(record)
        return record

    def _report(self, trial: Trial, record: TrialRecord) -> None:
        """Its values on its way, and at its last step if it got there, as Optuna's own functions show them."""
        goal = self._goals[0].name
        rungs = dict(record.rungs)
        if record.values:
            steps = next(iter(rungs)).partition("/")[2]
            rungs[f"{steps}/{steps}"] = record.values
        for rung, metrics in rungs.items():
            if goal in metrics:
                trial.report(float(metrics[goal]), int(rung.partition("/")[0]))

    def _read(self, trial: FrozenTrial) -> TrialRecord:
        """Take over a trial that is saved; the sampler gets it, unless a candidate of it is gone."""
        record = record_of(trial, self._goals)
        choices = record.architecture.choices
        pairs = zip(choices, self._pool.positions, strict=True)
        if not all(name in (one.name for one in position.candidates) for name, position in pairs):
            return replace(record, in_space=False)
        found = with_choices(trial, self._choices, positions=self._order)
        if found.distributions == self._choices:
            if found is not trial:
                # genetic samplers breed from the generation before; some may be left out of it, and so all begin anew
                found.system_attrs = {
                    name: 0 if name.endswith(":generation") else value for name, value in found.system_attrs.items()
                }
            self._memory.add_trial(found)
        return replace(record, architecture=self._pool.canonical(choices))


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """What is stored with a trial; see [Note: attributes]. What says nothing is left out."""
    found: dict[str, Any] = {
        "architecture": list(record.architecture.choices),
        "digest": record.architecture.digest,
        "cached": record.cached,
        "seconds": record.seconds,
        **{f"metric_{name}": value for name, value in record.metrics.items()},
    }
    more = {
        "reason": record.reason,
        "weights": dict(record.weights),
        "process": record.worker,
        "ended": record.ended,
        "stopped": record.state == State.STOPPED,
        "rungs": {rung: dict(metrics) for rung, metrics in record.rungs.items()},
        "standard_error": dict(record.errors),
    }
    return found | {name: value for name, value in more.items() if value}


def record_of(trial: FrozenTrial, goals: Sequence[Goal]) -> TrialRecord:
    """What a finished trial of a study tells; the reverse of `attributes_of`.

    Raises:
        KeyError, TypeError, ValueError: it is not one of this program.
    """
    try:
        architecture = Architecture.from_choices(trial.user_attrs["architecture"])
    except SpaceError as error:
        raise ValueError(str(error)) from None
    names = [goal.name for goal in goals]
    values = dict(zip(names, trial.values, strict=True)) if trial.state is TrialState.COMPLETE else {}
    attributes = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        architecture=architecture,
        state=State.STOPPED if "stopped" in attributes else _NAMES[trial.state],
        values=values,
        cached=bool(attributes.get("cached", False)),
        reason=str(attributes.get("reason", "")),
        seconds=float(attributes.get("seconds", 0.0)),
        weights=dict(attributes.get("weights", {})),
        worker=int(attributes.get("process", 0)),
        ended=float(attributes.get("ended", 0.0)),
        metrics={n.removeprefix("metric_"): v for n, v in attributes.items() if n.startswith("metric_")},
        errors=dict(attributes.get("standard_error", {})),
        rungs=dict(attributes.get("rungs", {})),
    )


@contextlib.contextmanager
def optuna_as_it_was() -> Iterator[None]:
    """Whatever is quiet inside is as loud as before behind it."""
    level = optuna.logging.get_verbosity()
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def quiet_optuna() -> None:
    """Leave the terminal to the progress line, and what is wrong to the one line that tells it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def choices_of(params: Mapping[str, Any], pool: LayerPool) -> tuple[str, ...]:
    """The candidate of each position, by a trial's parameters; where there is no choice, the only one."""
    return tuple(str(params.get(position.name, position.candidates[0].name)) for position in pool.positions)
