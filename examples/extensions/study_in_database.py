"""A study in a database as well: `callbacks=[examples/extensions/study_in_database.py:Copy]`.

    callbacks.Copy.log=runs/first/study.log callbacks.Copy.storage=sqlite:///studies.db

`storage` is the address of a database, or any of Optuna's storages from Python. The run's folder keeps the address, so
leave a password to what the database has for it (`PGPASSWORD`, `~/.pgpass`).
"""

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy.pool import NullPool

from l2l_nas import Callback


class Copy(Callback):
    """Adds each finished trial; where the database was away, the next trial brings those that it lacks."""

    def __init__(self, log: str, storage: Any, study: str = "search") -> None:
        if isinstance(storage, str):  # no connection stays open between two trials
            storage = RDBStorage(storage, engine_kwargs={"poolclass": NullPool})
        self.log, self.storage, self.study = log, storage, study
        self.run: optuna.Study | None = None

    def trial(self, record: Any, records: Sequence[Any]) -> None:
        if self.run is None:
            self.run = optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend(self.log)))
        copy = optuna.create_study(
            study_name=self.study, storage=self.storage, directions=self.run.directions, load_if_exists=True
        )
        copy.add_trials(self.run.trials[len(copy.trials) :])
