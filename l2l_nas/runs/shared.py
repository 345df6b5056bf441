"""A search that takes part in a study of many processes: its settings, checked, and the study itself.

`nas.distributed` is imported once it is known that there is such a study: a search of one process does without.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import deviating, deviations
from l2l_nas.runs.settings import PASSWORD_VARIABLE, SearchConf, rule_of

if TYPE_CHECKING:
    from l2l_nas.nas.distributed.shared_study import SharedStudy
    from l2l_nas.nas.study.database import Address


def shared_address(conf: SearchConf, folder: RunFolder) -> Address | None:
    """Where the study is; None for a study in the run's own folder.

    Raises:
        SettingError: a setting that makes no sense.
        StorageError: the folder is of a run whose study is elsewhere.
    """
    section = conf.search
    for name, seconds in (
        ("lost_after_seconds", section.lost_after_seconds),
        ("storage_retry_seconds", section.storage_retry_seconds),
    ):
        if not 0 <= seconds < float("inf") or (seconds == 0 and name == "lost_after_seconds"):
            raise SettingError(f"search.{name} must be above 0, got {seconds:g}")
    if not section.storage:
        if folder.worker.exists():
            raise StorageError(
                f"{folder.root}: the study of this run is in a database; give its search.storage again, and the same "
                "search.study"
            )
        return None
    if not section.study:
        raise SettingError("search.study must name the study, such as search.study=digits")
    if section.trial_weights == "shared":
        raise SettingError(
            "search.trial_weights=shared trains weights that other processes do not have; with search.storage take "
            "search.trial_weights=fork or scratch"
        )
    if folder.study.exists():
        raise StorageError(f"{folder.study}: this run has a study of its own; take another folder to share one")
    from l2l_nas.nas.study.database import parse_address

    return parse_address(section.storage, password=os.environ.get(PASSWORD_VARIABLE, ""))


def shared_study(address: Address, conf: SearchConf, folder: RunFolder) -> SharedStudy:
    """The study. Nothing is connected yet.

    Raises:
        StorageError: the folder cannot be read or written.
    """
    from l2l_nas.nas.distributed.shared_study import SharedStudy

    return SharedStudy(
        address,
        name=conf.search.study,
        folder=folder.root,
        is_known=folder.config.exists(),
        lost_after=conf.search.lost_after_seconds,
        retry_seconds=conf.search.storage_retry_seconds,
    )


# sections that a study compares by what they come to: digests of its samples, and its goals
COMPARED = frozenset({"data", "objectives"})
# listed by names of their own
_NAMED = ("optimizer", "strategy")


def scoring(conf: SearchConf, budget: Budget) -> dict[str, Any]:
    """Settings without which two processes' scores could not be compared, by the names that studies know.

    Studies of before know those listed here; whatever else must stay is in `others`, where it is not as it comes.
    """
    strategy = conf.strategy["name"] if len(conf.strategy) == 1 else spell(conf.strategy)
    listed = {
        "seed": conf.seed,
        "search.trial_weights": conf.search.trial_weights,
        "search.steps_per_trial": conf.search.steps_per_trial,
        "search.warmup_steps": budget.warmup_steps,
        **({"search.finalist_steps": budget.finalist_steps} if budget.trial_weights == "scratch" else {}),
        "search.warmup_paths": conf.search.warmup_paths,
        **({"search.strategy": strategy} if strategy != "default" else {}),
        "train.batch_size": conf.train.batch_size,
        "train.learning_rate": conf.train.learning_rate,
        "train.optimizer": conf.optimizer["name"],
        **{name: value for name, value, _ in deviations("schedule", conf.schedule)},
        "relay.precision": conf.relay.precision,
    }
    others = {
        name: value
        for name, value in deviating(conf)
        if rule_of(name).stays and name.partition(".")[0] not in COMPARED and name not in (*listed, *_NAMED)
    }
    return {**listed, "others": json.loads(json.dumps(others, default=str))}


def public(conf: SearchConf, address: Address | None) -> SearchConf:
    """The settings as a run's folder keeps them: without the database's password."""
    return replace(conf, search=replace(conf.search, storage=address.shown)) if address else conf
