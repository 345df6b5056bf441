"""Settings that a command takes over from a run's `config.yaml`, unless they were given.

A run that goes on takes all of them over, see `go_on`; each setting declares whether it may be given anew.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.command_line import given_names, name_again, resume_command, spell
from l2l_nas.runs.fields import changed, fitting, settings, value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import deviating, flat
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.saved_config import OWN, name_in, names_own, own_names, read_config
from l2l_nas.runs.settings import PLACES, rule_of
from l2l_nas.runs.sweep_words import refuse_sweep

Conf = TypeVar("Conf")

# "auto" is decided once for a run: sums of repeated layers depend on it
_DECIDED = frozenset({"relay.keep", "relay.slots"})


def given_settings(conf: Any, overrides: Collection[str], of_hydra: Collection[str]) -> frozenset[str]:
    """Names of the settings that somebody gave: in overrides, or in a config file, where it is not the default.

    Args:
        conf: all settings.
        overrides: as Hydra took them.
        of_hydra: overrides of Hydra's own settings.
    """
    differing = deviating(type(conf), conf).keys() - PLACES
    return given_names(overrides) | differing | ({"folder"} if "hydra.run.dir" in given_names(of_hydra) else set())


def go_on(command: str, conf: Conf, *, given: Collection[str]) -> Conf | None:
    """The settings of the run in `conf.resume`, but for those that are said again.

    Args:
        command: that goes on: search or train.
        conf: its settings.
        given: see `given_settings`.

    Returns:
        None if there was no run: one that was killed before it had settings is started with those given.

    Raises:
        SettingError: a setting that must stay was given another value; two folders; a pool that must be named again.
        StorageError: the run is of another command, or its settings are damaged.
    """
    folder = RunFolder(Path(value_of(conf, "resume")))
    ours = Path(value_of(conf, "folder"))
    is_other = "folder" in given and ours != folder.root
    if not folder.root.is_dir() and ours != folder.root:
        raise StorageError(f"resume={folder.root}: no such folder")
    if not folder.config.exists():
        refuse_sweep(command, folder.root)
        if is_other:
            raise _two_folders(conf)
        return None
    config = read_config(folder.config)
    kind = "search" if isinstance(config.get("search"), dict) else "train"
    if kind != command:
        noun = "search" if kind == "search" else "training"
        line = resume_command(kind, folder.root, own_names(config))
        raise StorageError(f"{folder.root} holds a {noun}; go on with it by: {line}")
    if is_other:
        raise _two_folders(conf)
    given = set(given)
    if value_of(conf, "relay.budget") == "auto":
        given.discard("relay.budget")
    exempt = {*PLACES, "callbacks"}  # what stands in a folder is never imported
    if "relay.budget" in given:
        exempt |= _DECIDED - given
    found = inherit(conf, folder, given=given, exempt=exempt)
    for name, (before, now) in changes(config, found).items():
        if why := rule_of(name).refusal(config):
            raise must_stay(folder, name, before, now, why)
    return found


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


def _chosen(name: str, before: Mapping[str, Any], now: Mapping[str, Any], *, given: Collection[str]) -> dict[str, Any]:
    """A dict of what was given, and else of the run's; a choice that was made anew takes nothing of the run's."""
    if {name, f"{name}.name"} & set(given):
        return dict(now)
    found = dict(before)
    for key, value in now.items():
        entry = f"{name}.{key}"
        if isinstance(value, Mapping) and any(one.startswith(f"{entry}.") for one in given):
            found[key] = _chosen(entry, before.get(key) or {}, value, given=given)
        elif entry in given:
            found[key] = value
    return found


def inherit(conf: Conf, folder: RunFolder, *, given: Collection[str], exempt: Collection[str]) -> Conf:
    """The settings of a run, but for those that were given and those that the command keeps.

    A run's pool is taken over only if it is built in: what stands in a folder is never imported. Of settings that are
    dictionaries, such as `space.args`, each entry that was given counts, the others are the run's.

    Args:
        conf: a dataclass of `settings.py`.
        given: see `given_names`.
        exempt: names of settings, or of sections, that are this command's own.

    Raises:
        SettingError: the run's pool is the user's own and was not named again.
        StorageError: the run's settings are missing or damaged.
    """
    config = read_config(folder.config)
    taken: dict[str, Any] = {}
    for name, default, _ in settings(type(conf)):
        found = value_of(config, name)
        if found is None or _covers({*exempt, *given}, name):
            continue
        try:
            found = fitting(name, found, default)
        except SettingError:
            raise StorageError(f"{folder.config}: damaged ({name} is {found!r}); restore it") from None
        taken[name] = _chosen(name, found, value_of(conf, name), given=given) if isinstance(found, dict) else found
    conf = changed(conf, taken)
    if not _covers({*exempt, *given}, "space.pool"):
        refuse_unnamed_pool(folder, value_of(conf, "space.pool"))
    known = {name for name, _, _ in settings(type(conf))}
    for name in (name for name in OWN if name in known):
        found = name_in(config, name)
        if not {name, f"{name}.name"} & set(given) and names_own(found):
            what = name.rpartition(".")[2].replace("_", " ").removesuffix("s")
            raise SettingError(f"{folder.root}: {name_again(what, name, found)}")
    return conf


def refuse_unnamed_pool(folder: RunFolder, pool: str) -> None:
    """Nothing that is read back from a folder is imported.

    Raises:
        SettingError: a pool that is not built in.
    """
    if not is_builtin(pool):
        raise SettingError(f"{folder.root}: {name_again('pool', 'space.pool', pool)}")


def _covers(names: Collection[str], name: str) -> bool:
    return name in names or name.rpartition(".")[0] in names
