"""The study: an in-memory one that the sampler reads, and a saved one that gets each finished trial at once.

In a saved study every `suggest` and every attribute would be a line, or a commit, of its own.

[Note: attributes] What is in a study, beside what Optuna keeps (the names of the objectives, the choices by position as
parameters, the goals' values), in a run's folder and in a database. Of a trial, as user attributes:

    architecture   list of str   candidate names by position, canonical
    digest         str           of the architecture, 16 hexadecimal digits
    enqueued       bool          it was asked for by `search.enqueue`; the sampler chose the others
    cached         bool          its values are those of an earlier trial of the same architecture; not counted
    seconds        float, s      what its training and scoring took
    metric_NAME    float         each metric of the validation part with the weights that the trial had, and each cost:
                                 parameters, flops, streamed_bytes and device_bytes (bytes), latency_ms (ms)
    reason         str           why it was pruned, stopped or failed
    stopped        bool          it was stopped early; a constraint pruned the others that are pruned
    rungs          dict          metrics on its way, by "steps done/steps"; with one goal its values at these steps are
                                 Optuna's intermediate values as well, which Optuna keeps for one goal alone
    weights        dict          which weights it was scored with; see `WeightProvenance.entry`
    process        int           the worker process (search.workers) that evaluated it, from 1

Of the study: `space`, `goals`, `data` (see `Data.digest`), in a database `scoring`, `driver` and `continued_in`, and
`finalists`: what came of those trained further, with validation and test metrics and standard errors, and the key that
tells which they are.

[Note: one numbering] A trial has the number that the saved study gives it: records, callbacks, files and pages have
that one. The sampler alone works in a copy in memory, which lacks trials whose candidates are gone. A place in that
copy is known to the study and its store alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from l2l_nas.eps.identity import space_of
from l2l_nas.errors import SpaceError, StorageError, of_user
from l2l_nas.nas.objectives import Goal, State, TrialRecord, is_evaluated
from l2l_nas.nas.samplers.base import Floats, GenotypeSampler
from l2l_nas.nas.samplers.registry import build_sampler, check_sampler
from l2l_nas.nas.study.encoding import Encoding, choices_of
from l2l_nas.nas.study.journal import readable
from l2l_nas.nas.study.storage import Store
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

_STATES: dict[State, TrialState] = {
    State.COMPLETE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.STOPPED: TrialState.PRUNED,  # distinguished from the one above by an attribute
    State.FAILED: TrialState.FAIL,
}
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
        scoring: settings that all trials of a study in a database must have in common.

    Attributes:
        num_evaluated: how many of the trials asked for are done.
        place: where it is saved, for messages.
        is_in_folder: whether it lies beside the weights that its trials trained.

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
        scoring: Mapping[str, Any] | None = None,
    ) -> None:
        check_sampler(sampler, size=pool.size)
        self._pool = pool
        self._goals = tuple(goals)
        self._store = store
        directions = [StudyDirection.MAXIMIZE if goal.maximize else StudyDirection.MINIMIZE for goal in goals]
        identity = {
            "space": space_of(pool),
            "goals": [[goal.name, goal.maximize] for goal in goals],
            "data": data,
            **({"scoring": dict(scoring)} if scoring is not None else {}),
        }
        space, finished = self._store.open(identity, directions)
        self.place, self.is_in_folder = store.place, store.is_in_folder
        with readable(store.place):
            self._encoding = Encoding(pool, space["candidates"])
        storage = optuna.storages.InMemoryStorage()
        storage.create_new_study(directions, "memory")
        self._memory = _Memory(
            "memory",
            storage,
            sampler=build_sampler(
                sampler,
                seed=seed,
                num_trials=num_trials,
                num_finished=len(finished),
                size=pool.size,
            ),
        )
        self._records: list[TrialRecord] = []
        self._asked: dict[int, Architecture] = {}  # by the trial's number in memory
        self.num_evaluated = 0
        with readable(store.place):
            for trial in finished:
                self._keep(self._record(trial))
                inward = self._encoding.inward(trial)
                if inward is not None:
                    self._memory.add_trial(inward)

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        return tuple(self._records)

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to ask for: the sampler stopped, and no architecture that was proposed waits."""
        return self._memory.is_stopped and not self._memory.get_trials(deepcopy=False, states=(TrialState.WAITING,))

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

    def close(self) -> None:
        self._store.close()

    def ask(self) -> tuple[Trial, Architecture]:
        """The sampler's next proposal, in canonical form.

        Raises:
            UserCodeError: the sampler raised something.
        """
        with self._sampling():
            trial = self._memory.ask({**self._encoding.distributions})
        architecture = self._asked[trial.number] = self._of_params(trial.params)
        return trial, architecture

    def _sampling(self) -> contextlib.AbstractContextManager[None]:
        return of_user(self._memory.sampler, "sampler")

    def inform(
        self,
        is_allowed: Callable[[Architecture], bool],
        costs: Mapping[str, Callable[[Architecture], float]] | None = None,
        *,
        is_raced: bool = False,
    ) -> None:
        """Tell the sampler what is known without a trial, if it is one of our own; Optuna's cannot be informed.

        Both are asked for many architectures at each proposal, so they measure nothing.

        Args:
            is_allowed: whether an architecture would be evaluated; nothing else is proposed.
            costs: by name; those that are goals need no model.
            is_raced: whether the best will be trained further, and compared then.
        """
        sampler = self._memory.sampler
        if isinstance(sampler, GenotypeSampler):
            costs = costs or {}

            def on_params(cost: Callable[[Architecture], float]) -> Callable[[Mapping[str, Any]], float]:
                return lambda params: cost(self._of_params(params))

            sampler.inform(
                lambda params: is_allowed(self._of_params(params)),
                {place: on_params(costs[goal.name]) for place, goal in enumerate(self._goals) if goal.name in costs},
                is_raced=is_raced,
            )

    def posterior(self) -> dict[Architecture, Floats]:
        """What scored architectures may come to if trained further, of shape (goals, draws); see `choose`.

        Empty where the sampler has no model.
        """
        sampler = self._memory.sampler
        if not isinstance(sampler, GenotypeSampler):
            return {}
        return {self._of_params(params): values for params, values in sampler.posterior(self._memory)}

    def _of_params(self, params: Mapping[str, Any]) -> Architecture:
        return self._pool.canonical(Architecture(choices_of(params, self._pool)))

    def propose(self, architecture: Architecture, *, enqueued: bool = False) -> None:
        """Make the next `ask` give this architecture.

        Args:
            enqueued: whether the user asked for it; its trial says so.
        """
        named = zip(self._pool.positions, architecture.choices, strict=True)
        self._memory.enqueue_trial(
            {p.name: name for p, name in named if p.name in self._encoding.distributions},
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
        outcome = TrialRecord(trial.number, self._asked.pop(trial.number), state, values or {}, **facts)
        for name, value in self._attributes(outcome).items():
            trial.set_user_attr(name, value)
        self._report(trial, outcome)
        scores = [float(outcome.values[goal.name]) for goal in self._goals] if outcome.values else None
        try:
            with self._sampling():
                self._memory.tell(trial, scores, state=_STATES[state])
        finally:  # what was trained is saved, whatever the sampler makes of it
            ended = self._memory.get_trials(deepcopy=False)[trial.number]
            number = self._store.save(self._encoding.outward(ended))
            record = replace(self._record(ended), number=number)
            self._keep(record)
        return record

    @staticmethod
    def _attributes(outcome: TrialRecord) -> dict[str, Any]:
        """See [Note: attributes]; what says nothing is left out."""
        found: dict[str, Any] = {
            "architecture": list(outcome.architecture.choices),
            "digest": outcome.architecture.digest,
            "cached": outcome.cached,
            "seconds": outcome.seconds,
            **{f"metric_{name}": value for name, value in outcome.metrics.items()},
        }
        more = {
            "reason": outcome.reason,
            "weights": dict(outcome.weights),
            "process": outcome.worker,
            "stopped": outcome.state == State.STOPPED,
            "rungs": {rung: dict(metrics) for rung, metrics in outcome.rungs.items()},
        }
        return found | {name: value for name, value in more.items() if value}

    def _report(self, trial: Trial, outcome: TrialRecord) -> None:
        """Its values on its way, and at its last step if it got there, as Optuna's own functions show them."""
        goal = self._goals[0].name
        rungs = dict(outcome.rungs)
        if rungs and outcome.values:
            steps = next(iter(rungs)).partition("/")[2]
            rungs[f"{steps}/{steps}"] = outcome.values
        for rung, metrics in rungs.items():
            if len(self._goals) == 1 and goal in metrics:
                trial.report(float(metrics[goal]), int(rung.partition("/")[0]))

    def _keep(self, record: TrialRecord) -> None:
        self._records.append(record)
        self.num_evaluated += is_evaluated(record)

    def _architecture(self, trial: FrozenTrial) -> Architecture:
        """What a trial evaluated; its candidates may be gone."""
        try:
            architecture = Architecture.from_choices(trial.user_attrs["architecture"])
        except (KeyError, SpaceError) as error:
            raise self._foreign(trial, error) from None
        if len(architecture.choices) != len(self._pool):
            raise self._foreign(trial, SpaceError(f"{len(architecture.choices)} choices"))
        return self._pool.canonical(architecture) if self._encoding.is_in_space(architecture.choices) else architecture

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        architecture = self._architecture(trial)
        try:
            record = record_of(trial, self._goals, lambda choices: architecture)
            return replace(record, in_space=self._encoding.is_in_space(architecture.choices))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise self._foreign(trial, error) from None

    def _foreign(self, trial: FrozenTrial, error: Exception) -> StorageError:
        return StorageError(
            f"{self.place}: trial {trial.number} does not read as one of this program ({error}); start a new run"
        )


def record_of(
    trial: FrozenTrial, goals: Sequence[Goal], architecture_of: Callable[[Sequence[str]], Architecture]
) -> TrialRecord:
    """What a finished trial of a study tells.

    Raises:
        KeyError, TypeError, ValueError: it is not one of this program.
    """
    names = [goal.name for goal in goals]
    values = dict(zip(names, trial.values, strict=True)) if trial.state is TrialState.COMPLETE else {}
    attributes = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        architecture=architecture_of(attributes["architecture"]),
        state=State.STOPPED if "stopped" in attributes else _NAMES[trial.state],
        values=values,
        cached=bool(attributes.get("cached", False)),
        reason=str(attributes.get("reason", "")),
        seconds=float(attributes.get("seconds", 0.0)),
        weights=dict(attributes.get("weights", {})),
        worker=int(attributes.get("process", 0)),
        metrics={n.removeprefix("metric_"): v for n, v in attributes.items() if n.startswith("metric_")},
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
