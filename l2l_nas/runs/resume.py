"""What a run starts or goes on with: its settings, and of a training its architecture.

A run that goes on takes all settings over from its folder, unless they were given; each declares whether it may be
given anew. A training that starts takes over those of the run that its network is from.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import write_json
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import explicit_names, spell
from l2l_nas.runs.fields import changed, check_bounds, declared, fitting, value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder, refuse_taken
from l2l_nas.runs.folder_settings import left_out, must_be_named, name_again, read_settings
from l2l_nas.runs.groups import completed, deviating, flat
from l2l_nas.runs.saved import (
    ORIGINAL,
    SCRATCH,
    ChosenArchitecture,
    SavedRun,
    is_architecture,
    read_choice,
    run_of,
    weights_folder,
)
from l2l_nas.runs.settings import PLACES, RetrainConf, SearchConf, rule_of

Conf = TypeVar("Conf", SearchConf, RetrainConf)

_EVALUATED = ("complete", "stopped", "failed")
# "auto" is decided once for a run: sums of repeated layers depend on it
_DECIDED = frozenset({"relay.keep", "relay.slots"})


def explicit_settings(conf: Any, overrides: Collection[str], of_hydra: Collection[str]) -> frozenset[str]:
    """Names of the settings that somebody gave: in overrides, or in a config file, where it is not the default.

    Args:
        conf: all settings.
        overrides: as Hydra took them.
        of_hydra: overrides of Hydra's own settings.
    """
    differing = deviating(type(conf), conf).keys() - PLACES
    return (
        explicit_names(overrides) | differing | ({"folder"} if "hydra.run.dir" in explicit_names(of_hydra) else set())
    )


def refuse_begun(folder: RunFolder, resume_command: str = "") -> None:
    """Refuse a folder for a new run: one that holds a run or a sweep, or files of the user's under names of a run's.

    Args:
        resume_command: the command that goes on with the run, if it is not that of one run.

    Raises:
        StorageError: with what to do.
    """
    if any(path.exists() for path in (folder.study, folder.weights, folder.log, folder.result)):
        line = resume_command or SavedRun(folder).resume_command()
        raise StorageError(f"{folder.root} already holds a run; go on with it by: {line}; or choose another folder")
    if (folder.root / SWEEP_CONFIG).exists():
        raise StorageError(f"{folder.root} holds a sweep; go on with it by its command and skip_done=true")
    refuse_taken(folder.root)


def go_on(command: str, conf: Conf) -> Conf | None:
    """The settings of the run in `conf.resume`, but for those that are explicit now.

    Args:
        command: that goes on: search or train.
        conf: its settings.

    Returns:
        None if there was no run: one that was killed before it had settings is started with those given.

    Raises:
        SettingError: a setting that must stay was given another value; two folders; a pool that must be named again.
        StorageError: the run is of another command, or its settings are damaged.
    """
    folder, ours = RunFolder(Path(conf.resume)), Path(conf.folder)
    is_other = "folder" in conf.explicit and ours != folder.root
    if not folder.root.is_dir() and ours != folder.root:
        raise StorageError(f"resume={folder.root}: no such folder")
    if not folder.config.exists():
        if is_other:
            raise _two_folders(conf)
        return None
    saved = SavedRun(folder)
    config = saved.config
    if saved.command != command:
        raise StorageError(f"{folder.root} holds a {saved.noun}; go on with it by: {saved.resume_command()}")
    if is_other:
        raise _two_folders(conf)
    explicit = conf.explicit - ({"relay.budget"} if conf.relay.budget == "auto" else set())
    exempt = {*PLACES}
    if "relay.budget" in explicit:
        exempt |= _DECIDED - explicit
    found = replace(inherit(replace(conf, explicit=explicit), folder, exempt=exempt), explicit=conf.explicit)
    for name, (before, now) in changes(saved.settings.whole, found).items():
        if why := rule_of(name).refusal(config):
            raise must_stay(folder, name, before, now, why)
    return found


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run starts or goes on with.

    Args:
        command: search or train.
        conf: all settings; those of the folder that it goes on in are taken over.
        folder: its own.
        files: of whoever started it, to be written beside the settings: of what goes on they tell how it was started.
        is_new: whether no settings were taken over.
        left_out: what to tell of settings that the run had before; see the function of this name.
    """

    command: str
    conf: SearchConf | RetrainConf
    folder: RunFolder
    files: Mapping[str, str]
    is_new: bool
    left_out: str = ""

    @classmethod
    def of(
        cls, command: str, conf: SearchConf | RetrainConf, files: Mapping[str, str] | None, *, is_new: bool, **more: Any
    ) -> Self:
        """What these settings start, or, where they are taken over, go on with; more: further fields."""
        folder, left_out = RunFolder(Path(conf.resume or conf.folder)), "" if is_new else _left_out(conf)
        files = (files or {}) if is_new else {}
        return cls(command=command, conf=conf, folder=folder, files=files, is_new=is_new, left_out=left_out, **more)

    @property
    def goes_on(self) -> bool:
        """Whether it was asked to go on with a run, of which one that was killed may have left no settings."""
        return bool(self.conf.resume)

    def refuse_begun(self, resume_command: str) -> None:
        """Refuse a folder that holds a run which this does not go on with: before all, and when nobody else writes.

        Raises:
            StorageError: with what to do.
        """
        if not self.goes_on or (self.is_new and self.folder.config.exists()):
            refuse_begun(self.folder, resume_command if self.command == "search" else "")
        elif self.is_new and self.command == "train":
            own = (".hydra", "architecture.json")[: 1 + is_architecture(self.folder.architecture)]
            refuse_taken(self.folder.root, but=own)


