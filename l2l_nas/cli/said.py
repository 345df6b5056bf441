"""Which settings somebody asked for, as Hydra tells it."""

from __future__ import annotations

from typing import Any

from hydra.conf import HydraConf

from l2l_nas.cli.names import no_effect
from l2l_nas.runs.changes import PLACES
from l2l_nas.runs.inherit import given_names
from l2l_nas.runs.settings import settings, value_of


def said_names(conf: Any, about: HydraConf) -> frozenset[str]:
    """Names of the settings that somebody asked for: in overrides, or in a config file, where it is not the default.

    Raises:
        SettingError: a config file names another folder, in Hydra's words.
    """
    if str(about.run.dir) != ".":
        raise no_effect("hydra.run.dir", str(about.run.dir))
    changed: set[str] = set()
    for name, default, _ in settings(type(conf)):
        value = value_of(conf, name)
        if isinstance(value, dict):
            changed |= {f"{name}.{key}" for key in value}
        elif name not in PLACES and value != default:
            changed.add(name)
    return given_names(about.overrides.task) | changed
