"""Where a search keeps its study, if not in the run's folder: settings that name the database, checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.study.journal import StudyFile
from l2l_nas.nas.study.reading import load_database_study, load_study
from l2l_nas.nas.study.storage import Store
from l2l_nas.nas.study.study import Study
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import deviating
from l2l_nas.runs.settings import PASSWORD_VARIABLE, SearchConf, rule_of

if TYPE_CHECKING:
    import optuna

    from l2l_nas.nas.study.database import Address


def study_address(conf: SearchConf, folder: RunFolder) -> Address | None:
    """Where the study is; None for a study in the run's own folder.

    Raises:
        SettingError: a setting that makes no sense.
        StorageError: the folder is of a run whose study is elsewhere.
    """
    section = conf.search
    if not section.storage:
        return None
    if not section.study:
        raise SettingError("search.study must name the study, such as search.study=digits")
    if folder.study.exists():
        raise StorageError(
            f"{folder.study}: this run has a study of its own; take another folder for one in a database"
        )
    from l2l_nas.nas.study.database import parse_address  # SQLAlchemy: only where needed

    return parse_address(section.storage, password=os.environ.get(PASSWORD_VARIABLE, ""))


def study_of(folder: RunFolder, config: Mapping[str, Any], *, storage: str = "") -> tuple[optuna.Study, str]:
    """The study of a run, read back, and where it is, for messages.

    Args:
        config: the run's settings.
        storage: where it is, if that is a database, password and all; by default as the settings tell.

    Raises:
        StorageError: it is missing or damaged, or its database is away.
    """
    known = str(value_of(config, "search.storage") or "")
    if not (storage or known):
        return load_study(folder.study), str(folder.study)
    name = str(value_of(config, "search.study"))
    password = os.environ.get(PASSWORD_VARIABLE, "")
    return load_database_study(storage or known, name, password=password), f"{known}, study '{name}'"


def study_store(
    conf: SearchConf,
    address: Address | None,
    folder: RunFolder,
    *,
    resume: bool,
    say: Callable[[str], None],
    waiting: Callable[[str], None],
) -> Store:
    """Where the study is kept; nothing is opened yet.

    Args:
        address: None: in the folder.
        resume: whether the run goes on.
        say, waiting: see `DatabaseStudy`.
    """
    if address is None:
        return StudyFile(folder.study, resume=resume)
    from l2l_nas.nas.study.database_study import DatabaseStudy  # SQLAlchemy: only where needed

    return DatabaseStudy(
        address,
        name=conf.search.study,
        folder=folder.root,
        is_known=resume and folder.config.exists(),
        retry_seconds=conf.search.storage_retry_seconds,
        waiting=waiting,
        say=say,
    )


def refuse_weights_of_another(conf: SearchConf, study: Study) -> None:
    """Refuse to go on in a new folder with trials that trained shared weights: these lie in another.

    Raises:
        SettingError: with what to do.
    """
    if study.records and conf.search.trial_weights == "shared":
        raise SettingError(
            f"{study.place}: its trials have trained weights that lie in another folder; go on there by "
            "resume=FOLDER, or take another search.study"
        )


# sections that a study compares by what they come to: digests of its samples, and its goals
COMPARED = frozenset({"data", "objectives"})


def scoring(conf: SearchConf, budget: Budget) -> dict[str, Any]:
    """Settings that all trials of a study must have in common, else their scores could not be compared."""
    found = {name: value for name, (value, _) in deviating(SearchConf, conf).items() if rule_of(name).stays}
    found |= {"seed": conf.seed, "search.warmup_steps": budget.warmup_steps}
    found |= {"search.finalist_steps": budget.finalist_steps} if budget.trial_weights == "scratch" else {}
    found = {name: value for name, value in found.items() if name.partition(".")[0] not in COMPARED}
    content: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return content


def public(conf: SearchConf, address: Address | None) -> SearchConf:
    """The settings as a run's folder keeps them: without the database's password."""
    return replace(conf, search=replace(conf.search, storage=address.shown)) if address else conf