def search_start(conf: SearchConf, *, files: Mapping[str, str] | None) -> Start:
    """Read what a search starts or goes on with. Raises SettingError, StorageError: see `go_on`, and `check_bounds`."""
    _refuse_skip_done(conf)
    before = go_on("search", conf) if conf.resume else None
    conf = completed(before or conf)
    check_bounds(conf)
    return Start.of("search", conf, files, is_new=before is None)


def _refuse_skip_done(conf: SearchConf | RetrainConf) -> None:
    if conf.skip_done:  # a run of a sweep has it no more
        raise SettingError("skip_done is for sweeps: add -m")


def _left_out(conf: SearchConf | RetrainConf) -> str:
    withheld = read_settings(RunFolder(Path(conf.resume)).config).withheld
    return left_out(withheld, explicit=conf.explicit, schema=type(conf))


def _two_folders(conf: Any) -> SettingError:
    return SettingError(
        f"folder={conf.folder} and resume={conf.resume}: a run goes on in its own folder; leave folder= out"
    )


def must_stay(folder: RunFolder, name: str, before: Any, now: Any, why: str) -> SettingError:
    """What to tell of a setting that was given another value and must not have it."""
    name = name.removesuffix(".names")  # as objectives are written
    return SettingError(
        f"{name}={spell(now)}: the run in {folder.root} has {name}={spell(before)} and must keep it: "
        f"{why}; leave {name} out, or start a new run in another folder"
    )


def changes(config: Mapping[str, Any], conf: Any) -> dict[str, tuple[Any, Any]]:
    """The run's value and ours of settings that differ; of another choice no argument, as it has its own."""
    before, now = flat(type(conf), config), flat(type(conf), conf)
    found = {}
    for name in {**before, **now}:
        old, new, group = before.get(name), now.get(name), name.partition(".")[0]
        is_same = old == new or (name == "data.source" and os.path.realpath(str(old)) == os.path.realpath(str(new)))
        if not is_same and (name == group or before.get(group) == now.get(group)):
            found[name] = old, new
    return found


