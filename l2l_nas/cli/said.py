"""Which settings somebody asked for, as Hydra tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.conf import HydraConf

from l2l_nas.runs.changes import PLACES
from l2l_nas.runs.fields import settings, value_of
from l2l_nas.runs.groups import deviations
from l2l_nas.runs.inherit import given_names
from l2l_nas.runs.settings import CHOICES


def _leaves(name: str, value: Any) -> list[str]:
    """Names of the values of a setting: a dict's are those of its entries, each of which can be said alone."""
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [one for key, inner in value.items() for one in _leaves(f"{name}.{key}", inner)]


def said_names(conf: Any, about: HydraConf) -> frozenset[str]:
    """Names of the settings that somebody asked for: in overrides, or in a config file, where it is not the default."""
    changed: set[str] = set()
    for name, default, _ in settings(type(conf)):
        value = value_of(conf, name)
        if name in CHOICES:
            changed |= {one for key, found, _ in deviations(name, value) for one in _leaves(key, found)}
        elif isinstance(value, dict):
            changed |= {f"{name}.{key}" for key in value}
        elif name not in PLACES and value != default:
            changed.add(name)
    given = given_names(about.overrides.task)
    return given | changed | ({"folder"} if "hydra.run.dir" in given_names(about.overrides.hydra) else set())
