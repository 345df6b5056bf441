"""Reads studies: a saved one, for a report or for Optuna's own functions, and that of a loop of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from l2l_nas.arguments import check_kind
from l2l_nas.errors import SettingError, SpaceError, StorageError
from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.journal import STUDY_NAME, open_journal, readable
from l2l_nas.nas.study.ledger import LEDGER, phases_of, steps_of
from l2l_nas.nas.study.study import FINALISTS, choices_of, record_of
from l2l_nas.space.pool import LayerPool

# of trials of a loop of the user's own
_STATES = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.STOPPED, TrialState.FAIL: State.FAILED}


def read_study(path: Path) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials.

    Raises:
        StorageError: the study is missing, damaged, or not one of this program.
    """
    study = load_study(path)
    with readable(path):
        return _goals_and_records(study)


def read_steps(path: Path) -> dict[str, float]:
    """Steps that each phase has spent, by its name; empty where not all were counted.

    Raises:
        StorageError: the study is missing, damaged, or not one of this program.
    """
    study = load_study(path)
    with readable(path):
        content = study.user_attrs.get(LEDGER)
        return steps_of(phases_of(content)) if content is not None and content["complete"] else {}


def _goals_and_records(study: optuna.Study) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    goals = tuple(Goal(str(name), bool(maximize)) for name, maximize in study.user_attrs["goals"])
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    if not 1 <= len(goals) <= 3:
        raise ValueError(f"{len(goals)} objectives")
    return goals, tuple(record_of(trial, goals) for trial in finished)


@dataclass(frozen=True)
class StudyContents:
    """All that a saved study tells.

    Args:
        finalists: that were trained further, without their weights.
        space: see `l2l_nas.eps.identity.space_of`.
        data: the digest of the data that its trials were scored on.
    """

    goals: tuple[Goal, ...]
    records: tuple[TrialRecord, ...]
    finalists: tuple[Finalist, ...]
    space: Mapping[str, Any]
    data: str


def study_contents(study: optuna.Study, place: object) -> StudyContents:
    """What a study tells that a search of this program has written.

    Args:
        place: where it is, for errors.

    Raises:
        StorageError: it is damaged, or not one of this program.
    """
    with readable(place):
        goals, records = _goals_and_records(study)
        attributes = study.user_attrs
        by_number = {record.number: record for record in records}
        trained = (attributes.get(FINALISTS) or {}).get("finalists", ())
        finalists = tuple(Finalist.from_json(one, by_number) for one in trained if "given_up" not in one)
        space = attributes["space"]
        places = dict(zip(space["order"], map(space["candidates"].__getitem__, space["order"]), strict=True))
        if not all(
            isinstance(names, list) and all(isinstance(name, str) for name in names) for names in places.values()
        ):
            raise TypeError("its space is none")
        return StudyContents(goals, records, finalists, space, str(attributes["data"]))


def load_study(path: Path) -> optuna.Study:
    """The study of a run's folder, for Optuna's own functions.

    Raises:
        StorageError: it is missing, damaged, or not one of this program.
    """
    return open_journal(path, name=STUDY_NAME)


def choices_of_trial(path: Path, number: int) -> tuple[str, ...]:
    """The architecture of a trial in a saved study.

    Raises:
        StorageError: there is no such study or trial, or it is damaged.
    """
    _, records = read_study(path)
    found = {record.number: record.architecture.choices for record in records}
    if number not in found:
        raise StorageError(f"{path}: has no trial {number}; it has 0 to {max(found, default=-1)}")
    return found[number]


def read_own_study(study: optuna.Study, pool: LayerPool) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials. Numbers among a trial's user attributes are its metrics.

    Args:
        study: of one to three objectives.
        pool: that `suggest` was given.

    Raises:
        SettingError: it is no study, of more objectives, or of another pool.
    """
    check_kind("study", study, optuna.Study, wanted="an optuna.Study")
    goals = _own_goals(study)
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return goals, tuple(_own_record(trial, pool, goals) for trial in finished)


def _own_goals(study: optuna.Study) -> tuple[Goal, ...]:
    count = len(study.directions)
    if count > 3 or StudyDirection.NOT_SET in study.directions:
        raise SettingError(
            f"write_page: study has {count} objectives; a page shows one to three, each with a direction"
        )
    names = study.metric_names or (["value"] if count == 1 else [f"value_{number}" for number in range(count)])
    return tuple(
        Goal(name, direction is StudyDirection.MAXIMIZE)
        for name, direction in zip(names, study.directions, strict=True)
    )


def _own_record(trial: FrozenTrial, pool: LayerPool, goals: Sequence[Goal]) -> TrialRecord:
    try:
        architecture = pool.architecture(choices_of(trial.params, pool))
    except SpaceError as error:
        raise SettingError(f"trial {trial.number} of the study is not of this pool: {error}") from None
    values = trial.values if trial.state is TrialState.COMPLETE else None
    attributes = trial.user_attrs.items()
    numbers = {name: float(one) for name, one in attributes if isinstance(one, Real) and not isinstance(one, bool)}
    last = max(trial.intermediate_values, default=0)
    return TrialRecord(
        number=trial.number,
        architecture=architecture,
        state=_STATES[trial.state],
        values={} if values is None else {goal.name: value for goal, value in zip(goals, values, strict=True)},
        reason="" if values is not None else "pruned" if trial.state is TrialState.PRUNED else "failed",
        seconds=trial.duration.total_seconds() if trial.duration is not None else 0.0,
        metrics=numbers,
        rungs={f"{step}/{last}": {goals[0].name: value} for step, value in sorted(trial.intermediate_values.items())},
    )
