"""Which settings somebody asked for, as Hydra tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.conf import HydraConf

from l2l_nas.runs.groups import deviating
from l2l_nas.runs.inherit import given_names
from l2l_nas.runs.settings import PLACES


def _leaves(name: str, value: Any) -> list[str]:
    """Names of the values of a setting: a dict's are those of its entries, each of which can be said alone."""
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [one for key, inner in value.items() for one in _leaves(f"{name}.{key}", inner)]


def said_names(conf: Any, about: HydraConf) -> frozenset[str]:
    """Names of the settings that somebody asked for: in overrides, or in a config file, where it is not the default."""
    changed = {one for name, value in deviating(conf) for one in _leaves(name, value)} - PLACES
    given = given_names(about.overrides.task)
    return given | changed | ({"folder"} if "hydra.run.dir" in given_names(about.overrides.hydra) else set())