def _chosen(
    name: str, before: Mapping[str, Any], now: Mapping[str, Any], *, explicit: Collection[str]
) -> dict[str, Any]:
    """A dict of what was given, and else of the run's; another choice than the run's takes nothing of the run's."""
    is_same_choice = "name" in now and now["name"] == before.get("name")
    if {name, f"{name}.name"} & set(explicit) and not is_same_choice:
        return dict(now)
    found = dict(before)
    for key, value in now.items():
        entry = f"{name}.{key}"
        if isinstance(value, Mapping) and any(one.startswith(f"{entry}.") for one in explicit):
            found[key] = _chosen(entry, before.get(key) or {}, value, explicit=explicit)
        elif entry in explicit:
            found[key] = value
    return found


def inherit(conf: Conf, folder: RunFolder, *, exempt: Collection[str]) -> Conf:
    """The settings of a run, but for those that are explicit and those that the command keeps.

    Of settings that are dictionaries, such as `space.args`, each explicit entry counts, the others are the run's.
    What the folder may not give is named again; see [Note: folders of others] in `folder_settings.py`.

    Args:
        conf: of the command.
        exempt: names of settings, or of sections, that are this command's own.

    Raises:
        SettingError: something that is needed was not named again.
        StorageError: the run's settings are missing or damaged.
    """
    saved = read_settings(folder.config)
    explicit: Collection[str] = conf.explicit
    taken: dict[str, Any] = {}
    for one in declared(type(conf)):
        name = one.name
        value = value_of(saved.config, name)
        is_kept = _covers(exempt, name) or (_covers(explicit, name) and name not in CHOICES)
        if value is None or is_kept:
            continue
        try:
            value = fitting(one, value)
        except SettingError:
            raise StorageError(f"{folder.config}: damaged ({name} is {value!r}); restore it") from None
        is_dict = isinstance(value, dict)
        taken[name] = _chosen(name, value, value_of(conf, name), explicit=explicit) if is_dict else value
    if own := must_be_named(saved.withheld, explicit={*exempt, *explicit}, schema=type(conf)):
        raise SettingError(f"{folder.root}: {name_again(own)}")
    found: Conf = changed(conf, taken)
    return found


def _covers(names: Collection[str], name: str) -> bool:
    return name in names or name.rpartition(".")[0] in names


def finished_search(folder: RunFolder, conf: SearchConf, *, goal: str, evaluated: int) -> tuple[float, str] | None:
    """The best value of a search with nothing left to do, and what to say; None of another.

    It came to its end, and was asked for with the very same settings. Its `result.json` is written again.

    Args:
        folder: the run's.
        conf: its settings now, as its folder would keep them.
        goal: the first objective.
        evaluated: how many of the trials asked for its study has.

    Raises:
        StorageError: its settings or its study cannot be read.
    """
    saved = SavedRun(folder)
    if not is_done(saved, conf):
        return None
    try:
        result = saved.result()
        value = float(result["best"]["values"][goal])
        if sum(result["trials"][state] for state in _EVALUATED) != evaluated:
            return None
    except (StorageError, KeyError, TypeError, ValueError):
        return None  # it is made again
    write_json(folder.result, result)
    total = conf.search.trials
    assert total is not None  # decided before
    line = f"finished: {evaluated} of {total} trials are evaluated and the result is written, nothing to do"
    return value, f"{line}; for more: {saved.resume_command({'search.trials': 2 * total})}"


def finished_training(folder: RunFolder, conf: RetrainConf) -> str:
    """What to say of a training with nothing left to do, as of a search; empty of another.

    Raises:
        StorageError: its settings or its log cannot be read.
    """
    saved = SavedRun(folder)
    if not is_done(saved, conf) or (conf.export and not folder.export.is_dir()):
        return ""
    try:
        result = saved.result()
        if result["last"]["step"] != conf.train.steps:
            return ""
    except (StorageError, KeyError, TypeError):
        return ""  # it is made again
    write_json(folder.result, result)
    steps = conf.train.steps
    line = f"finished: {steps} of {steps} steps are done and the result is written, nothing to do"
    return f"{line}; for more: {saved.resume_command({'train.steps': max(1, 2 * steps)})}"


def is_done(saved: SavedRun, conf: SearchConf | RetrainConf) -> bool:
    """Whether a run was done when it ended last, and was asked for with the very same settings."""
    if not saved.folder.config.exists() or saved.last_end.get("event") != "done":
        return False  # the result, if any, is from before it was gone on with
    return all(rule_of(name).is_free for name in changes(saved.settings.whole, conf))


