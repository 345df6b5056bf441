"""Reads a saved study for a report: without the pool that was searched, and without changing it."""

from __future__ import annotations

from pathlib import Path

from optuna.storages import RDBStorage

from l2l_nas.errors import StorageError
from l2l_nas.search.records import Goal, TrialRecord
from l2l_nas.search.saved import BROKEN, close_saved, count_trials, open_saved
from l2l_nas.search.study import STUDY_NAME, record_of
from l2l_nas.space.architecture import Architecture


def read_study(path: Path) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials.

    Raises:
        StorageError: the study is missing, damaged, or not one of this program.
    """
    if not path.is_file():
        raise StorageError(f"{path}: there is no study; check the folder")
    count_trials(path)  # Optuna would write into a file that is none
    storage: RDBStorage | None = None
    try:
        storage, study = open_saved(path, name=STUDY_NAME)
        goals = tuple(Goal(str(name), bool(maximize)) for name, maximize in study.user_attrs["goals"])
        finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
        records = tuple(record_of(trial, goals, Architecture.from_choices) for trial in finished)
        if not 1 <= len(goals) <= 2:
            raise ValueError(f"{len(goals)} objectives")
    except StorageError:
        raise
    except (*BROKEN, RuntimeError, ValueError, TypeError, StopIteration) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StorageError(
            f"{path}: does not read as a study of this program ({cause}); restore it from a copy"
        ) from None
    finally:
        if storage is not None:
            close_saved(storage)
    return goals, records
