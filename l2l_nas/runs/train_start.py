"""What a training starts or goes on with: its settings and its architecture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.chosen import (
    ORIGINAL,
    SCRATCH,
    ChosenArchitecture,
    is_architecture,
    read_choice,
    run_of,
    weights_folder,
)
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.fields import declared, value_of
from l2l_nas.runs.folder import RunFolder, refuse_taken
from l2l_nas.runs.inherit import go_on, inherit, must_stay
from l2l_nas.runs.saved_config import own_names_in, read_config
from l2l_nas.runs.settings import RetrainConf, rule_of


@dataclass(frozen=True)
class TrainingStart:
    """Settings and architecture of a training, and the run that these are from; None where the training goes on."""

    conf: RetrainConf
    choice: ChosenArchitecture
    source: RunFolder | None = None


def training_start(conf: RetrainConf, folder: RunFolder, *, given: Collection[str]) -> TrainingStart:
    """Read what a training starts or goes on with.

    Args:
        given: names of settings that were given explicitly.

    Raises:
        SettingError: what is given does not go with the folder, or with the run.
        StorageError: the folder holds another run, or something is missing or damaged.
    """
    before = _as_before(conf, folder, given) if _resumes(conf, folder) else None
    return before or _as_in_the_run(conf, given)


def _resumes(conf: RetrainConf, folder: RunFolder) -> bool:
    root = folder.root
    if not conf.resume:
        if any(path.exists() for path in (folder.study, folder.weights, folder.result)):
            kind = "search" if folder.study.exists() else "train"
            line = resume_command(kind, root, own_names_in(folder.config))
            raise StorageError(f"{root} already holds a run; go on with it by: {line}; or choose another folder")
        refuse_taken(root)
        return False
    if folder.config.exists() or not root.is_dir():
        return True  # `go_on` refuses what is no training
    # killed before it had settings, perhaps with an architecture
    refuse_taken(root, but=(".hydra", "architecture.json")[: 1 + is_architecture(folder.architecture)])
    return False


def _as_before(conf: RetrainConf, folder: RunFolder, given: Collection[str]) -> TrainingStart | None:
    """The settings and the architecture that this training was started with, but for what is given."""
    # compared below, by what they name
    asked = {name: getattr(conf, name) for name in ("run", "architecture", "trial") if name in given}
    weights = conf.weights
    found = go_on("train", conf, given=frozenset(given) - asked.keys() - {"weights"})
    if found is None:
        return None
    conf = found
    has_begun = folder.architecture.exists()
    before = read_choice(
        *(("", str(folder.architecture)) if has_begun else (conf.run, conf.architecture)),
        trial=-1 if has_begun else conf.trial,
    )
    if asked:
        run = asked.get("run", "" if "architecture" in asked else conf.run)
        now = read_choice(run, asked.get("architecture", ""), trial=asked.get("trial", -1))
        is_same = conf.architecture == ORIGINAL if now.choices is None else now.choices == before.choices
        if not is_same:
            words = " ".join(f"{name}={value}" for name, value in asked.items())
            raise SettingError(
                f"{words} is not the architecture that {folder.root} trains; leave it out, or train it in "
                "another folder"
            )
    if "weights" in given:
        source = str(weights_folder(weights, run=run_of(Path(conf.run or conf.architecture))) or SCRATCH)
        if source != conf.weights:
            raise must_stay(folder, "weights", conf.weights, source, rule_of("weights").why)
    return TrainingStart(conf, before)


def _as_in_the_run(conf: RetrainConf, given: Collection[str]) -> TrainingStart:
    """The architecture, and settings of the run that it or its weights are from."""
    choice = read_choice(conf.run, conf.architecture, trial=conf.trial)
    run = run_of(Path(conf.run or conf.architecture))
    weights = weights_folder(conf.weights, run=run)
    run = run or (run_of(weights) if weights else None)
    if weights is not None:
        conf = replace(conf, weights=str(weights))
    if run is not None:
        conf = inherit(
            conf, run, given=given, exempt=[one.name for one in declared(RetrainConf) if not one.is_inherited]
        )
        conf = replace(conf, metric=conf.metric or _metric_of(read_config(run.config)))
    return TrainingStart(conf, choice, run)


def _metric_of(config: Mapping[str, Any]) -> str:
    """The first objective of a search, or the metric of a training; empty if its settings do not tell."""
    is_search = isinstance(config.get("search"), dict)
    objectives = value_of(config, "objectives.names") if is_search else [config.get("metric")]
    first = objectives[0] if isinstance(objectives, list) and objectives else ""
    return first if isinstance(first, str) else ""