def is_over(folder: RunFolder) -> bool:
    """Whether a run has a result: it came to its end, or a callback ended it."""
    saved = SavedRun(folder)
    end = saved.last_end
    try:
        return (end.get("event") == "done" or bool(end.get("by"))) and bool(saved.result())
    except StorageError:
        return False  # lost: it is made again


def refuse_other_settings(folder: RunFolder, conf: SearchConf | RetrainConf) -> None:
    """Refuse a folder whose run was asked for with other settings, but for those that change no result.

    What is left to the program now may have been decided there.

    Raises:
        StorageError: it was.
    """
    for name, (before, now) in changes(SavedRun(folder).settings.whole, conf).items():
        if now not in (None, "auto") and not rule_of(name).is_free:
            raise StorageError(f"the run there has {name}={spell(before)}, not {spell(now)}; choose another folder")


@dataclass(frozen=True, kw_only=True)
class TrainingStart(Start):
    """The same of a training.

    Args:
        choice: its architecture.
        source: the run that this is from; None where the training goes on.
    """

    conf: RetrainConf
    choice: ChosenArchitecture
    source: RunFolder | None = None


def training_start(conf: RetrainConf, *, files: Mapping[str, str] | None) -> TrainingStart:
    """Read what a training starts or goes on with.

    Raises:
        SettingError: what is given does not go with the folder, or with the run.
        StorageError: the folder holds another run, or something is missing or damaged.
    """
    _refuse_skip_done(conf)
    check_bounds(conf)
    source = None
    before = _as_before(conf, RunFolder(Path(conf.resume))) if conf.resume else None
    if before is None:
        Start.of("train", conf, files, is_new=True).refuse_begun("")
        conf, choice, source = _as_in_the_run(conf)
    else:
        conf, choice = before
    conf = completed(conf)
    check_bounds(conf)
    return TrainingStart.of("train", conf, files, is_new=before is None, choice=choice, source=source)


def _as_before(conf: RetrainConf, folder: RunFolder) -> tuple[RetrainConf, ChosenArchitecture] | None:
    """The settings and the architecture that this training was started with, but for what is explicit."""
    # compared below, by what they name
    explicit = conf.explicit
    asked = {name: getattr(conf, name) for name in ("run", "architecture", "trial") if name in explicit}
    weights = conf.weights
    found = go_on("train", replace(conf, explicit=explicit - asked.keys() - {"weights"}))
    if found is None:
        return None
    conf = replace(found, explicit=explicit)
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
    if "weights" in explicit:
        source = str(weights_folder(weights, run=run_of(Path(conf.run or conf.architecture))) or SCRATCH)
        if source != conf.weights:
            raise must_stay(folder, "weights", conf.weights, source, rule_of("weights").why)
    return conf, before


def _as_in_the_run(conf: RetrainConf) -> tuple[RetrainConf, ChosenArchitecture, RunFolder | None]:
    """The architecture, and settings of the run that it or its weights are from."""
    choice = read_choice(conf.run, conf.architecture, trial=conf.trial)
    run = run_of(Path(conf.run or conf.architecture))
    weights = weights_folder(conf.weights, run=run)
    run = run or (run_of(weights) if weights else None)
    if weights is not None:
        conf = replace(conf, weights=str(weights))
    if run is not None:
        conf = inherit(conf, run, exempt=[one.name for one in declared(RetrainConf) if not one.is_inherited])
        conf = replace(conf, metric=conf.metric or _metric_of(SavedRun(run).config))
    return conf, choice, run


def _metric_of(config: Mapping[str, Any]) -> str:
    """The first objective of a search, or the metric of a training; empty if its settings do not tell."""
    is_search = isinstance(config.get("search"), dict)
    objectives = value_of(config, "objectives.names") if is_search else [config.get("metric")]
    first = objectives[0] if isinstance(objectives, list) and objectives else ""
    return first if isinstance(first, str) else ""
