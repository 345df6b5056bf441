"""Settings that a command takes over from a run's `config.yaml`, unless they were given."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from l2l_nas.cli.locate import is_builtin
from l2l_nas.cli.run_folder import RunFolder
from l2l_nas.cli.schema import settings
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_yaml


def given_names(overrides: Collection[str]) -> frozenset[str]:
    """Names of the settings in overrides as Hydra takes them: `train.steps=5`, `++space.args.depth=6`, `space=x`."""
    return frozenset(re.sub(r"^[+~]+", "", override).partition("=")[0] for override in overrides)


def read_config(folder: RunFolder) -> dict[str, Any]:
    """The settings of a run: plain data, nothing in it is resolved or imported.

    Raises:
        StorageError: missing or damaged.
    """
    return read_yaml(folder.config)


def inherit(conf: Any, folder: RunFolder, *, given: Collection[str], kept: Collection[str]) -> None:
    """Set every setting of `conf` to that of a run, but those that were given and those that the command keeps.

    A run's pool is taken over only if it is built in: what stands in a folder is never imported. Of `space.args`, each
    argument that was given counts, the others are the run's.

    Args:
        conf: a dataclass of `schema`; it is changed.
        given: see `given_names`.
        kept: names of settings, or of sections, that are this command's own.

    Raises:
        SettingError: the run's pool is the user's own and was not named again.
        StorageError: the run's settings are missing or damaged.
    """
    config = read_config(folder)
    if "space" in given:
        kept = {*kept, "space"}
    for name, _, _ in settings(type(conf)):
        if _covers(kept, name) or name in given:
            continue
        section, _, leaf = name.rpartition(".")
        target = getattr(conf, section) if section else conf
        found: Any = config
        for part in name.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is None:
            continue
        setattr(target, leaf, _fitting(name, found, getattr(target, leaf), folder))
    if not _covers(kept, "space.pool") and "space.pool" not in given and not is_builtin(conf.space.pool):
        raise SettingError(
            f"{folder.root}: that run's pool is one of your own; name it again: space.pool={conf.space.pool}"
        )


def _covers(names: Collection[str], name: str) -> bool:
    return name in names or name.rpartition(".")[0] in names


def _fitting(name: str, found: Any, own: Any, folder: RunFolder) -> Any:
    """The run's value, if it is of the setting's type."""
    if name == "space.args" and isinstance(found, Mapping):
        return {**found, **own}
    if isinstance(own, float) and type(found) is int:
        return float(found)
    if type(found) is not type(own):
        raise StorageError(f"{folder.config}: damaged ({name} is {found!r}); restore it")
    return found
