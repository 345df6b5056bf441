"""Reads saved studies, for a report or for Optuna's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.events import Event, with_trials
from l2l_nas.nas.study.journal import STUDY_NAME, open_journal, readable
from l2l_nas.nas.study.ledger import LEDGER, phases_of, steps_of
from l2l_nas.nas.study.study import FINALISTS, record_of


@dataclass(frozen=True)
class StudyContents:
    """All that a saved study tells.

    Args:
        finalists: that were trained further, without their weights.
        space: see `l2l_nas.eps.identity.space_of`.
        data: the digest of the data that its trials were scored on.
        steps: that each phase has spent, by its name; empty where not all were counted.
        events: trials among them; see `with_trials`.
    """

    goals: tuple[Goal, ...]
    records: tuple[TrialRecord, ...]
    finalists: tuple[Finalist, ...]
    space: Mapping[str, Any]
    data: str
    steps: Mapping[str, float]
    events: tuple[Event, ...]


def read_study(path: Path) -> StudyContents:
    """What a study tells that a search of this program has written.

    Raises:
        StorageError: it is missing, damaged, or not one of this program.
    """
    journal = open_journal(path, name=STUDY_NAME)
    with readable(path):
        attributes = journal.study.user_attrs
        goals = tuple(Goal(str(name), bool(maximize)) for name, maximize in attributes["goals"])
        if not 1 <= len(goals) <= 3:
            raise ValueError(f"{len(goals)} objectives")
        finished = [trial for trial in journal.study.get_trials(deepcopy=False) if trial.state.is_finished()]
        records = tuple(record_of(trial, goals) for trial in finished)
        by_number = {record.number: record for record in records}
        trained = (attributes.get(FINALISTS) or {}).get("finalists", ())
        finalists = tuple(Finalist.from_json(one, by_number) for one in trained if "given_up" not in one)
        space = attributes["space"]
        places = dict(zip(space["order"], map(space["candidates"].__getitem__, space["order"]), strict=True))
        if not all(
            isinstance(names, list) and all(isinstance(name, str) for name in names) for names in places.values()
        ):
            raise TypeError("its space is none")
        ledger = attributes.get(LEDGER)
        steps = steps_of(phases_of(ledger)) if ledger is not None and ledger["complete"] else {}
        events = tuple(with_trials(journal.events(), records))
        return StudyContents(goals, records, finalists, space, str(attributes["data"]), steps, events)


def load_study(path: Path) -> optuna.Study:
    """The study of a run's folder, for Optuna's own functions.

    Raises:
        StorageError: it is missing, damaged, or not one of this program.
    """
    return open_journal(path, name=STUDY_NAME).study


def choices_of_trial(path: Path, number: int) -> tuple[str, ...]:
    """The architecture of a trial in a saved study.

    Raises:
        StorageError: there is no such study or trial, or it is damaged.
    """
    found = {record.number: record.architecture.choices for record in read_study(path).records}
    if number not in found:
        raise StorageError(f"{path}: has no trial {number}; it has 0 to {max(found, default=-1)}")
    return found[number]
